"""Who gets through to the daemon before it has shown a job's key."""

from __future__ import annotations

import asyncio

import pytest

from railweld.bridge import hub
from railweld.bridge.hub import Crew, Hub


def test_one_address_that_holds_many_connections_keeps_no_other_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "STRANGERS", 8)
    monkeypatch.setattr(hub, "CROWD", 4)
    monkeypatch.setattr(hub, "EACH", 2)

    async def nobody(_job: str) -> tuple[bytes, Crew] | None:
        return None

    async def play() -> None:
        listener = Hub(nobody)
        port = await listener.start("0.0.0.0", 0)  # noqa: S104 - all of the loopback's addresses
        held = []

        async def is_greeted(address: str) -> bool:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(address, 0)
            )
            held.append(writer)
            return await reader.read(1) != b""

        assert [await is_greeted("127.0.0.1") for _ in range(6)] == [True] * 4 + [False] * 2
        assert [await is_greeted("127.0.0.2") for _ in range(3)] == [True] * 2 + [False]
        assert [await is_greeted("127.0.0.3") for _ in range(2)] == [True] * 2
        assert not await is_greeted("127.0.0.4")
        # Who goes makes room.
        for writer in held[:4]:
            writer.close()
        while listener._strangers["127.0.0.1"]:
            await asyncio.sleep(0)
        assert await is_greeted("127.0.0.1")
        await listener.stop()
        for writer in held:
            writer.close()

    asyncio.run(asyncio.wait_for(play(), 60))
