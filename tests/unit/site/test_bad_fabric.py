"""What no switch may be asked for: refused by `railweld check` with file, line and key."""

from __future__ import annotations

from typing import Any

import pytest

LEAF, ALL, GPU = "group_vars/leaves.yml", "group_vars/all.yml", "group_vars/gpu_nodes.yml"


def _port(text: str) -> Any:
    def change(draft: Any) -> None:
        draft.rails[0]["port"] = text

    return change


def _set(file: str, **values: Any) -> Any:
    def change(draft: Any) -> None:
        draft.group_vars[file.removeprefix("group_vars/").removesuffix(".yml")] |= {
            f"railweld_{key}": value for key, value in values.items()
        }

    return change


UPLINK = [{"port": "Ethernet1/1", "peer": "leaf2", "peer_port": "Ethernet1/1"}]

CASES = {
    "unknown model": (_set(LEAF, switch_model="DCS-9999X"), LEAF, "railweld_switch_model"),
    "unknown EOS release": (_set(LEAF, eos_version="4.99.1F"), LEAF, "railweld_eos_version"),
    "no EOS release": (_set(LEAF, eos_version="8.4.1.1"), LEAF, "railweld_eos_version"),
    "port of another form": (_port("Ethernet{index}/9"), GPU, "railweld_rails"),
    "port beyond the model": (_port("Ethernet{index+63}/1"), GPU, "railweld_rails"),
    "priority 8": (_set(ALL, lossless_priority=8), ALL, "railweld_lossless_priority"),
    "DSCP 64": (_set(ALL, lossless_dscp=64), ALL, "railweld_lossless_dscp"),
    "minimum at maximum": (_set(ALL, ecn_min_kb=1500), ALL, "railweld_ecn_min_kb"),
    "polling beyond half": (
        _set(ALL, pfc_watchdog_polling_s=0.11), ALL, "railweld_pfc_watchdog_polling_s",
    ),
    "MTU 9216": (_set(ALL, switch_mtu=9216), ALL, "railweld_switch_mtu"),
    "two classes on one queue": (_set(ALL, lossless_queue=6), ALL, "railweld_lossless_queue"),
    "uplink and host port": (_set(LEAF, uplinks=UPLINK), LEAF, "railweld_uplinks[0].port"),
    "uplink beyond the model": (
        _set(LEAF, uplinks=[{**UPLINK[0], "port": "Ethernet99/1"}]), LEAF, "railweld_uplinks",
    ),
    "lossless CNP": (_set(ALL, cnp_priority=3), ALL, "railweld_cnp_priority"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_with_file_and_key(draft: Any, name: str) -> None:
    change, file, key = CASES[name]
    change(draft)
    errors = [problem for problem in draft.check() if problem.is_error]
    assert errors, "accepted"
    about = [problem for problem in errors if problem.key.startswith(key)]
    assert about, [f"{problem.key}: {problem.found}" for problem in errors]
    for problem in about:
        path, _, line = problem.file.rpartition(":")
        assert path.startswith(str(draft.folder / file))
        assert line.isdigit(), problem.file
        assert problem.found
        assert problem.expected
        assert problem.fix
