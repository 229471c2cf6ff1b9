"""How nccl-tests are built on a node, and when they have to be built again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from railweld.bench.build import answer, plan
from railweld.names import NCCL_TESTS_STAMP
from railweld.verify import registry
from railweld.verify.context import Context
from tests.unit.bench.made import PRINTED

SETTINGS = {"commit": "a0b82b2", "archive": "", "mpi_home": "/usr/lib/openmpi", "jobs": 4}


def settings(**changes: object) -> dict[str, object]:
    return {**SETTINGS, **changes}


def with_stamp(ctx: Context, stamp: object, **record: object) -> dict[str, Any]:
    content = stamp if isinstance(stamp, str) else json.dumps(stamp)
    return {
        **ctx.node,
        "files": {NCCL_TESTS_STAMP: {"content": content}},
        "records": {"nccl_tests": record},
    }


def test_commands_name_toolkit_architecture_and_mpi(observed: Callable[..., Context]) -> None:
    ctx = observed()
    planned = plan(ctx.node, ctx.host, SETTINGS)
    plain, mpi = planned["commands"]
    assert plain[:5] == ["make", "-C", "/opt/railweld/nccl-tests/src", "-j4", "src.build"]
    assert "CUDA_HOME=/usr/local/cuda-12.1" in plain
    assert "NVCC_GENCODE=-gencode=arch=compute_80,code=sm_80" in plain
    assert not [word for word in plain if "MPI" in word]
    assert {"MPI=1", "NAME_SUFFIX=_mpi", "MPI_HOME=/usr/lib/openmpi"} <= {*mpi}
    assert planned["questions"][0][-2:] == ["-g", "8"]
    assert planned["questions"][1][:4] == ["mpirun", "--allow-run-as-root", "-np", "1"]
    assert planned["programs"] == [
        "/opt/railweld/nccl-tests/bin/all_reduce_perf",
        "/opt/railweld/nccl-tests/bin/all_reduce_perf_mpi",
    ]


def test_without_mpi_there_is_one_kind(observed: Callable[..., Context]) -> None:
    ctx = observed()
    planned = plan(ctx.node, ctx.host, settings(mpi_home=""))
    assert [len(planned[key]) for key in ("commands", "questions", "programs", "folders")] == [
        1
    ] * 4


def test_an_unknown_model_is_left_to_the_makefile_and_mig_is_asked_alone(
    observed: Callable[..., Context],
) -> None:
    ctx = observed({"host.gpu.model": "Z900", "host.gpu.mig": "all-1g.10gb"})
    planned = plan(ctx.node, ctx.host, SETTINGS)
    assert not [word for word in planned["commands"][0] if word.startswith("NVCC_GENCODE")]
    assert planned["questions"][0][-2:] == ["-g", "1"]


def test_what_is_built_already_is_left_alone(observed: Callable[..., Context]) -> None:
    ctx = observed()
    stamp = plan(ctx.node, ctx.host, SETTINGS)["stamp"]
    assert plan(with_stamp(ctx, stamp, drifted=[]), ctx.host, SETTINGS)["is_built"]


@pytest.mark.parametrize(
    ("stamp", "changes", "drifted"),
    [
        ({"commit": "other"}, {}, []),
        ({"nvcc": "11.8.89"}, {}, []),
        ({"nccl": "2.28.9"}, {}, []),
        ({}, {"mpi_home": "/usr/mpi"}, []),
        ({}, {"archive": "f" * 64}, []),
        ({}, {}, ["/opt/railweld/nccl-tests/bin/all_reduce_perf"]),
    ],
)
def test_another_compiler_library_source_or_program_means_building_anew(
    observed: Callable[..., Context],
    stamp: dict[str, str],
    changes: dict[str, str],
    drifted: list[str],
) -> None:
    ctx = observed()
    known = {**plan(ctx.node, ctx.host, SETTINGS)["stamp"], **stamp}
    node = with_stamp(ctx, known, drifted=drifted)
    assert not plan(node, ctx.host, settings(**changes))["is_built"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"commit": '])
def test_half_a_stamp_counts_as_none(observed: Callable[..., Context], content: str) -> None:
    ctx = observed()
    assert not plan(with_stamp(ctx, content), ctx.host, SETTINGS)["is_built"]


def test_programs_of_another_nccl_are_named(observed: Callable[..., Context]) -> None:
    ctx = observed()
    stamp = plan(ctx.node, ctx.host, SETTINGS)["stamp"]

    def judged(stamp: object) -> list[tuple[str, str, str]]:
        seen = Context(site=ctx.site, host=ctx.host, node=with_stamp(ctx, stamp))
        return [
            (check.id, str(check.status), check.found)
            for check in registry.evaluate(seen, ["nccl_tests"])
        ]

    good = "built with nvcc 12.1.105 against NCCL 2.14.3"
    assert judged(stamp) == [("nccl_tests.built", "pass", good)]
    old = {**stamp, "nccl": "2.12.12"}
    assert judged(old) == [("nccl_tests.built", "fail", good.replace("2.14.3", "2.12.12"))]
    assert judged("") == [("nccl_tests.built", "fail", "not built")]


def test_the_role_refuses_while_what_it_builds_with_is_not_there(
    observed: Callable[..., Context], bad: Callable[..., dict[str, str]]
) -> None:
    assert bad(registry.evaluate_guard(observed(), "nccl_tests")) == {}
    gone = observed({"node.nccl.header": None, "node.cuda.release": None})
    assert set(bad(registry.evaluate_guard(gone, "nccl_tests"))) == {"cuda.nvcc", "nccl.header"}


def test_an_answer_says_whether_it_is_whole_and_with_which_nccl() -> None:
    assert answer(PRINTED) == {"complete": True, "wrong": 0, "gpus": 2, "nccl": "2.28.9"}
    assert answer("sh: 1: all_reduce_perf: not found") == {
        "complete": False, "wrong": 0, "gpus": 0, "nccl": "",
    }  # fmt: skip
