"""The command line and the playbook on the lab's inventory, as an operator runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railweld.lab.veos import Fleet, VirtualSwitch, serving
from railweld.site import load_site

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent


@dataclass
class Site:
    """The lab's switches on loopback, and an inventory that points there."""

    fleet: Fleet
    arguments: list[str]
    state: Path

    def __getitem__(self, name: str) -> VirtualSwitch:
        return self.fleet[name]

    def command(self, *words: str) -> subprocess.Popen[str]:
        # A shell's background jobs, as this suite may be one, ignore Ctrl-C, and so would these.
        words = ("env", "--default-signal=INT", str(BIN / "railweld"), "fabric", *words)
        return subprocess.Popen(
            [*words, *self.arguments],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def railweld(self, *words: str) -> tuple[int, str]:
        process = self.command(*words)
        out, err = process.communicate(timeout=240)
        return process.returncode, out + err

    def json(self, *words: str) -> tuple[int, Any]:
        process = self.command(*words, "--json")
        out, err = process.communicate(timeout=240)
        assert out, err
        return process.returncode, json.loads(out)

    def playbook(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [str(BIN / "ansible-playbook"), "playbooks/deploy-fabric.yml", *self.arguments, *words],
            cwd=ROOT, text=True, capture_output=True, timeout=240, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def site(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    inventory = ROOT / "inventories/lab"
    fleet = Fleet.from_site(load_site([str(inventory)]), listen="127.0.0.1", base_port=0)
    with serving(*fleet.switches.values()):
        known_hosts = tmp_path / "known_hosts"
        known_hosts.write_text(fleet.known_hosts())
        overlay = tmp_path / "overlay"
        (overlay / "host_vars").mkdir(parents=True)
        hosts = {"all": {"hosts": dict.fromkeys(fleet.switches)}}
        (overlay / "hosts.yml").write_text(json.dumps(hosts))
        for name, switch in fleet.switches.items():
            variables = {
                "ansible_host": "127.0.0.1",
                "ansible_port": switch.port,
                "ansible_user": "admin",
                "ansible_password": "admin",
                "ansible_ssh_common_args": f"-o UserKnownHostsFile={known_hosts}",
            }
            (overlay / "host_vars" / f"{name}.yml").write_text(json.dumps(variables))
        yield Site(fleet, ["-i", str(inventory), "-i", str(overlay)], state)


PUSH = ("push", "--yes", "--observe", "0", "--batch", "all")


def test_plan_push_verify_drift_and_rollback_as_an_operator_runs_them(site: Site) -> None:
    code, plan = site.json("plan")
    assert code == 2
    assert all(plan["switches"][name]["changes"] for name in ("leaf1", "leaf2", "spine1"))
    start = {name: site[name].running_lines for name in site.fleet.switches}

    code, report = site.json(*PUSH)
    assert code == 0, report
    assert {entry["state"] for entry in report["switches"].values()} == {"new"}

    assert site.railweld("plan")[0] == 0
    # One value of the description changed is one line on each switch.
    code, plan = site.json("plan", "-e", "railweld_pfc_watchdog_timeout_s=0.40")
    assert code == 2
    for name, entry in plan["switches"].items():
        (change,) = entry["changes"]
        assert change["line"] == "priority-flow-control pause watchdog default timeout 0.40", name
        assert change["now"] == "priority-flow-control pause watchdog default timeout 0.20"

    code, checks = site.json("verify")
    assert code == 0, [c for c in checks if c["status"] != "pass"]
    assert {
        "fabric.pfc",
        "fabric.watchdog",
        "fabric.ecn",
        "fabric.maps",
        "fabric.lldp",
        "fabric.release",
        "fabric.trust",
        "fabric.flow_control",
    } <= {c["id"] for c in checks}
    assert site.railweld("drift")[0] == 0

    site["leaf1"].device.change_by_other(
        ["qos map dscp 40 to traffic-class 3", "no priority-flow-control pause watchdog action"]
    )
    code, drift = site.json("drift")
    assert code == 2
    assert list(drift["drift"]) == ["leaf1"]
    assert any("dscp 40" in text for text in drift["drift"]["leaf1"]["foreign"])
    assert any("watchdog action" in text for text in drift["drift"]["leaf1"]["differences"])
    assert drift["drift"]["leaf1"]["unsaved"] is True

    site["leaf1"].device.change_by_other(["no qos map dscp 40 to traffic-class 3"])
    code, text = site.railweld("rollback", "--to", report["run"], "--yes", "--observe", "0")
    assert code == 0, text
    for name, lines in start.items():
        kept = [line for line in site[name].running_lines if line.strip() != "!"]
        assert set(kept) == {line for line in lines if line.strip() != "!"}, name


def test_state_files_are_private_and_say_who_what_and_when(site: Site) -> None:
    code, report = site.json(*PUSH, "--limit", "leaf1,spine1,leaf2")
    assert code == 0
    folder = site.state / "lab" / "fabric" / report["run"]
    files = {path.name: path for path in folder.iterdir()}
    assert {"journal.jsonl", "leaf1.before", "leaf1.after", "leaf1.log"} <= set(files)
    assert {oct(path.stat().st_mode & 0o777) for path in files.values()} == {"0o600"}
    events = [json.loads(line) for line in files["journal.jsonl"].read_text().splitlines()]
    assert "@" in events[0]["who"]
    told = [event["event"] for event in events if event["switch"] == "leaf1"]
    steps = ["planned", "loaded", "arming", "armed", "verified", "confirming", "confirmed", "saved"]
    assert [event for event in told if event in steps][: len(steps)] == steps
    assert all(event["time"] for event in events)
    site_journal = (site.state / "lab" / "journal.jsonl").read_text().splitlines()
    assert {json.loads(line)["target"] for line in site_journal} == {"leaf1", "leaf2", "spine1"}


def test_a_failed_push_exits_1_and_names_the_switch_and_its_state(site: Site) -> None:
    site["leaf1"].fault("refuse", text="unavailable", mode="session", at=3)
    code, text = site.railweld(*PUSH)
    assert code == 1
    assert "leaf1: refused; runs the old configuration" in text


def test_a_link_is_never_changed_on_one_end_only(site: Site) -> None:
    code, text = site.railweld(*PUSH, "--limit", "leaf1")
    assert code == 64
    assert "add spine1 to --limit" in text
    assert not [s for s in site.fleet.switches.values() if s.device.log]


def test_an_unreachable_switch_is_unknown_not_clean(site: Site) -> None:
    site["leaf2"].fault("show-refused", match="^show version")
    code, text = site.railweld("plan")
    assert code == 3
    assert "leaf2: found no model and version" in text


@pytest.mark.parametrize("words", [("push", "--batch", "none"), ("plan", "--limit", "leaf9"),
                                   ("rollback", "--to", "yesterday")])  # fmt: skip
def test_wrong_usage_exits_64(site: Site, words: tuple[str, ...]) -> None:
    assert site.railweld(*words)[0] == 64


def test_a_push_without_a_terminal_wants_yes(site: Site) -> None:
    code, text = site.railweld("push")
    assert code == 64
    assert "--yes" in text


def test_ctrl_c_in_a_push_leaves_the_old_state_and_exits_130(site: Site) -> None:
    before = site["leaf1"].running_lines
    process = site.command("push", "--yes", "--observe", "20")
    deadline = time.monotonic() + 120
    while site["leaf1"].device.timer_left is None:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "runs the old configuration" in err
    assert site["leaf1"].device.timer_left is None
    assert site["leaf1"].running_lines == before
    del out


def test_a_killed_controller_leaves_it_to_the_timer_and_the_next_push_finishes(site: Site) -> None:
    before = site["leaf1"].running_lines
    process = site.command("push", "--yes", "--observe", "20")
    deadline = time.monotonic() + 120
    while site["leaf1"].device.timer_left is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    site["leaf1"].device.expire_timer()
    assert site["leaf1"].running_lines == before
    assert site.railweld(*PUSH)[0] == 0


def test_the_playbook_plans_pushes_verifies_and_is_idempotent(site: Site) -> None:
    code, text = site.playbook("--check", "--diff")
    assert code == 0, text
    assert "Ethernet1/1: change: mtu 1500 -> mtu 9214" in text
    assert site["leaf1"].device.timer_left is None
    code, text = site.playbook("-e", "fabric_batch=all", "-e", "fabric_observe=0")
    assert code == 0, text
    assert site["spine1"].device.saved
    assert site.railweld("plan")[0] == 0
    code, text = site.playbook("-e", "fabric_batch=all", "-e", "fabric_observe=0")
    assert code == 0, text
    assert "changed=0" in text or "changed" not in text.partition("RECAP")[2]
