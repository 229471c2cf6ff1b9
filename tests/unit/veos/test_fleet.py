"""The switches of an inventory in one process, and the control folder beside them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import asyncssh
import pytest
import yaml
from typer.testing import CliRunner

from railweld.errors import CouldNotLookError, UsageError
from railweld.lab.veos import Fleet, User
from railweld.lab.veos.__main__ import app
from railweld.lab.veos.fleet import clear_faults, plans_from_site, set_fault
from railweld.site import load_site

INVENTORY = {
    "all": {
        "vars": {
            "railweld_site": "t1",
            "railweld_transport": "roce",
            "railweld_version_set": "a100-2023",
            "railweld_vendor_repository": "ubuntu2204",
            "ansible_user": "ops",
            "ansible_password": "pw",
        },
        "children": {
            "gpu_nodes": {
                "hosts": {f"gpu{n}": {"ansible_host": f"10.9.0.{10 + n}"} for n in (1, 2)},
                "vars": {
                    "railweld_gpu_count": 8,
                    "railweld_gpu_model": "A100-SXM4-80GB",
                    "railweld_rails": [
                        {
                            "rail": 1, "hca": "mlx5_0", "netdev": "rail1",
                            "subnet": "10.10.1.0/24", "switch": "leaf1",
                            "port": "Ethernet{index}/1",
                        }
                    ],
                },
            },
            "time_servers": {"hosts": {"head1": {"ansible_host": "10.9.0.10"}}},
            "control_plane": {"hosts": {"head1": {}}},
            "slurm_head": {"hosts": {"head1": {}}},
            "leaves": {
                "hosts": {"leaf1": {"ansible_host": "10.9.0.21", "ansible_port": 2222}},
                "vars": {"railweld_switch_model": "DCS-7050CX3-32S"},
            },
            "spines": {
                "hosts": {"spine1": {"ansible_host": "10.9.0.31"}},
                "vars": {
                    "railweld_switch_model": "DCS-7280CR3-32P4",
                    "lab_eos_version": "4.32.1F",
                    "railweld_uplinks": [
                        {"port": "Ethernet1/1", "peer": "leaf1", "peer_port": "Ethernet32/1"}
                    ],
                },
            },
        },
    }
}  # fmt: skip


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(INVENTORY))
    return str(path)


async def type_at(fleet: Fleet, name: str, *lines: str) -> list[str]:
    """Run single commands over SSH."""
    switch = fleet[name]
    async with asyncssh.connect(
        switch.address, switch.port, username="ops", password="pw", config=None, agent_path=None,
        client_keys=None, known_hosts=asyncssh.import_known_hosts(fleet.known_hosts()),
    ) as connection:  # fmt: skip
        return [str((await connection.run(line)).stdout) for line in lines]


def test_plans_follow_the_site(inventory):
    plans = {plan.name: plan for plan in plans_from_site(load_site([inventory]))}
    leaf, spine = plans["leaf1"], plans["spine1"]
    assert (leaf.model, leaf.address) == ("DCS-7050CX3-32S", "10.9.0.21")
    assert {(n.port, n.device, n.device_port) for n in leaf.neighbours} == {
        ("Ethernet1/1", "gpu1", "rail1"),
        ("Ethernet2/1", "gpu2", "rail1"),
        ("Ethernet32/1", "spine1", "Ethernet1/1"),
    }
    assert [(n.port, n.device) for n in spine.neighbours] == [("Ethernet1/1", "leaf1")]


def test_logins_ports_and_releases_come_from_the_inventory(inventory):
    fleet = Fleet.from_inventory([inventory])
    assert fleet["leaf1"].users == {"ops": User(password="pw")}
    assert fleet["spine1"].device.release.text == "4.32.1F"
    assert fleet["leaf1"].device.release.text == "4.31.2F"


def test_a_fleet_serves_every_switch_on_loopback(inventory):
    async def scenario() -> list[str]:
        async with Fleet.from_inventory([inventory], listen="127.0.0.1", base_port=0) as fleet:
            return [
                (await type_at(fleet, name, "show hostname"))[0].split()[1]
                for name in fleet.switches
            ]

    assert sorted(asyncio.run(scenario())) == ["leaf1", "spine1"]


def test_addresses_of_the_loopback_network_can_be_used(inventory, tmp_path):
    text = (tmp_path / "hosts.yml").read_text()
    (tmp_path / "hosts.yml").write_text(
        text.replace("10.9.0.21", "127.9.0.21").replace("10.9.0.31", "127.9.0.31")
    )

    async def scenario() -> set[str]:
        async with Fleet.from_inventory([inventory], base_port=0) as fleet:
            return {switch.address for switch in fleet.switches.values()}

    assert asyncio.run(scenario()) == {"127.9.0.21", "127.9.0.31"}


def test_an_address_that_this_machine_lacks_is_named(inventory):
    async def scenario() -> None:
        async with Fleet.from_inventory([inventory]):
            pass

    with pytest.raises(CouldNotLookError, match=r"leaf1: cannot listen on 10\.9\.0\.21"):
        asyncio.run(scenario())


def test_an_unknown_model_is_named(inventory):
    site = load_site([inventory])
    leaf = site.switches["leaf1"].model_copy(update={"switch_model": "DCS-9999"})
    broken = site.model_copy(update={"switches": {"leaf1": leaf}})
    with pytest.raises(UsageError, match="leaf1: switch model: found 'DCS-9999'"):
        plans_from_site(broken)


def test_the_control_folder_shows_state_and_keeps_what_was_saved(inventory, tmp_path):
    control = tmp_path / "control"
    options = {"listen": "127.0.0.1", "base_port": 0, "control": control}

    async def first() -> None:
        async with Fleet.from_inventory([inventory], **options) as fleet:
            fleet["leaf1"].device.change_by_other(["interface Ethernet1/1", "   mtu 9214"])
            fleet["spine1"].device.change_by_other(["interface Ethernet1/1", "   mtu 9214"])
            await type_at(fleet, "leaf1", "write memory")
            await type_at(fleet, "spine1", "show version")
            endpoints = json.loads((control / "fleet.json").read_text())
            assert endpoints["leaf1"]["port"] == fleet["leaf1"].port
            assert json.loads((control / "state/leaf1.json").read_text())["saved"] is True
            assert json.loads((control / "state/spine1.json").read_text())["saved"] is False

    async def second() -> tuple[list[str], list[str], str]:
        async with Fleet.from_inventory([inventory], **options) as fleet:
            return (
                fleet["leaf1"].running_lines,
                fleet["spine1"].running_lines,
                fleet["leaf1"].host_key.get_fingerprint(),
            )

    asyncio.run(first())
    assert not (control / "fleet.json").exists()
    leaf, spine, fingerprint = asyncio.run(second())
    assert "   mtu 9214" in leaf
    assert "   mtu 9214" not in spine
    assert (control / "keys/leaf1").stat().st_mode & 0o777 == 0o600
    assert asyncio.run(second())[2] == fingerprint


def test_faults_are_set_and_taken_back_through_the_control_folder(inventory, tmp_path):
    control = tmp_path / "control"

    async def scenario() -> list[str]:
        async with Fleet.from_inventory(
            [inventory], listen="127.0.0.1", base_port=0, control=control
        ) as fleet:
            set_fault(control, "leaf1", "save-fails", {"text": "flash-full"})
            answers = await type_at(fleet, "leaf1", "write memory")
            answers += await type_at(fleet, "spine1", "write memory")
            clear_faults(control, "leaf1")
            return answers + await type_at(fleet, "leaf1", "write memory")

    failed, other, cleared = asyncio.run(scenario())
    assert "No space left on device" in failed
    assert other == cleared == "Copy completed successfully.\n"


def test_the_command_line_writes_the_control_file(tmp_path):
    run = CliRunner().invoke
    result = run(app, ["fault", "leaf1", "slow", "--set", "seconds=2", "--control", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "faults.json").read_text()) == {
        "leaf1": [{"fault": "slow", "seconds": 2}]
    }
    assert run(app, ["fault", "leaf1", "--clear", "--control", str(tmp_path)]).exit_code == 0
    assert json.loads((tmp_path / "faults.json").read_text()) == {"leaf1": []}
    assert "save-fails" in run(app, ["catalogue"]).output
    for words, text in (
        (["fault", "leaf1", "rain"], "found 'rain'"),
        (["fault", "leaf1", "slow", "--set", "x"], "expected key=value"),
        (["fault", "leaf1"], "found no name"),
    ):
        failed = run(app, [*words, "--control", str(tmp_path)])
        assert text in str(failed.exception)
    assert isinstance(run(app, ["status"]).exception, UsageError)


def test_a_folder_that_is_not_there_means_nothing_runs(tmp_path):
    with pytest.raises(CouldNotLookError, match="not running"):
        set_fault(tmp_path / "none", "leaf1", "hang", {})
