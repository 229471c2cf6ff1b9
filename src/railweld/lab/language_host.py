"""Stand-in for the Pulumi CLI's Python language host, for the lab only.

The CLI's release archives bring a language host; its Go module does not. The engine starts this
program and calls pulumirpc.LanguageRuntime to run the program of the project folder, or a plugin
written in Python such as a policy pack.
"""

from __future__ import annotations

import os
import queue
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import language_pb2, language_pb2_grpc

from railweld.stack.plugin import serve


class Host(LanguageServer):
    """Runs __main__.py of the project folder as the Pulumi program."""

    def __init__(self) -> None:
        super().__init__(self._program)

    @staticmethod
    def _program() -> None:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_path("__main__.py", run_name="__main__")

    def Run(self, request: Any, context: Any) -> Any:
        """Run the program in its own folder, where it finds its modules and files."""
        os.chdir(request.info.program_directory or request.pwd)
        run: Any = super().Run
        done = run(request, context)
        # What went wrong was logged already; as the real host, do not have it said twice.
        return language_pb2.RunResponse(bail=True) if done.error else done

    def RunPlugin(self, request: Any, context: Any) -> Iterator[Any]:
        """Run a folder with a __main__.py, hand on what it prints, end it with the call."""
        process = subprocess.Popen(
            [sys.executable, request.info.program_directory or request.program, *request.args],
            cwd=request.pwd or None,
            env={**os.environ, **dict(each.partition("=")[::2] for each in request.env)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        context.add_callback(process.terminate)
        printed: queue.Queue[tuple[str, bytes]] = queue.Queue()
        for name in ("stdout", "stderr"):
            arguments = (getattr(process, name), name, printed)
            threading.Thread(target=_forward, args=arguments, daemon=True).start()
        response: Any = language_pb2.RunPluginResponse
        open_streams = 2
        while open_streams:
            name, data = printed.get()
            if data:
                yield response(**{name: data})
            else:
                open_streams -= 1
        yield response(exitcode=process.wait())


def _forward(stream: Any, name: str, printed: queue.Queue[tuple[str, bytes]]) -> None:
    while data := stream.read1(65536):
        printed.put((name, data))
    printed.put((name, b""))


def main() -> None:
    """Serve until the engine ends."""
    serve(lambda to: language_pb2_grpc.add_LanguageRuntimeServicer_to_server(Host(), to))
