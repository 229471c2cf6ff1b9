"""The stand-in of Open MPI in jobs' pods: on real agents, through their srun."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from railweld.bench.results import parse
from railweld.images.catalog import Entry, catalog
from railweld.images.make import build
from railweld.lab.vendor.programs import pod_mpi
from railweld.site import load_site
from tests.unit.bridge import test_agent as agents

LAB = str(Path(__file__).parents[4] / "inventories" / "lab")
PROGRAMS = {"mpirun": "mpirun", "orted": "orted", "all_reduce_perf_mpi": "all_reduce"}
MAIN = """\
#!{python}
import sys
sys.path.insert(0, {source!r})
from railweld.lab.vendor.programs.machine import Machine
from railweld.lab.vendor.programs.pod_mpi import {function}
sys.exit({function}(sys.argv[1:], {{"version": "2.19.6"}}, Machine({root!r})))
"""
PROFILE = "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"


def measured(
    tmp_path: Path, start: str, *, gpus: int = 2, first: str = "n0", **variables: str
) -> tuple[int, str]:
    """Status and output of a job of two nodes with two GPUs each; the first has this name."""
    (image,) = (
        each for each in catalog(load_site([LAB]), stand_ins=True) if each.name == "cuda_test"
    )
    fabric = json.loads(image.texts[pod_mpi.FABRIC])
    assert set(fabric) >= {"gpu1", "gpu2"}
    fabric = {first: fabric["gpu1"], "n1": fabric["gpu2"]}
    root = tmp_path / "root"
    (root / "dev/infiniband").mkdir(parents=True)
    file = root / pod_mpi.FABRIC.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(fabric))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, function in PROGRAMS.items():
        text = MAIN.format(
            python=sys.executable, source=str(agents.SRC), function=function, root=str(root)
        )
        (programs / name).write_text(text)
    (programs / "srun").write_text(f"{agents.SHIM}\n")
    for path in programs.iterdir():
        path.chmod(0o755)
    given = {
        "SLURM_JOBID": "7", "SLURM_NODELIST": f"{first},n1", "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_NTASKS": "4", "NVIDIA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))), **variables,
    }  # fmt: skip
    exports = "".join(f"export {name}='{value}'\n" for name, value in given.items())
    script = f"{exports}export PATH={programs}:$PATH\n{start}"

    async def play() -> tuple[int, str]:
        crew = agents.Crew(2)
        async with agents.hub(crew) as (_, port), asyncio.timeout(120):
            where = agents.folder(tmp_path, script, 2, "leader")
            plan = json.loads((where / "plan").read_text())
            (where / "plan").write_text(json.dumps({**plan, "nodes": [first, "n1"]}))
            pods = [await agents.agent(where, rank, port) for rank in (0, 1)]
            status, _ = [await pod.wait() for pod in pods]
        return status, crew.output[0].decode()

    return asyncio.run(play())


RUN = "mpirun -np 4 --map-by ppr:2:node --bind-to numa all_reduce_perf_mpi -b 1G -e 8G -f 2 -g 1"


def test_a_job_prints_the_fabric_of_its_nodes(tmp_path: Path) -> None:
    name, _, value = PROFILE.partition("=")
    status, output = measured(tmp_path, RUN, **{name: value})
    assert status == 0, output
    result = parse(output)
    assert result.complete
    assert result.hosts == ("n0", "n1")
    assert [rank.rank for rank in result.ranks] == [0, 1, 2, 3]
    # Four rails of 100 Gb/s, and the share of them that is reached.
    assert result.largest is not None
    assert result.largest.out_of_place.busbw == pytest.approx(50 * 0.85, rel=0.01)


def test_in_the_nodes_network_mpirun_is_the_daemon_of_its_own_node(tmp_path: Path) -> None:
    status, output = measured(tmp_path, RUN, first=socket.gethostname())
    assert status == 0, output
    assert parse(output).hosts == (socket.gethostname(), "n1")


def test_a_job_without_the_profile_is_slow(tmp_path: Path) -> None:
    status, output = measured(tmp_path, RUN)
    assert status == 0, output
    largest = parse(output).largest
    assert largest is not None
    assert largest.out_of_place.busbw == pytest.approx(10 / 8 * 0.85, rel=0.01)


def test_a_job_with_a_gpu_too_few_fails_as_mpirun_does(tmp_path: Path) -> None:
    status, output = measured(tmp_path, RUN, gpus=1)
    assert status == 1
    assert "Invalid number of GPUs: 2 requested but only 1 were found." in output
    assert "mpirun detected that one or more processes exited with non-zero status" in output


def test_a_daemon_that_does_not_start_is_complained_of(tmp_path: Path) -> None:
    status, output = measured(tmp_path, f"printf '#!/bin/sh\\nexit 9' >{tmp_path}/bin/orted\n{RUN}")
    assert status == 1
    assert "unable to reliably start one or more daemons" in output


def test_more_ranks_than_slots_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("JOBID", "7"), ("NODELIST", "n[0-1]"), ("TASKS_PER_NODE", "2(x2)")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    argv = ["-np", "5", "all_reduce_perf_mpi"]
    assert pod_mpi.mpirun(argv, {}, pod_mpi.Machine()) == 1
    assert "not enough slots" in capsys.readouterr().err


def test_slurms_lists_are_read() -> None:
    assert pod_mpi.hosts("gpu[1-2,04],head1") == ["gpu1", "gpu2", "gpu04", "head1"]
    assert pod_mpi.counts("8(x2),4") == [8, 8, 4]


def test_the_images_programs_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAILWELD_CACHE", str(tmp_path))
    entry = Entry(name="job", ref="r.example/job:1", vendor={"/usr/bin/mpirun": "pod_mpi.mpirun"})
    (archive,) = build([entry])
    with tarfile.open(archive) as outer:
        (name,) = (each for each in outer.getnames() if each.endswith("layer.tar"))
        layer = outer.extractfile(name)
        with tarfile.open(fileobj=layer) as inner:
            inner.extractall(tmp_path, filter="data")
    done = subprocess.run(
        [sys.executable, tmp_path / "usr/bin/mpirun", "-np", "2", "program"],
        env={}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "not enough slots" in done.stderr) == (1, True), done.stderr
    assert (tmp_path / "usr/bin/mpirun").stat().st_mode & 0o111
