"""The command as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
FAULT = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


def doctor(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(BIN / "railweld"), "doctor", *arguments], input=stdin, capture_output=True, check=False
    )


def test_standard_input_is_read_as_it_comes() -> None:
    done = doctor("-", stdin=FAULT.encode())
    assert done.returncode == 1
    assert b"First cause: A GPU's memory is used up" in done.stdout
    assert b"<stdin>:1:" in done.stdout


def test_file_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(FAULT)
    done = doctor("--json", str(tmp_path / "nowhere"), str(log))
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["first_cause"] == "cuda-oom"
    assert "nowhere" in found["not_looked_at"][0]


def test_nothing_found_in_what_could_not_all_be_read_is_not_ok(tmp_path: Path) -> None:
    assert doctor(str(tmp_path / "nowhere")).returncode == 3


def test_nothing_known_found_is_ok() -> None:
    assert doctor("-", stdin=b"all is well\n").returncode == 0


def test_without_a_target_the_command_says_what_it_wants() -> None:
    done = doctor()
    assert done.returncode == 64
    assert b"expected log files" in done.stderr


def test_wrong_catalogue_is_refused_before_a_log_is_opened(tmp_path: Path) -> None:
    own = tmp_path / "own.yml"
    own.write_text("version: 1\nentries:\n  - id: Bad Id\n")
    done = doctor("--catalogue", str(own), "-", stdin=FAULT.encode())
    assert done.returncode == 64
    assert b"own.yml:3" in done.stderr
    assert done.stdout == b""


def test_list_names_every_entry() -> None:
    done = doctor("--list")
    assert done.returncode == 0
    assert b"socket-fallback" in done.stdout
