"""The batch step's program, as slurmd starts it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from railweld.bridge import client

PROGRAM = Path(client.__file__)


def test_it_starts_in_less_than_a_tenth_of_a_second() -> None:
    """CPU time, which the load of the machine does not change; the best of five starts."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-IS", str(PROGRAM)], capture_output=True, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert (done.returncode, done.stderr[:13]) == (1, "bridge: usage")
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.1


def test_only_a_file_that_is_there_has_others_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w") as file:
        assert client.file_of(file.fileno()) == str(path)
        path.unlink()
        assert client.file_of(file.fileno()) is None
    with Path(os.devnull).open() as file:
        assert client.file_of(file.fileno()) is None
    assert client.file_of(9999) is None
