"""Log files as a stream of blocks: plain or compressed, of any size, whatever is in them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

#: Read at a time. Memory does not grow with a file's size, only with this.
BLOCK: Final = 4 * 1024 * 1024
_OPENERS: Final[Mapping[bytes, Callable[[io.BufferedIOBase], io.BufferedIOBase]]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lambda stream: lzma.open(cast("IO[bytes]", stream)),  # noqa: SIM115 - the caller closes it
}
#: Formats that are not text and have a reader of their own.
_OTHERS: Final = {
    b"\x28\xb5\x2f\xfd": "zstd: zstd -dc {path} | railweld doctor -",
    b"LPKSHHRH": "a systemd journal: journalctl --file {path} | railweld doctor -",
    b"PK\x03\x04": "a zip archive: unpack it and give its files",
    b"\x7fELF": "a program, not a log",
    b"\xff\xfe": "UTF-16: iconv -f UTF-16 -t UTF-8 {path} | railweld doctor -",
    b"\xfe\xff": "UTF-16: iconv -f UTF-16 -t UTF-8 {path} | railweld doctor -",
}
STDIN: Final = "-"


@dataclass(frozen=True)
class Source:
    """One input: a file or standard input, and the name that evidence shows."""

    path: str
    name: str


class UnreadableError(Exception):
    """A source cannot be read, or not to its end; the text says why and what to do."""


def expand(path: Path) -> list[Source]:
    """A file, or every file of a folder in the order of their names.

    Raises:
        UnreadableError: nothing is there, or it is neither file nor folder.
    """
    try:
        if path.is_dir():
            files = sorted(each for each in path.rglob("*") if each.is_file())
            if not files:
                raise UnreadableError(f"{path}: found an empty folder, expected log files")
            return [Source(str(each), str(each)) for each in files]
        if not path.exists():
            raise UnreadableError(f"{path}: no such file (see: ls -l {path.parent})")
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from error
    # A pipe such as <(command) is as good as a file.
    return [Source(str(path), str(path))]


def blocks(source: Source) -> Iterator[bytes]:
    """The content of a source, decompressed.

    Raises:
        UnreadableError: also in the middle, where a file ends too early; what came before stands.
    """
    try:
        with _open(source) as stream:
            # One read at a time: what a damaged archive gives before its end is not lost.
            while block := stream.read1(BLOCK):
                yield block
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UnreadableError(
            f"{source.name}: compressed data ends early or is damaged ({error}); what comes before "
            "it was read"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        hint = ". Fix: run as a user who may read it" if isinstance(error, PermissionError) else ""
        raise UnreadableError(f"{source.name}: cannot be read: {reason}{hint}") from error


def _open(source: Source) -> io.BufferedIOBase:
    if source.path == STDIN:
        stream = cast("io.BufferedReader", sys.stdin.buffer)
    else:
        stream = Path(source.path).open("rb")  # noqa: SIM115 - the caller closes it
    start = stream.peek(16)[:16]
    for magic, hint in _OTHERS.items():
        if start.startswith(magic):
            raise UnreadableError(
                f"{source.name}: found no text but {hint.format(path=source.path)}"
            )
    for magic, opener in _OPENERS.items():
        if start.startswith(magic):
            return opener(stream)
    return stream
