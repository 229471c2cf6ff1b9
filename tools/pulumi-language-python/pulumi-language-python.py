"""Stand-in for the Pulumi CLI's Python language host, for the lab only.

The CLI's release archives bring a language host; its Go module does not. The engine starts this
program, reads its port from standard output, and calls pulumirpc.LanguageRuntime to run the
program of the project folder.
"""

import os
import runpy
import signal
import sys
from concurrent import futures

import grpc
from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import language_pb2_grpc


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
    server.wait_for_termination()


if __name__ == "__main__":
    main()
