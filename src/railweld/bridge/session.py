"""One client: the batch step of a job, over the Unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from railweld.bridge.pod import wire

#: Words that a client has not read yet; more of the bridge's own lines are left out, and counted.
UNREAD: Final = 256 * 1024


class Session:
    """What is sent to a client; frames it sends are read by the server."""

    def __init__(self, writer: asyncio.StreamWriter, uid: int) -> None:
        self.uid = uid
        self._writer = writer
        #: Lines that were left out, since the client did not read.
        self._left_out = 0
        #: (node, stream) to the offset up to which the output is in the file.
        self.written: dict[tuple[int, int], int] = {}
        #: Node, stream, how much was printed there in all, and its name: for the batch step to say
        #: what of it is not in the file.
        self.printed: list[tuple[int, int, int, str]] = []

    def take_written(self, rows: Iterable[Any]) -> list[tuple[int, int, int]]:
        """Note how far the client came; returns (node, stream, offset) of what is new."""
        news = []
        for row in rows:
            if (
                isinstance(row, list)
                and len(row) == 3
                and all(isinstance(each, int) and each >= 0 for each in row)
            ):
                node, stream, offset = row
                if offset > self.written.get((node, stream), -1):
                    self.written[node, stream] = offset
                    news.append((node, stream, offset))
        return news

    @property
    def open(self) -> bool:
        """Whether the client can still be told something."""
        return not self._writer.is_closing()

    def send(self, **content: Any) -> None:
        """Tell the client something."""
        if self.open:
            self._writer.write(wire.control(**content))

    def note(self, text: str) -> None:
        """A line of the bridge's own in the job's output.

        Lines come from pods, too, and a client may be stopped: what it does not read does not pile
        up here.
        """
        if self._unread() > UNREAD:
            self._left_out += 1
            return
        if self._left_out:
            self.send(event="note", text=f"{self._left_out} lines of the bridge were left out")
            self._left_out = 0
        self.send(event="note", text=text)

    def _unread(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    def attached(self, created: str | None, labels: Mapping[int, str] | None) -> None:
        """The job is known now; with several nodes' output, how to mark their lines."""
        self.send(
            event="attached",
            created=created,
            labels=None if labels is None else {str(k): v for k, v in labels.items()},
        )

    async def output(self, piece: wire.Output) -> None:
        """Hand output on; waits while the client cannot take more, before and after.

        Before, since many agents hand theirs on, and each would leave a piece here.
        """
        if self.open:
            await self._writer.drain()
        if self.open:
            self._writer.write(wire.frame(wire.DATA, wire.output(piece)))
            await self._writer.drain()

    async def exit(self, status: int) -> None:
        """The batch step may end."""
        self.send(event="exit", status=status, printed=self.printed)
        await self._writer.drain()

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
