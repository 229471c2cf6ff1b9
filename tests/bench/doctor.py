"""What `railweld doctor` costs against `grep -P` with all patterns of the catalogue in one.

    python -m tests.bench.doctor [MB ...]        default: 64

The log is made of what training jobs print: NCCL INFO lines, steps, kernel lines, and one line in
2,000 that the catalogue knows. Each program reads the same file in a process of its own; grep runs
with `LC_ALL=C`, with and without `-i` (the catalogue ignores case).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

BIN = Path(sys.executable).parent
GOAL = 3.0

HEALTHY = (
    "gpu{n}:1515:1528 [{g}] NCCL INFO Channel {c:02}/24 : 0 1 2 3 4 5 6 7",
    "gpu{n}:1515:1529 [{g}] NCCL INFO Trees [0] -1/-1/-1->1->0 [1] -1/-1/-1->1->0 [2] 0/-1/-1->1",
    "gpu{n}:1515:1535 [{g}] NCCL INFO Channel {c:02}/0 : 1[1] -> 0[0] via NET/IB/{g}/GDRDMA",
    "[2026-11-30 02:{m:02}:25,123] [INFO] [rank {g}] step {c} loss 2.7182818 lr 3e-4 142 tokens/s",
    "Nov 30 02:{m:02}:25 gpu{n} kernel: mlx5_core 0000:5c:00.0 rail1: Link up",
    "Nov 30 02:{m:02}:25 gpu{n} systemd[1]: Started Session {c} of User ops.",
    "I1130 02:{m:02}:25.123456    1234 kubelet.go:2410] \"SyncLoop (PLEG): event\" pod=\"a/b\"",
    " 42%|████▏     | {c}/1000 [02:{m:02}<03:11,  1.42s/it, loss=2.71, grad_norm=0.9]",
)  # fmt: skip


class Cost(NamedTuple):
    """What one process took."""

    wall: float
    cpu: float
    mib: float
    lines: int


def write_log(path: Path, size: int) -> None:
    """Write a log of `size` bytes; the same every time."""
    from railweld.doctor.catalogue import load  # noqa: PLC0415 - see `elsewhere`

    dice = random.Random(7)  # noqa: S311 - a log, not a secret
    known = [text for entry in load() for text in entry.samples if text.count("\n") == 0]
    block = []
    for number in range(100_000):
        line = known[number // 2000 % len(known)] if number % 2000 == 1999 else dice.choice(HEALTHY)
        values = {"n": number % 16, "g": number % 8, "c": number % 24, "m": number // 4000 % 60}
        block.append(line.format(**values) if line in HEALTHY else line)
    text = ("\n".join(block) + "\n").encode()
    with path.open("wb") as stream:
        for _ in range(size // len(text)):
            stream.write(text)
        stream.write(text[: size % len(text)])


def measure(command: list[str], locale: str = "C.UTF-8") -> Cost:
    """Run a command and read its own usage from the kernel."""
    started = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": locale}
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        sys.exit(f"{command[0]} failed")
    return Cost(
        time.monotonic() - started,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
        output.count(b"\n"),
    )


def alternation() -> str:
    """All patterns of the catalogue as one for grep; names of groups may not repeat there."""
    from railweld.doctor.catalogue import load  # noqa: PLC0415 - see `elsewhere`

    patterns = [pattern for entry in load() for pattern in entry.patterns]
    return "|".join(f"(?:{each.replace('(?P<subject>', '(?:')})" for each in patterns)


T = TypeVar("T")


def elsewhere(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a process of its own: a child's peak memory is at least its parent's."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main(sizes: list[int]) -> None:
    """Print one row per program and size."""
    pattern = elsewhere(alternation)
    print(f"{len(pattern)} characters, {pattern.count('|') + 1} alternatives")
    print(
        f"{'MB':>6} {'what':<22} {'wall s':>8} {'cpu s':>8} {'MB/s cpu':>9} {'MiB':>6} {'ratio':>6}"
    )
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "job.log"
            elsewhere(write_log, path, size * 1_000_000)
            rows = {
                "grep -aP": measure(["grep", "-aP", "--", pattern, str(path)], "C"),
                "grep -aiP": measure(["grep", "-aiP", "--", pattern, str(path)], "C"),
                "railweld doctor": measure([str(BIN / "railweld"), "doctor", str(path)]),
            }
        base = rows["grep -aP"].cpu
        for what, cost in rows.items():
            print(
                f"{size:>6} {what:<22} {cost.wall:>8.2f} {cost.cpu:>8.2f} {size / cost.cpu:>9.0f} "
                f"{cost.mib:>6.0f} {cost.cpu / base:>6.2f}"
            )
    print(f"goal: at most {GOAL:g} times `grep -aP`, memory that does not grow")


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [64])
