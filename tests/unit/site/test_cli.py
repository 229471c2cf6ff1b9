"""`railweld check` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from railweld.site import cli


@pytest.fixture
def run() -> Callable[..., Any]:
    """Run the command alone, without the other stages'."""
    app = typer.Typer()
    cli.register(app)
    app.callback()(lambda: None)

    def invoke(*arguments: str) -> tuple[int, str]:
        # As in railweld.cli: the command's return value is the exit code.
        result = CliRunner().invoke(app, ["check", *arguments], standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return int(result.return_value), result.output

    return invoke


def test_right_site_exits_0_and_says_what_was_read(run: Any, draft: Any) -> None:
    code, output = run("-i", str(draft.write()))
    assert code == 0
    assert "tiny: 3 nodes, 2 of them with 16 GPUs and 4 HCAs, 1 switches" in output
    assert "DSCP 26 = priority 3 = queue 3, NCCL_IB_TC 104" in output


def test_warnings_alone_exit_0(run: Any, draft: Any) -> None:
    draft.group_vars["all"]["railweld_host_mtu"] = 1500
    code, output = run("-i", str(draft.write()))
    assert code == 0
    assert "[mtu.small]" in output


def test_errors_exit_1_and_print_all_parts(run: Any, draft: Any) -> None:
    draft.group_vars["all"]["railweld_lossless_priority"] = 9
    code, output = run("-i", str(draft.write()))
    assert code == 1
    head, found, expected, fix = output.splitlines()[:4]
    place = draft.line("group_vars/all.yml", "priority")
    assert head.startswith(f"error: {place} railweld_lossless_priority (head1, gpu1, gpu2 and 1")
    assert found.split() == ["found", "9"]
    assert expected.strip().startswith("expected  less than")
    assert fix.strip().startswith("fix ")
    assert output.splitlines()[-1].startswith("refused: 1 error")


def test_overridden_version_is_shown(run: Any, draft: Any) -> None:
    draft.group_vars["all"]["railweld_version_overrides"] = {"kubernetes": "1.36.3"}
    _, output = run("-i", str(draft.write()))
    assert "kubernetes" in output.split("versions:")[1]
    assert "-> 1.36.3" in output


def test_extra_variables_count(run: Any, draft: Any) -> None:
    code, output = run("-i", str(draft.write()), "-e", "railweld_reboot=never")
    assert code == 1
    assert "error: -e (extra variables) railweld_reboot" in output


def test_a_number_of_the_command_line_is_the_command_line_s(run: Any, draft: Any) -> None:
    code, output = run("-i", str(draft.write()), "-e", '{"railweld_service_cidr": 7}')
    assert code == 1
    assert "error: -e (extra variables) railweld_service_cidr" in output


def test_numbers_given_with_e_are_numbers(run: Any, draft: Any) -> None:
    assert run("-i", str(draft.write()), "-e", "railweld_host_mtu=8000")[0] == 0


def test_json_is_for_machines(run: Any, draft: Any) -> None:
    draft.hosts["gpu_nodes"]["gpu2"] = "10.0.0.11"
    code, output = run("-i", str(draft.write()), "--json")
    report = json.loads(output)
    assert (code, report["ok"], report["errors"], report["site"]) == (1, False, 1, None)
    (problem,) = [p for p in report["problems"] if p["severity"] == "error"]
    assert set(problem) == {
        "severity",
        "id",
        "file",
        "key",
        "host",
        "hosts",
        "found",
        "expected",
        "fix",
    }
    assert problem["id"] == "address.duplicate"


def test_many_findings_about_one_line_are_one_for_people_and_all_for_machines(
    run: Any, draft: Any
) -> None:
    draft.hosts["gpu_nodes"] = {f"gpu{n}": f"10.0.0.{n}" for n in range(11, 19)}
    del draft.hosts["control_plane"], draft.hosts["slurm_head"], draft.hosts["leaves"]
    draft.hosts["time_servers"] = {"gpu11": None}
    draft.group_vars["gpu_nodes"]["railweld_node_index"] = 5
    source = str(draft.write())
    _, output = run("-i", source)
    assert output.count("[rail.address_duplicate]") == 2  # one per rail
    assert "for gpu12 mlx5_0 and for gpu11 mlx5_0 (and 6 more like it)" in output
    report = json.loads(run("-i", source, "--json")[1])
    assert len([p for p in report["problems"] if p["id"] == "rail.address_duplicate"]) == 14


def test_unreadable_inventory_is_a_finding_in_json_too(run: Any, tmp_path: Path) -> None:
    code, output = run("-i", str(tmp_path / "nowhere"), "--json")
    assert code == 1
    assert json.loads(output)["problems"][0]["id"] == "inventory.missing"
