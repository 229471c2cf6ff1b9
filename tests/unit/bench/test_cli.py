"""The command on the real Ansible, with a program that prints what nccl-tests prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from railweld.site import load_site

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "fixtures" / "nccl_tests"
RAILWELD = Path(sys.executable).parent / "railweld"


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `railweld bench --single-node` with a program made of the given shell lines."""

    def call(script: str, *options: str) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "all_reduce_perf"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return subprocess.run(
            [
                *(RAILWELD, "bench", "-i", ROOT / "inventories" / "example-a100"),
                *("-e", "ansible_connection=local"),
                *("-e", f"ansible_python_interpreter={sys.executable}"),
                *("--single-node", "--programs", tmp_path, *options),
            ],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SECRET_OF_CALLER": "hunter2"},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


PRINT = f"cat {FIXTURES}/h200x2-2.19.6.txt"


def test_a_fast_node_passes_and_its_figures_are_kept(
    bench: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    arguments = tmp_path / "arguments"
    done = bench(
        f'echo "$@" > {arguments}; {PRINT}',
        *("--nodes", "gpu01", "--gate", "0.9", "--max-bytes", "512M"),
        *("--baseline", "save", "--json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["nodes"], run["busbw_gb_per_s"]) == (["gpu01"], 312.45)
    assert run["needed_gb_per_s"] == pytest.approx(270)
    assert "-g 8" in arguments.read_text()
    kept = next(tmp_path.rglob("bench-baseline.json")).read_text()
    assert json.loads(kept)["runs"]["gpu01"]["busbw"] == 312.45
    assert "hunter2" not in kept + done.stdout


def test_every_pair_is_measured_and_the_slow_link_is_named(tmp_path: Path) -> None:
    """mpirun is a program that prints what nccl-tests prints; one pair of nodes gets little."""
    site = load_site([str(ROOT / "inventories" / "example-a100")])
    one, two = (f"{site.host(name).address}:8" for name in ("gpu01", "gpu03"))
    started = tmp_path / "started"
    program = tmp_path / "bin" / "mpirun"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {started}\n'
        f"case \"$*\" in *' {one},{two} '*|*' {two},{one} '*) "
        f"sed 's/ 312.45/  31.24/g' {FIXTURES}/h200x2-2.19.6.txt ;; *) {PRINT} ;; esac\n"
    )
    program.chmod(0o755)
    done = subprocess.run(
        [
            *(RAILWELD, "bench", "-i", ROOT / "inventories" / "example-a100"),
            *("-e", "ansible_connection=local"),
            *("-e", f"ansible_python_interpreter={sys.executable}"),
            *("--pairs", "--nodes", "gpu01,gpu02,gpu03", "--max-bytes", "512M", "--json"),
        ],
        cwd=ROOT,
        env={"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert {frozenset(run["nodes"]) for run in found["runs"]} == {
        frozenset(pair) for pair in combinations(("gpu01", "gpu02", "gpu03"), 2)
    }
    assert found["slow_nodes"] == []
    assert [set(pair) for pair in found["slow_links"]] == [{"gpu01", "gpu03"}]
    lines = started.read_text().splitlines()
    assert len(lines) == 3
    assert all("-np 16" in line and "-x NCCL_IB_TC=" in line for line in lines)


def test_a_slow_node_fails_with_what_was_needed(
    bench: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = bench(PRINT.replace("cat", "sed 's/ 312.45/  31.24/g'"), "--nodes", "gpu02")
    assert done.returncode == 1
    assert "gpu02: bench.busbw: found 31.24 GB/s" in done.stdout
    assert "at least 210.00 GB/s" in done.stdout


@pytest.mark.parametrize(
    ("script", "options", "reason"),
    [
        ("echo 'gpu: Test CUDA failure common.cu:1 out of memory'; exit 2", (), "out of memory"),
        ("sleep 60", ("--timeout", "1"), "stopped on the node"),
        (f"{PRINT} | head -n 20", (), "exit code 0"),
    ],
)
def test_a_run_without_an_end_is_unknown_and_says_why(
    bench: Callable[..., subprocess.CompletedProcess[str]],
    script: str,
    options: tuple[str, ...],
    reason: str,
) -> None:
    done = bench(script, "--nodes", "gpu03", *options)
    assert done.returncode == 3, done.stdout + done.stderr
    assert reason in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--nodes", "gpu001"), "found gpu001, expected GPU nodes"),
        (("--pairs",), "found --single-node and --pairs"),
        (("--max-bytes", "8GB"), "expected bytes such as"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(
    bench: Callable[..., subprocess.CompletedProcess[str]],
    options: tuple[str, ...],
    words: str,
    tmp_path: Path,
) -> None:
    done = bench(f"touch {tmp_path}/ran; {PRINT}", *options)
    assert done.returncode == 64
    assert words in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--launcher", "bridge"), "--launcher bridge: found no --user"),
        (("--launcher", "bridge", "--user", "root"), "--user: found 'root'"),
        (("--user", "alice"), "--user: found --launcher mpirun, expected bridge"),
        (("--image", "r.example/a:1"), "--image: found --launcher mpirun, expected bridge"),
    ],
)
def test_options_of_the_bridge_go_together(
    bench: Callable[..., subprocess.CompletedProcess[str]], options: tuple[str, ...], sentence: str
) -> None:
    done = bench(PRINT, *options)
    assert (done.returncode, done.stdout) == (64, "")
    assert sentence in done.stderr
    assert "Fix: --launcher bridge" in done.stderr or "Fix: --user" in done.stderr
