"""The commands of runs between nodes, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from railweld.bench.launch import Options, plan_nodes
from railweld.errors import RailweldError
from railweld.site import Site, load_site

EXAMPLE = "inventories/example-a100"
NODES = ("gpu01", "gpu02")
SLURM = Options(launcher="slurm", timeout_s=90)


def site(variables: Mapping[str, Any] | None = None) -> Site:
    return load_site([EXAMPLE], dict(variables or {}))


def after(argv: tuple[str, ...], word: str) -> str:
    return argv[argv.index(word) + 1]


def test_mpirun_starts_a_process_per_gpu_from_the_first_node() -> None:
    example = site()
    planned = plan_nodes(example, NODES, Options(max_bytes="2G"), largest_only=True)
    addresses = [example.host(name).address for name in NODES]
    assert planned.host == "gpu01"
    assert planned.argv[:4] == ("timeout", "--kill-after=10", "600", "mpirun")
    assert after(planned.argv, "-np") == "16"
    assert after(planned.argv, "--host") == ",".join(f"{each}:8" for each in addresses)
    assert (after(planned.argv, "-b"), after(planned.argv, "-e")) == ("2G", "2G")
    # Four rails of 100 Gb/s.
    assert planned.limit.gb_per_s == 50.0


def test_the_profile_goes_along_and_nothing_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    argv = plan_nodes(site(), NODES, Options()).argv
    given = [argv[n + 1] for n, word in enumerate(argv) if word == "-x"]
    assert "NCCL_IB_TC=104" in given
    assert not any("NCCL_IB_DISABLE" in each for each in given)


def test_slurm_starts_on_the_head_on_exactly_these_nodes() -> None:
    plain = {"name": "gpu", "group": "gpu_nodes", "bridge": False}
    planned = plan_nodes(site({"railweld_partitions": [plain]}), NODES, SLURM)
    assert planned.host == "head1"
    words = {"--nodes=2", "--nodelist=gpu01,gpu02", "--ntasks-per-node=8", "--export=NONE"}
    assert words <= set(planned.argv)
    # A limit of its own, in whole minutes beyond the run's.
    assert "--time=2" in planned.argv
    assert "NCCL_IB_TC=104" in planned.argv


def test_slurm_is_refused_where_jobs_are_pods() -> None:
    sentence = r"gpu01, gpu02: found nodes whose jobs are pods.* Fix: --launcher bridge --user NAME"
    with pytest.raises(RailweldError, match=sentence):
        plan_nodes(site(), NODES, SLURM)


def test_nodes_with_different_numbers_of_gpus_are_no_run() -> None:
    example = site()
    hosts = dict(example.hosts)
    gpu = hosts["gpu02"].gpu
    assert gpu is not None
    four = gpu.model_copy(update={"count": 4})
    hosts["gpu02"] = hosts["gpu02"].model_copy(update={"gpu": four})
    with pytest.raises(RailweldError, match="gpu01 8, gpu02 4"):
        plan_nodes(example.model_copy(update={"hosts": hosts}), NODES, Options())
