"""How a plugin of the Pulumi engine lives: it serves on the loopback and ends with the engine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent import futures
from typing import Any, Final

import grpc

#: How long an engine that was killed is outlived, in seconds.
_LOOK_SECONDS: Final = 2


def serve(register: Callable[[Any], None]) -> None:
    """Serve what `register` adds to a gRPC server, until the engine ends or says so.

    The engine reads the port from the first line of standard output.
    """
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop(0))
    engine = os.getppid()
    # An engine that was killed cannot say goodbye.
    while server.wait_for_termination(timeout=_LOOK_SECONDS) and os.getppid() == engine:
        pass
    server.stop(0)
