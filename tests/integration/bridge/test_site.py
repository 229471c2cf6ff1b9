"""The bridge as a site installs it: deploy-slurm.yml on a lab head, with a real API server.

The lab has a head and one node; the API server listens on the machine's address in the lab's
network. Pods are processes on the head (kubelets.py). The tests run in their order, as an
operator's days do.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from railweld import names
from railweld.bridge import bundle
from railweld.site import load_site
from railweld.stack.graph import stack_for
from railweld.state import site_state_dir
from tests.integration.bridge import world as worlds
from tests.integration.bridge.slurmlab import wait_for
from tests.integration.stack import plane as planes
from tests.integration.stack.plane import ROOT, ControlPlane
from tests.labs import PlayRun, TestLab, running_lab, write_inventory

pytestmark = [pytest.mark.lab, pytest.mark.deep]

SITE = "bridge"
DEPLOY = "playbooks/deploy-slurm.yml"
PREPARE = "roles/slurm/molecule/prepare.yml"
OFF = [{"name": "gpu", "group": "gpu_nodes", "default": True, "bridge": False}]


@dataclass
class Installed:
    """The lab, and the cluster beside it."""

    lab: TestLab
    plane: ControlPlane

    def head(self, command: str, *, user: str = "root", check: bool = True) -> str:
        argv = ["runuser", "-u", user, "--", "sh", "-c", f"cd ~{user} && {command}"]
        return self.lab.node("head1", *argv, check=check).strip()

    def deploy(self, *arguments: str) -> PlayRun:
        return self.lab.play(*arguments, playbook=DEPLOY)

    def ready(self) -> str:
        return self.head(
            "python3 -c 'import urllib.request as u; "
            f'print(u.urlopen("http://{names.BRIDGE_MONITOR}/readyz").read().decode())\'',
            check=False,
        )

    def submit(self, script: str, *options: str) -> int:
        content = base64.b64encode(script.encode()).decode()
        command = f"echo {content} | base64 -d | sbatch --parsable {' '.join(options)}"
        return int(self.head(command, user="alice"))

    def state(self, job: int) -> str:
        command = f"squeue --noheader --states=all --format=%T --job={job}"
        return self.head(command, check=False)

    def output(self, job: int) -> str:
        return self.head(f"cat slurm-{job}.out", user="alice", check=False)

    def give_credentials(self) -> None:
        """What deploy-cluster.yml leaves on the controller."""
        target = site_state_dir(SITE) / names.KUBECONFIG
        target.write_bytes(self.plane.kubeconfig.read_bytes())
        target.chmod(0o600)

    def start_kubelets(self) -> None:
        """Run pods of gpu1 as processes of the head."""
        container = self.lab.container("head1")
        for source, target in (
            (ROOT / "src", "/opt/test"),
            (ROOT / "tests/integration/bridge/kubelets.py", "/opt/test/kubelets.py"),
            (self.plane.kubeconfig, "/opt/test/kubeconfig"),
        ):
            subprocess.run(["podman", "cp", str(source), f"{container}:{target}"], check=True)
        program = (
            "PYTHONPATH=/opt/test setsid python3 /opt/test/kubelets.py --nodes 1 --port 10250 "
            "--kubeconfig /opt/test/kubeconfig >/var/log/kubelets.log 2>&1 </dev/null &"
        )
        self.lab.node("head1", "sh", "-c", program)
        wait_for(lambda: "True" in self.conditions(), what="the kubelet of gpu1")

    def conditions(self) -> str:
        path = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        return self.plane.kubectl("get", "node", "gpu1", "-o", path).stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """A lab head whose time is in order, and an API server that nothing was deployed to."""
    folder = tmp_path_factory.mktemp("site")
    inventory = write_inventory(
        folder / "inventory",
        site=SITE,
        third_octet=24,
        gpu_nodes=1,
        variables={
            "railweld_slurmd": "virtual",
            "railweld_slurm_accounting": False,
            "railweld_job_volumes": [{"name": "home", "mount": "/home", "host_path": "/home"}],
        },
    )
    credentials = site_state_dir(SITE) / names.KUBECONFIG
    credentials.unlink(missing_ok=True)
    with running_lab(inventory) as lab:
        lab.play(playbook=PREPARE).assert_ok()
        with planes.running(folder / "plane", SITE, "10.213.24.1") as plane:
            plane.nodes(1, {"nvidia.com/gpu": "8", "rdma/hca": "4"}, alive=False)
            try:
                yield Installed(lab, plane)
            finally:
                credentials.unlink(missing_ok=True)


def test_without_a_cluster_the_site_is_refused_and_nothing_is_touched(installed: Installed) -> None:
    run = installed.deploy()
    assert run.returncode != 0
    assert "found no kubeconfig" in run.output
    assert "deploy-cluster.yml" in run.output
    assert installed.head("ls /etc/slurm /etc/munge 2>/dev/null; true") == ""


def test_without_the_stack_likewise(installed: Installed) -> None:
    installed.give_credentials()
    run = installed.deploy()
    assert run.returncode != 0
    assert "found no ServiceAccount railweld-system/bridged" in run.output
    assert installed.head("ls /etc/slurm /etc/munge 2>/dev/null; true") == ""


def test_the_plan_is_one_on_an_empty_head(installed: Installed) -> None:
    stack = stack_for(load_site([str(installed.lab.inventory)]))
    worlds.apply_stack(installed.plane, stack)
    run = installed.deploy("--check").assert_ok()
    assert run.changed()["head1"] > 0
    assert installed.head("ls /etc/slurm /usr/libexec/railweld 2>/dev/null; true") == ""


def test_the_site_installs_the_bridge_and_a_second_run_changes_nothing(
    installed: Installed,
) -> None:
    installed.deploy().assert_ok()
    assert installed.ready() == "ok"
    assert installed.head("stat -c '%U %a' /etc/railweld/bridge.kubeconfig") == "slurm 600"
    assert installed.head(f"stat -c '%U %a' {names.BRIDGE_TOKEN}") == "slurm 600"
    assert installed.head("ps -o user= -C python3 --no-headers | sort -u") == "slurm"
    assert bundle.build().path in installed.head("systemctl cat bridged")
    token = installed.head(f"cat {names.BRIDGE_TOKEN}")
    assert token not in installed.head("cat /etc/railweld/bridge.kubeconfig")
    config = installed.head("scontrol show config")
    for key in ("Epilog ", "EpilogSlurmctld "):
        assert any(
            line.startswith(key) and names.BRIDGE_EPILOG in line for line in config.splitlines()
        )
    again = installed.deploy("--diff").assert_ok()
    assert set(again.changed().values()) == {0}, again.output[-6000:]
    plan = installed.deploy("--check").assert_ok()
    assert set(plan.changed().values()) == {0}
    assert installed.head(f"cat {names.BRIDGE_TOKEN}") == token


def test_a_users_job_runs_as_a_pod(installed: Installed) -> None:
    installed.head("id alice >/dev/null 2>&1 || useradd --create-home --uid 2001 alice")
    installed.start_kubelets()
    wait_for(lambda: installed.head("sinfo --noheader --format=%T") == "idle")
    job = installed.submit("#!/bin/sh\necho ran as $(id -un) in $IMAGE_MARK\nexit 0\n")
    wait_for(lambda: installed.state(job) == "COMPLETED", what=lambda: installed.output(job))
    assert "ran as alice in from-image" in installed.output(job)
    refused = installed.head("cd /tmp && sbatch --wrap=true 2>&1", user="alice", check=False)
    assert "not on storage that the nodes have" in refused


def test_a_run_that_was_cut_before_the_restart_is_finished_by_the_next(
    installed: Installed,
) -> None:
    pid = installed.head("systemctl show -p MainPID --value bridged")
    wait_for(lambda: installed.head("[ $(ps -o etimes= -p $(systemctl show -p MainPID --value "
                                    "bridged)) -gt 3 ] && echo old") == "old")  # fmt: skip
    installed.head("cp -a /etc/railweld/bridge.json /x && cat /x > /etc/railweld/bridge.json")
    installed.deploy().assert_ok()
    assert installed.head("systemctl show -p MainPID --value bridged") != pid
    assert installed.ready() == "ok"


def test_a_token_that_the_cluster_does_not_take_any_more_is_replaced(
    installed: Installed,
) -> None:
    before = installed.head(f"cat {names.BRIDGE_TOKEN}")
    account = ("serviceaccount", names.SERVICE_ACCOUNT_BRIDGE, "-n", names.NAMESPACE_SYSTEM)
    installed.plane.kubectl("delete", *account)
    installed.plane.kubectl("create", *account)
    # The server believes for some seconds what it has just checked.
    wait_for(lambda: answer(installed) == "401", 60)
    installed.deploy().assert_ok()
    assert installed.head(f"cat {names.BRIDGE_TOKEN}") != before
    assert installed.ready() == "ok"
    assert set(installed.deploy().assert_ok().changed().values()) == {0}


def answer(installed: Installed) -> str:
    """Status with which the API server answers the head's token."""
    address = f"https://{installed.plane.address}:{installed.plane.port}/api"
    return installed.head(
        "python3 -c 'import ssl, sys, urllib.request as u, urllib.error as e\n"
        f'r = u.Request("{address}", headers={{"Authorization": "Bearer " + sys.argv[1]}})\n'
        "c = ssl._create_unverified_context()\n"
        "try: print(u.urlopen(r, context=c).status)\n"
        f"except e.HTTPError as x: print(x.code)' $(cat {names.BRIDGE_TOKEN})"
    )


