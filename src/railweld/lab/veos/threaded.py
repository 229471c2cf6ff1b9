"""Switches for callers that have no event loop, such as netmiko."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from railweld.lab.veos.server import VirtualSwitch


@contextmanager
def serving(*switches: VirtualSwitch) -> Iterator[tuple[VirtualSwitch, ...]]:
    """Serve the switches from a thread of their own while the block runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="veos", daemon=True)
    thread.start()
    try:
        for switch in switches:
            asyncio.run_coroutine_threadsafe(switch.start(), loop).result(30)
        yield switches
    finally:
        for switch in switches:
            asyncio.run_coroutine_threadsafe(switch.stop(), loop).result(30)
        asyncio.run_coroutine_threadsafe(_drain(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _drain() -> None:
    """Let every task of the loop end before the loop does."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
