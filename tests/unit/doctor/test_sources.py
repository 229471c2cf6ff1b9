"""Log files of every form, and those that cannot be read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from railweld.doctor.sources import Source, UnreadableError, blocks, expand

TEXT = b"line one\nline two\n" * 1000


def content(path: Path) -> bytes:
    return b"".join(blocks(Source(str(path), path.name)))


@pytest.mark.parametrize(
    "packed",
    [TEXT, gzip.compress(TEXT), bz2.compress(TEXT), lzma.compress(TEXT),
     gzip.compress(TEXT[:9000]) + gzip.compress(TEXT[9000:])],
    ids=["plain", "gzip", "bzip2", "xz", "gzip-members"],
)  # fmt: skip
def test_content_is_unpacked_whatever_the_name_says(packed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_bytes(packed)
    assert content(path) == TEXT


@pytest.mark.parametrize(
    ("start", "word"),
    [
        (b"\x28\xb5\x2f\xfd", "zstd -dc"),
        (b"LPKSHHRH", "journalctl --file"),
        (b"PK\x03\x04", "zip"),
        (b"\xff\xfeh\x00", "iconv"),
        (b"\x7fELF", "program"),
    ],
)
def test_what_is_no_log_is_named_with_the_way_to_one(
    start: bytes, word: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.out"
    path.write_bytes(start + b"\x00" * 100)
    with pytest.raises(UnreadableError, match=word):
        content(path)


def test_damaged_archive_gives_what_comes_before(tmp_path: Path) -> None:
    path = tmp_path / "job.gz"
    path.write_bytes(gzip.compress(os.urandom(100_000))[:50_000])
    stream = blocks(Source(str(path), path.name))
    assert next(stream)
    with pytest.raises(UnreadableError, match="ends early"):
        list(stream)


def test_folder_is_its_files_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.log", "a.log", "deep/c.log"):
        (tmp_path / name).write_text("x")
    names = [source.name.rpartition("/")[2] for source in expand(tmp_path)]
    assert names == ["a.log", "b.log", "c.log"]


def test_missing_empty_and_forbidden_are_said(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no such file"):
        expand(tmp_path / "nowhere")
    with pytest.raises(UnreadableError, match="empty folder"):
        expand(tmp_path)


def test_file_that_vanishes_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot be read"):
        content(tmp_path / "gone")


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """64 MB of text and a line of 32 MB; the process may not hold either."""
    path = tmp_path / "job.log"
    line = b"gpu1:88:99 [0] NCCL INFO Channel 00/24 : 0 1 2 3 4 5 6 7\n"
    with path.open("wb") as stream:
        for _ in range(64):
            stream.write(line * (1_000_000 // len(line)))
        stream.write(b"x" * 32_000_000 + b"\nCUDA out of memory\n")
    program = (
        "import resource, sys\n"
        "from railweld.doctor.catalogue import load\n"
        "from railweld.doctor.diagnosis import Doctor\n"
        "from railweld.doctor.sources import Source\n"
        "doctor = Doctor(load())\n"
        "doctor.read(Source('/dev/null', 'warm up'))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "doctor.read(Source(sys.argv[1], 'job.log'))\n"
        "after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(after - before, [c.entry.id for c in doctor.diagnose().causes])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    grown, _, found = done.stdout.partition(" ")
    assert int(grown) < 28 * 1024, f"{grown} KiB"
    assert "cuda-oom" in found