def test_switching_it_off_waits_for_its_jobs_and_takes_the_hook_first(
    installed: Installed,
) -> None:
    job = installed.submit("#!/bin/sh\necho up\nsleep 600\n")
    wait_for(lambda: "up" in installed.output(job), what=lambda: installed.output(job))
    off = ("-e", json.dumps({"railweld_partitions": OFF}))
    run = installed.deploy(*off)
    assert run.returncode != 0
    assert f"partition gpu leaves the bridge: found jobs {job}" in run.output
    assert "JobSubmitPlugins=lua" in installed.head("cat /etc/slurm/slurm.conf")
    assert installed.ready() == "ok"
    installed.head(f"scancel {job}")
    wait_for(lambda: installed.state(job) == "CANCELLED", what=lambda: installed.state(job))
    run = installed.deploy(*off).assert_ok()
    words = ("Have the daemons read their files again", "Stop the daemon")
    assert run.output.index(words[0]) < run.output.index(words[1])
    left = "ls -d /etc/railweld/bridge* /usr/libexec/railweld/* /usr/lib/railweld/* "
    left += "/var/lib/railweld/bridge /etc/systemd/system/bridged.service /etc/slurm/*.lua"
    assert installed.head(f"{left} 2>/dev/null; true") == ""
    assert "JobSubmitPlugins        = (null)" in installed.head("scontrol show config")
    assert set(installed.deploy(*off).assert_ok().changed().values()) == {0}


def test_switching_it_on_in_a_running_slurm(installed: Installed) -> None:
    boot = installed.head("scontrol show config | grep BOOT_TIME")
    installed.deploy().assert_ok()
    assert installed.head("scontrol show config | grep BOOT_TIME") == boot
    assert installed.ready() == "ok"
    wait_for(lambda: installed.head("sinfo --noheader --format=%T") == "idle")
    job = installed.submit("#!/bin/sh\necho ran in $IMAGE_MARK\n")
    wait_for(lambda: installed.state(job) == "COMPLETED", what=lambda: installed.output(job))
    assert "ran in from-image" in installed.output(job)
    assert set(installed.deploy().assert_ok().changed().values()) == {0}
