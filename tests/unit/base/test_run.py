"""The plugins in real runs of ansible-playbook on this machine, without SSH or changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railweld import runs

INVENTORY = """
all:
  children:
    time_servers:
      hosts: {head1: {ansible_host: 192.0.2.1}}
    control_plane:
      hosts: {head1: , head2: {ansible_host: 192.0.2.2}}
  vars:
    ansible_connection: local
    ansible_python_interpreter: PYTHON
    railweld_site: unit
    railweld_version_set: a100-2023
    railweld_version_overrides: {kubernetes: 1.36.3}
    railweld_vendor_repository: ubuntu2204
"""
PLAY = """
- name: Trial
  hosts: control_plane
  gather_facts: false
  tasks:
    - name: Load
      railweld_site:
      register: railweld
      run_once: true
"""


@dataclass
class Run:
    """What a run left: exit code, text, report, journal."""

    code: int
    text: str
    report: dict[str, Any]
    journal: list[dict[str, Any]]


@pytest.fixture
def play(tmp_path: Path, repository_root: Path) -> Callable[..., Run]:
    """Run tasks on two hosts that are both this machine."""
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(INVENTORY.replace("PYTHON", sys.executable))

    def run(tasks: str, *options: str) -> Run:
        playbook = tmp_path / "deploy-base.yml"
        playbook.write_text(PLAY + tasks)
        state = tmp_path / "state"
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                "-i",
                str(inventory),
                str(playbook),
                *options,
            ],
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(repository_root / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
                "RAILWELD_STATE": str(state),
            },
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        reports = sorted((state / "unit" / "reports").glob("*.json"))
        journal = state / "unit" / "journal.jsonl"
        return Run(
            code=done.returncode,
            text=done.stdout + done.stderr,
            report=json.loads(reports[-1].read_text()) if reports else {},
            journal=[json.loads(line) for line in journal.read_text().splitlines()]
            if journal.exists()
            else [],
        )

    return run


def test_a_run_is_told_and_reported_by_host(play: Callable[..., Run]) -> None:
    found = play(
        """
    - name: Observe
      railweld_probe:
    - name: Observe again, which is not needed
      railweld_probe: {if_missing: true}
      register: again
    - name: Compare
      ansible.builtin.assert:
        that:
          - again.reused
          - railweld_host.name == inventory_hostname
          - railweld_node.os.id is defined
          - railweld_node.is_controller
          - railweld.site.name == 'unit'
"""
    )
    assert found.code == 0, found.text
    assert "site unit, version set a100-2023, 2 hosts described" in found.text
    assert "2 hosts: 2 ok, 0 failed; changed=0" in found.text
    assert set(found.report["hosts"]) == {"head1", "head2"}
    assert found.report["stage"] == "base"
    assert "\x1b" not in found.text
    assert found.journal == []


def test_one_failed_host_is_named_with_its_reason_and_the_other_finishes(
    play: Callable[..., Run],
) -> None:
    found = play(
        """
    - name: Refuse one
      ansible.builtin.assert:
        that: inventory_hostname != 'head2'
        fail_msg: "head2: found this, expected that. Fix: do it"
    - name: Go on
      ansible.builtin.debug: {msg: finished}
"""
    )
    assert found.code != 0
    assert "head2 FAILED at Refuse one" in found.text
    assert "head2 at Refuse one: head2: found this, expected that. Fix: do it" in found.text
    assert "2 hosts: 1 ok, 1 failed" in found.text
    assert found.report["hosts"]["head2"]["failure"]["reason"].startswith("head2: found this")
    assert found.report["hosts"]["head1"]["failure"] is None
    assert [line["target"] for line in found.journal] == ["head2"]


def test_a_bare_machine_gets_a_plan_in_order(play: Callable[..., Run]) -> None:
    found = play(
        """
    - name: Observe
      railweld_probe:
    - name: Plan
      railweld_plan:
    - name: Compare
      ansible.builtin.assert:
        that:
          - "railweld_todo == ['preflight', 'package_lock', 'chrony', 'lldp']"
          - railweld_work == 'provision'
"""
    )
    assert found.code == 0, found.text
    assert "head1: to do: preflight, package_lock, chrony, lldp" in found.text
    assert found.report["hosts"]["head1"]["plan"]["todo"][0] == "preflight"


def test_plans_of_the_later_stages_are_reported_too(
    play: Callable[..., Run], tmp_path: Path
) -> None:
    """Plugins that plan differ by stage; a plan is what leaves work for roles."""
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(inventory.read_text().replace(", head2: {ansible_host: 192.0.2.2}", ""))
    found = play(
        """
    - name: Observe
      railweld_probe: {cluster: true}
    - name: Load the cluster's part
      railweld_cluster: {state: site}
      register: railweld_cluster_site
      run_once: true
    - name: See it as a host
      railweld_cluster: {state: view}
    - name: Plan
      railweld_cluster: {state: plan}
    - name: Plan again after others did their part
      railweld_plan: {before: lldp}
