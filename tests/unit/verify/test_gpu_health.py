"""The GPUs' health: read from what a real machine printed, judged value by value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from railweld.record import Status
from railweld.verify import gpu
from railweld.verify.context import Context
from railweld.verify.hosts import outliers
from tests.loading import load_file

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "fixtures" / "nvidia_smi"
XML = (FIXTURES / "h200-q.xml").read_text()
NVLINK = (FIXTURES / "h200-nvlink.txt").read_text()
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV18\tPXB\tSYS\t0-31\t0\n"
    "GPU1\tNV18\t X \tSYS\tNODE\t32-63\t1\n"
    "NIC0\tPXB\tSYS\t X \tSYS\t\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
)


READER = load_file(ROOT / "plugins/module_utils/railweld_gpu_health.py")


def answers(**changed: str | None) -> Callable[..., str | None]:
    said: dict[str, str | None] = {
        "nvidia-smi -q -x": XML,
        "nvidia-smi nvlink -s": NVLINK,
        "nvidia-smi topo -m": TOPOLOGY,
        "dmesg --notime": "Linux version 6.1\n",
        "journalctl -k -b -o cat --no-pager": None,
    }
    said.update({key.replace("_", " "): value for key, value in changed.items()})
    return lambda *argv: said[" ".join(argv)]


def judged(output: Callable[..., str | None], hcas: tuple[str, ...] = ()) -> dict[str, Status]:
    ctx = Context(
        site={},
        host={
            "name": "gpu1",
            "gpu": {"count": 2, "model": "H200-SXM-141GB"},
            "hcas": [{"name": name} for name in hcas],
        },
        node={"health": READER.read_health(output)},
    )
    return {check.id: check.status for check in gpu.health(ctx)}


def bad(statuses: dict[str, Status]) -> dict[str, Status]:
    return {name: status for name, status in statuses.items() if status is not Status.PASS}


def test_a_real_healthy_machine_passes_everything() -> None:
    statuses = judged(answers())
    assert bad(statuses) == {}
    assert {name.rsplit(".", 1)[0] for name in statuses if name != "gpu.xid"} == {
        "gpu.recovery", "gpu.ecc", "gpu.remap_failure", "gpu.remap_pending", "gpu.pcie_width",
        "gpu.bar", "gpu.nvlink",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "failing"),
    [
        (
            "<dram_uncorrectable>0</dram_uncorrectable>",
            "<dram_uncorrectable>2</dram_uncorrectable>",
            "ecc",
        ),
        (
            "<remapped_row_pending>No</remapped_row_pending>",
            "<remapped_row_pending>Yes</remapped_row_pending>",
            "remap_pending",
        ),
        (
            "<remapped_row_failure>No</remapped_row_failure>",
            "<remapped_row_failure>Yes</remapped_row_failure>",
            "remap_failure",
        ),
        (
            "<current_link_width>16x</current_link_width>",
            "<current_link_width>8x</current_link_width>",
            "pcie_width",
        ),
        ("<total>262144 MiB</total>", "<total>256 MiB</total>", "bar"),
        (
            "<gpu_recovery_action>None</gpu_recovery_action>",
            "<gpu_recovery_action>Reset</gpu_recovery_action>",
            "recovery",
        ),
    ],
)
def test_one_sick_value_of_one_gpu_turns_its_own_check_red(
    old: str, new: str, failing: str
) -> None:
    assert old in XML
    statuses = judged(answers(**{"nvidia-smi -q -x": XML.replace(old, new, 1)}))
    assert bad(statuses) == {f"gpu.{failing}.0000:00:06": Status.FAIL}


def test_a_small_window_of_an_unknown_model_is_no_fault() -> None:
    text = XML.replace("<total>262144 MiB</total>", "<total>256 MiB</total>")
    text = text.replace(">NVIDIA H200</product_name>", ">Tesla T4</product_name>")
    statuses = judged(answers(**{"nvidia-smi -q -x": text}))
    assert bad(statuses) == {}
    assert not any(name.startswith("gpu.bar.") for name in statuses)


def test_errors_of_former_boots_are_not_todays() -> None:
    aggregate = XML.index("<aggregate>")
    old = "<dram_uncorrectable>0</dram_uncorrectable>"
    text = XML[:aggregate] + XML[aggregate:].replace(old, old.replace("0", "7", 1), 1)
    assert bad(judged(answers(**{"nvidia-smi -q -x": text}))) == {}


@pytest.mark.parametrize(
    "line", ["\t Link 3: <inactive>", "\t Link 3: 13.281 GB/s"], ids=["inactive", "slow"]
)
def test_one_lost_or_slow_nvlink_is_seen(line: str) -> None:
    text = NVLINK.replace("\t Link 3: 26.562 GB/s", line, 1)
    assert bad(judged(answers(**{"nvidia-smi nvlink -s": text}))) == {"gpu.nvlink.0": Status.FAIL}


def test_a_gpu_whose_rails_are_all_behind_a_cpu_is_named() -> None:
    assert bad(judged(answers(), ("mlx5_0", "mlx5_1"))) == {"gpu.near_rail.1": Status.FAIL}


@pytest.mark.parametrize(
    ("number", "status"), [(79, Status.FAIL), (48, Status.FAIL), (31, Status.WARN)]
)
def test_xids_of_hardware_fail_and_xids_of_programs_warn(number: int, status: Status) -> None:
    line = f"NVRM: Xid (PCI:0000:00:06): {number}, pid=1, text\n"
    statuses = judged(answers(**{"dmesg --notime": line * 3}))
    assert bad(statuses) == {f"gpu.xid.0000:00:06.{number}": status}


def test_the_journal_is_read_where_dmesg_may_not_be() -> None:
    line = "NVRM: Xid (PCI:0000:00:06): 79, pid=1, GPU has fallen off the bus.\n"
    output = answers(**{"dmesg --notime": None, "journalctl -k -b -o cat --no-pager": line})
    assert "gpu.xid.0000:00:06.79" in judged(output)


@pytest.mark.parametrize("xml", [None, "", "NVIDIA-SMI has failed", XML[:4000]])
def test_no_answer_is_unknown_not_healthy(xml: str | None) -> None:
    assert judged(answers(**{"nvidia-smi -q -x": xml})) == {"gpu.health": Status.UNKNOWN}


def test_no_kernel_log_is_unknown_not_clean() -> None:
    assert bad(judged(answers(**{"dmesg --notime": None}))) == {"gpu.xid": Status.UNKNOWN}


def test_addresses_of_all_spellings_are_one() -> None:
    assert {READER.address(text) for text in ("00000000:C7:00.0", "0000:c7:00")} == {"0000:c7:00"}


def test_the_odd_one_is_named_and_the_majority_is_not() -> None:
    found = list(
        outliers("x", {"a": "1", "b": "1", "c": "2", "d": None}, what="kernel", ran="uname -r")
    )
    assert [(check.target, check.found) for check in found] == [("c", "kernel 2")]
    assert not list(outliers("x", {"a": "1", "b": "2"}, what="kernel", ran="uname -r"))
