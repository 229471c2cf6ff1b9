from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def locks(plugin: Callable[[str, str], ModuleType]) -> ModuleType:
    return plugin("module_utils", "railweld_locks")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/lock-frontend").touch()
    (tmp_path / "proc").symlink_to("/proc")
    return tmp_path


@pytest.fixture
def holder(root: Path) -> Iterator[int]:
    """Another process that holds dpkg's frontend lock."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        with (root / "var/lib/dpkg/lock-frontend").open("w") as handle:
            fcntl.lockf(handle, fcntl.LOCK_EX)
            os.write(tell, b"x")
            signal.pause()
    os.read(ready, 1)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_free_lock_has_no_holder(locks: ModuleType, root: Path) -> None:
    assert locks.any_lock_holder(root) is None
    assert locks.wait_for_locks(60, root)[0] is None


def test_the_holder_is_named_with_process_and_file(
    locks: ModuleType, root: Path, holder: int
) -> None:
    found = locks.any_lock_holder(root)
    assert f"pid {holder}" in found
    assert "/var/lib/dpkg/lock-frontend" in found


def test_waiting_ends_with_the_holders_name_when_time_runs_out(
    locks: ModuleType, root: Path, holder: int
) -> None:
    now = iter(range(1000))
    found, waited = locks.wait_for_locks(5, root, clock=lambda: next(now), sleep=lambda _: None)
    assert f"pid {holder}" in found
    assert waited >= 5


def test_waiting_also_ends_only_when_nobody_else_is_at_work(locks: ModuleType, root: Path) -> None:
    at_work = iter(["apt-daily-upgrade.service", "apt-daily-upgrade.service", None])
    naps: list[float] = []
    found, _ = locks.wait_for_locks(
        60, root, clock=lambda: float(len(naps)), sleep=naps.append, busy=lambda: next(at_work)
    )
    assert found is None
    assert len(naps) == 2


def test_waiting_goes_on_until_the_lock_is_free(locks: ModuleType, root: Path, holder: int) -> None:
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            os.kill(holder, signal.SIGKILL)
            os.waitid(os.P_PID, holder, os.WEXITED | os.WNOWAIT)

    found, _ = locks.wait_for_locks(60, root, clock=lambda: float(len(naps)), sleep=nap)
    assert found is None
    assert len(naps) == 3
