"""The stand-in for nccl-tests: it prints what the product reads, and the figures of the fabric."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from railweld.bench.build import Build
from railweld.bench.results import Result, parse
from railweld.lab.plan import plan_lab
from railweld.lab.vendor import mpi
from railweld.lab.vendor.programs import nccl_tests

ROOT = Path(__file__).parents[4]
RECORDED = ROOT / "tests/fixtures/nccl_tests/h200x2-2.19.6.txt"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def gpu1(a100_node: Any) -> Any:
    """The lab's gpu1 with NCCL 2.14.3."""
    fabric = plan_lab([str(ROOT / "inventories/lab")]).fabric
    a100_node.write("etc/railweld-lab", "lab gpu1 a100x8\n")
    a100_node.write("var/lib/railweld-lab/fabric.json", json.dumps(fabric))
    a100_node.write(f"{LIBRARIES}/libnccl.so.2.14.3", "")
    (a100_node.root / LIBRARIES / "libnccl.so.2").symlink_to("libnccl.so.2.14.3")
    return a100_node


@pytest.fixture
def ask(gpu1: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the program as mpirun would on these nodes, or alone."""

    def run(*options: str, nodes: tuple[str, ...] = (), code: int = 0) -> Result:
        fabric = json.loads((gpu1.root / "var/lib/railweld-lab/fabric.json").read_text())
        hosts = ",".join(f"{fabric[node]['address']}:8" for node in nodes)
        monkeypatch.setenv(nccl_tests.FROM_MPIRUN, hosts)
        monkeypatch.setenv(nccl_tests.HEADERS, "21403")
        argv = [*("-b", "8", "-e", "8G", "-f", "2"), *options]
        assert nccl_tests.all_reduce(argv, {"version": "2.19.6"}, gpu1.machine) == code
        said = capsys.readouterr()
        return parse(said.out + said.err)

    return run


def test_it_prints_the_lines_of_the_real_program(
    ask: Any, capsys: pytest.CaptureFixture[str], gpu1: Any
) -> None:
    real = RECORDED.read_text().splitlines()
    assert nccl_tests.all_reduce(["-g", "8"], {"version": "2.19.6"}, gpu1.machine) == 0
    mine = capsys.readouterr().out.splitlines()
    assert [line.split() for line in mine if "redop" in line or "(elements)" in line] == [
        line.split() for line in real if "redop" in line or "(elements)" in line
    ]
    row = next(line for line in mine if line.strip()[:1].isdigit())
    assert len(row) == len(next(line for line in real if line.strip()[:1].isdigit()))
    assert [line for line in mine if "Out of bounds" in line or "concluded" in line] == [
        line for line in real if "Out of bounds" in line or "concluded" in line
    ]
    assert ask("-g", "8").complete


def test_a_run_inside_the_node_reaches_its_share_of_nvlink(ask: Any) -> None:
    result = ask("-g", "8")
    assert (result.tests_version, result.nccl, result.program) == (
        "2.19.6", "2.14.3", "all_reduce_perf",
    )  # fmt: skip
    assert len(result.ranks) == 8
    assert result.hosts == ("gpu1",)
    assert result.largest.size == 8 << 30
    assert result.largest.out_of_place.busbw == pytest.approx(12 * 25 * 0.78, rel=0.01)
    assert result.wrong == 0


def test_mpirun_on_one_node_has_a_rank_per_process(ask: Any) -> None:
    result = ask("-g", "1", nodes=("gpu1",))
    assert (len(result.ranks), result.hosts) == (8, ("gpu1",))
    assert result.largest.out_of_place.busbw == pytest.approx(12 * 25 * 0.78, rel=0.01)


def test_nodes_reach_their_share_of_the_rails_until_a_link_is_planted_or_lost(
    ask: Any, gpu1: Any
) -> None:
    def rate(*nodes: str) -> float:
        result = ask("-g", "1", nodes=nodes)
        assert result.hosts == nodes
        assert len(result.ranks) == 8 * len(nodes)
        assert result.largest.size == 8 << 30
        return float(result.largest.out_of_place.busbw)

    full = 400 / 8 * 0.85
    assert rate("gpu1", "gpu2", "gpu3") == pytest.approx(full, rel=0.01)
    gpu1.write(nccl_tests.SLOW_LINKS.lstrip("/"), '{"gpu1 gpu3": 0.4}')
    assert rate("gpu1", "gpu2") == pytest.approx(full, rel=0.01)
    assert rate("gpu1", "gpu3") == pytest.approx(full * 0.4, rel=0.01)
    gpu1.fault(hca_down=["mlx5_3"], link_rate={"mlx5_0": 25})
    assert rate("gpu1", "gpu2") == pytest.approx(full * 225 / 400, rel=0.01)


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("gpu", 1, "Invalid number of GPUs: 8 requested but only 7 were found"),
        ("driver", 1, "no CUDA-capable device"),
        ("nccl", 127, "libnccl.so.2: cannot open shared object file"),
    ],
)
def test_what_is_missing_is_said_in_the_programs_words(
    ask: Any, gpu1: Any, fault: str, code: int, words: str
) -> None:
    if fault == "gpu":
        gpu1.fault(gpu_missing=1)
    elif fault == "driver":
        (gpu1.root / "sys/module/nvidia/version").unlink()
    else:
        (gpu1.root / LIBRARIES / "libnccl.so.2").unlink()
    result = ask("-g", "8", code=code)
    assert not result.complete
    assert any(words in line for line in result.errors)


def test_mpirun_hands_on_hosts_and_variables_and_names_a_node_that_is_gone(
    gpu1: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$NCCL_IB_TC ${nccl_tests.FROM_MPIRUN} $*"\n')
    program.chmod(0o755)
    options = ["--allow-run-as-root", "-np", "8", "--map-by", "ppr:8:node", "--bind-to", "numa"]
    command = [*options, "-x", "NCCL_IB_TC=104", str(program), "-g", "1"]
    assert nccl_tests.mpirun(command, {}, gpu1.machine) == 0
    assert capfd.readouterr().out == "104  -g 1\n"
    assert nccl_tests.mpirun(["--host", "192.0.2.1:8", str(program)], {}, gpu1.machine) == 1
    assert parse(capfd.readouterr().err).errors
    assert nccl_tests.mpirun(["-np", "1", "/none"], {}, gpu1.machine) == 134


def test_the_role_can_build_the_source_with_a_real_make(tmp_path: Path) -> None:
    assert hashlib.sha256(mpi.source()).digest() == hashlib.sha256(mpi.source()).digest()
    with tarfile.open(fileobj=io.BytesIO(mpi.source())) as archive:
        archive.extractall(tmp_path, filter="data")
    header, nvcc = tmp_path / "nccl.h", tmp_path / "nvcc"
    header.write_text("#define NCCL_VERSION_CODE 21403\n")
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    (tmp_path / "mpi/include").mkdir(parents=True)
    (tmp_path / "mpi/include/mpi.h").touch()
    build = Build(
        commit="c", archive="a", cuda="12.1", nvcc="12.1.105", nccl="2.14.3",
        model="A100-SXM4-80GB", gpus=8, mpi_home=str(tmp_path / "mpi"), jobs=2,
    )  # fmt: skip
    for number, command in enumerate(build.commands):
        here = [
            word.replace("/opt/railweld/nccl-tests/src", str(tmp_path / mpi.FOLDER))
            for word in command
        ]
        subprocess.run(
            [*here, f"NVCC={nvcc}", "CXX=true", f"NCCL_H={header}"],
            check=True,
            capture_output=True,
        )
        suffix = ("", "_mpi")[number]
        folder = tmp_path / mpi.FOLDER / ("plain", "mpi")[number]
        built = folder / f"all_reduce_perf{suffix}"
        head = built.read_bytes().split(b"\n", 2)[:2]
        assert head[0] == b"#!/bin/sh"
        assert b"NCCL_HEADERS=21403 exec" in head[1]
        # Without a lab around it, it runs and finds no NCCL.
        done = subprocess.run([built, "-g", "1"], check=False, capture_output=True, text=True)
        assert done.returncode == 127, done.stderr
        assert "libnccl.so.2" in done.stderr


def test_the_defaults_of_the_role_name_what_the_source_stands_for() -> None:
    defaults = (ROOT / "roles/nccl_tests/defaults/main.yml").read_text()
    assert mpi.FOLDER.removeprefix("nccl-tests-") in defaults
    assert f"release {mpi.VERSION}" in defaults
    assert {deb.name for deb in mpi.packages()} | {"make"} == {
        "g++", "libopenmpi-dev", "make", "openmpi-bin",
    }  # fmt: skip