"""
    )
    assert found.code == 0, found.text
    assert "head1: to do: containerd, kubernetes, cni" in found.text
    plan = found.report["hosts"]["head1"]["plan"]
    work = ["containerd", "kubernetes", "cni", "preflight", "package_lock", "chrony"]
    assert plan["todo"] == work
    assert plan["reasons"]["cni"][-1] == "head1: cni has not completed here yet"
    assert "chrony" in plan["reasons"]
    checks = [check["id"] for check in found.report["hosts"]["head1"]["checks"]]
    assert any(check.startswith("kubernetes.") for check in checks)
    assert any(check.startswith("chrony.") for check in checks)
    assert runs.Run(**found.report).work[0].todo == ", ".join(work)


def test_checks_fail_with_found_expected_and_fix(play: Callable[..., Run]) -> None:
    found = play(
        """
    - name: Observe
      railweld_probe:
    - name: Judge
      railweld_check: {roles: [package_lock]}
"""
    )
    assert found.code != 0
    assert "expected APT::Periodic::Unattended-Upgrade 0" in found.text
    assert any(
        check["id"] == "package_lock.dpkg" for check in found.report["hosts"]["head1"]["checks"]
    )


def test_a_description_with_errors_stops_before_any_machine(play: Callable[..., Run]) -> None:
    found = play("", "-e", "railweld_version_set=none-such")
    assert found.code != 0
    assert "no machine was touched" in found.text
    assert "none-such" in found.text


def test_check_mode_writes_no_journal(play: Callable[..., Run]) -> None:
    found = play(
        """
    - name: Refuse
      ansible.builtin.fail: {msg: no}
""",
        "--check",
    )
    assert found.code != 0
    assert found.report["check_mode"] is True
    assert found.journal == []


def test_a_reboot_of_the_controller_itself_is_refused(
    play: Callable[..., Run], repository_root: Path
) -> None:
    found = play(
        f"""
    - name: Observe
      railweld_probe:
    - name: Pretend that something asks for a reboot
      ansible.builtin.include_tasks: {repository_root}/roles/reboot/tasks/reboot.yml
      vars:
        __reboot_reasons: ["driver 1 is loaded, 2 is installed"]
        __reboot_is_loop: false
        reboot_repeat: false
"""
    )
    assert found.code != 0
    assert "this host is the controller of this run" in found.text
    assert "driver 1 is loaded, 2 is installed" in found.text


#: Programs of heads, played by scripts that write down what they are asked.
KUBECTL = """
case "$*" in
  *"get nodes"*)
    printf 'head1\\t\\t192.0.2.1\\tv1.36.3\\t\\tTrue\\n'
    printf 'gpu7\\t\\t\\tv1.36.3\\t\\tUnknown\\n' ;;
  *"get node "*) echo "$(cat cordon)|$(cat mark)" ;;
  *" drain head1 "*) echo "cannot evict" >&2; exit 1 ;;
  *" uncordon "*) : > cordon ;;
  *" cordon "*) echo true > cordon ;;
  *annotate*=*) echo "${7#*=}" > mark ;;
  *annotate*) : > mark ;;
esac
"""
PROGRAMS = {
    "kubectl": KUBECTL,
    "sinfo": "cat slurm",
    "squeue": "cat jobs; : > jobs",
    "scontrol": """
case "$*" in
  *state=resume*) echo 'idle|none' ;;
  *) echo "drained|${4#reason=}" ;;
esac > slurm
""",
}
MEMBER = """
    - name: Observe
      railweld_probe: {cluster: true}
    - name: Be a member whose kubelet runs
      ansible.builtin.set_fact:
        railweld_node: >-
          {{ railweld_node
             | combine({'units': {'kubelet.service': {'active': 'active'}}}, recursive=true) }}
"""


@pytest.fixture
def asked(
    play: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """What the programs of Slurm's and Kubernetes' heads were asked to do, beside looking."""
    del play  # it writes the inventory that is changed here
    heads = tmp_path / "heads"
    heads.mkdir()
    state = {"cordon": "", "mark": "", "slurm": "idle|none\n", "jobs": "7\n", "asked": ""}
    for name, content in state.items():
        (heads / name).write_text(content)
    for name, does in PROGRAMS.items():
        program = heads / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\ncd {heads}\necho "{name} $*" >> asked\n{does}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{heads / 'bin'}:{os.environ['PATH']}")
    inventory = tmp_path / "hosts.yml"
    text = inventory.read_text().replace(", head2: {ansible_host: 192.0.2.2}", "")
    inventory.write_text(
        text.replace("  children:\n", "  children:\n    slurm_head: {hosts: {head1: }}\n")
    )
    admin = "kubectl --kubeconfig /etc/kubernetes/admin.conf "
    return lambda: [
        line.removeprefix(admin)
        for line in (heads / "asked").read_text().splitlines()
        if line.startswith(("kubectl ", "scontrol ", "squeue ")) and " get node" not in line
    ]


def test_a_kubelet_is_exchanged_between_jobs_and_a_failure_returns_the_node(
    play: Callable[..., Run], asked: Callable[[], list[str]], tmp_path: Path
) -> None:
    record = tmp_path / "maintenance.json"
    given = {
        "__maintenance_record": str(record),
        "maintenance_poll_s": 1,
        "maintenance_slurm_nodes": {"stdout_lines": ["head1"]},
    }
    tasks = (
        MEMBER
        + """
    - name: Exchange its kubelet
      ansible.builtin.include_role: {name: kubernetes, tasks_from: exchange}
