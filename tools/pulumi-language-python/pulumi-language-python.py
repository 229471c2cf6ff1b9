"""Stand-in for the Pulumi CLI's Python language host, for the lab only.

The CLI's release archives bring a language host; its Go module does not. The engine starts this
program, reads its port from standard output, and calls pulumirpc.LanguageRuntime to run the
program of the project folder, or a plugin written in Python such as a policy pack.
"""

import os
import queue
import runpy
import signal
import subprocess
import sys
import threading
from concurrent import futures

import grpc
from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import language_pb2, language_pb2_grpc


class Host(LanguageServer):
    """Runs __main__.py of the project folder as the Pulumi program."""

    def __init__(self) -> None:
        super().__init__(self._program)

    @staticmethod
    def _program() -> None:
        folder = str(os.path.abspath("."))  # noqa: PTH100 - sys.path takes text
        sys.path.insert(0, folder)
        runpy.run_path("__main__.py", run_name="__main__")

    def Run(self, request, context):  # noqa: N802 - name given by the protocol
        """Run the program in its own folder, where it finds its modules and files."""
        os.chdir(request.info.program_directory or request.pwd)
        return super().Run(request, context)

    def RunPlugin(self, request, context):  # noqa: N802
        """Run a folder with a __main__.py, hand on what it prints, end it with the call."""
        process = subprocess.Popen(
            [sys.executable, request.info.program_directory or request.program, *request.args],
            cwd=request.pwd or None,
            env={**os.environ, **dict(each.partition("=")[::2] for each in request.env)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        context.add_callback(process.terminate)
        printed = queue.Queue()
        for name in ("stdout", "stderr"):
            arguments = (getattr(process, name), name, printed)
            threading.Thread(target=_forward, args=arguments, daemon=True).start()
        open_streams = 2
        while open_streams:
            name, data = printed.get()
            if data:
                yield language_pb2.RunPluginResponse(**{name: data})
            else:
                open_streams -= 1
        yield language_pb2.RunPluginResponse(exitcode=process.wait())


def _forward(stream, name, printed) -> None:
    while data := stream.read1(65536):
        printed.put((name, data))
    printed.put((name, b""))


def main() -> None:
    """Serve on a port of the loopback until the engine ends this process."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(Host(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop(0))
    engine = os.getppid()
    # An engine that was killed cannot say goodbye.
    while server.wait_for_termination(timeout=2) and os.getppid() == engine:
        pass
    server.stop(0)


if __name__ == "__main__":
    main()