"""
    )
    found = play(tasks, "-e", json.dumps(given))
    assert found.code != 0
    assert "cannot evict" in found.text
    assert asked() == [
        "scontrol update nodename=head1 state=drain reason=railweld base",
        *["squeue --noheader --nodelist head1 --format %i"] * 2,
        "annotate --overwrite node head1 railweld.io/maintenance=railweld base",
        "cordon head1",
        "drain head1 --ignore-daemonsets --delete-emptydir-data --timeout=600s",
        "scontrol update nodename=head1 state=resume",
        "uncordon head1",
        "annotate node head1 railweld.io/maintenance-",
    ], found.text
    assert not record.exists()


def test_a_node_is_returned_after_a_cut_though_its_kubelet_does_not_run(
    play: Callable[..., Run], asked: Callable[[], list[str]], tmp_path: Path
) -> None:
    record = tmp_path / "maintenance.json"
    left = {"cordon": "true", "mark": "railweld base", "slurm": "drained|railweld base"}
    for name, content in left.items():
        (tmp_path / "heads" / name).write_text(f"{content}\n")
    record.write_text(json.dumps({"reason": "railweld base", "kubernetes": True}))
    given = {
        "__maintenance_record": str(record),
        "maintenance_slurm_nodes": {"stdout_lines": ["head1"]},
        "seen": {
            "units": {"kubelet.service": {"active": "failed"}},
            "records": {"maintenance": json.loads(record.read_text())},
        },
    }
    found = play(
        """
    - name: Observe
      railweld_probe:
    - name: Be a node that a run was cut off at
      ansible.builtin.set_fact:
        railweld_node: "{{ railweld_node | combine(seen, recursive=true) }}"
    - name: Return it
      ansible.builtin.include_role: {name: maintenance, tasks_from: restore}
""",
        "-e",
        json.dumps(given),
    )
    assert found.code == 0, found.text
    assert asked() == [
        "scontrol update nodename=head1 state=resume",
        "uncordon head1",
        "annotate node head1 railweld.io/maintenance-",
    ], found.text
    assert not record.exists()


def test_pods_of_a_node_that_is_away_are_not_waited_for(
    play: Callable[..., Run], asked: Callable[[], list[str]]
) -> None:
    tasks = (
        MEMBER
        + """
    - name: Take a dead node out
      ansible.builtin.include_role: {name: kubernetes, tasks_from: drain}
      vars: {kubernetes_node: gpu7}
"""
    )
    found = play(tasks)
    assert found.code == 0, found.text
    (drain,) = asked()
    assert drain.startswith("drain gpu7 ")
    assert drain.endswith(" --timeout=600s --grace-period=1 --skip-wait-for-delete-timeout=1")


@pytest.mark.parametrize(
    "case",
    [
        ("[sleep, '60']", 1, "found no end of the build after 1 s"),
        ("[sh, -c, 'echo nvcc fatal >&2; exit 2']", 60, "found exit code 2 (nvcc fatal)"),
    ],
)
def test_a_build_of_nccl_tests_that_fails_or_does_not_end_is_told(
    play: Callable[..., Run], repository_root: Path, tmp_path: Path, case: tuple[str, int, str]
) -> None:
    command, seconds, words = case
    second = tmp_path / "second"
    found = play(
        f"""
    - name: Build
      ansible.builtin.include_tasks: {repository_root}/roles/nccl_tests/tasks/compile.yml
      vars:
        nccl_tests_build_timeout_s: {seconds}
        __nccl_tests_plan: {{commands: [{command}, [touch, {second}]]}}
"""
    )
    assert found.code != 0
    reason = found.report["hosts"]["head1"]["failure"]["reason"]
    assert words in reason
    assert "expected programs of nccl-tests (see: s" in reason
    assert "Fix: what was in place before stays" in reason
    # The next kind is not built after one that failed.
    assert not second.exists()


@pytest.mark.parametrize("playbook", ["deploy-base", "deploy-cluster", "deploy-slurm"])
def test_inventory_that_is_not_there_is_an_error(
    playbook: str, tmp_path: Path, repository_root: Path
) -> None:
    """Ansible alone warns, finds no host and ends with 0."""
    run = subprocess.run(
        [
            *(str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(tmp_path / "typo")),
            f"playbooks/{playbook}.yml",
        ],
        cwd=repository_root,
        env={**os.environ, "ANSIBLE_CONFIG": str(repository_root / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert f"Completely failed to parse inventory source {tmp_path / 'typo'}" in run.stderr
