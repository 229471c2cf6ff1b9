"""Slurm on lab nodes: what a change of its configuration does to jobs that run.

One lab: a head with accounting, gpu1 virtual on it, gpu2 with a slurmd of its own. The tests run in
their order, as an operator's days do; each leaves the cluster as it found it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from railweld.record import Check
from tests.fault_table import NODES, pattern_of
from tests.labs import (
    REPOSITORY,
    PlayRun,
    TestLab,
    answer,
    command,
    environment,
    play,
    running_lab,
    write_inventory,
)

pytestmark = [pytest.mark.lab, pytest.mark.deep]

DEPLOY = "playbooks/deploy-slurm.yml"
PREPARE = "roles/slurm/molecule/prepare.yml"
DEVICES = "for n in 0 1 2 3 4 5 6 7; do mknod /dev/nvidia$n c 195 $n; done"
FILES = ("slurm.conf", "gres.conf", "cgroup.conf")


def wait_for(condition: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Wait until a condition holds; fail by name after a while."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.5)


class Slurm:
    """The cluster as a user on the head sees it."""

    def __init__(self, lab: TestLab) -> None:
        self.lab = lab

    def head(self, command: str, *, check: bool = True) -> str:
        return self.lab.node("head1", "sh", "-c", command, check=check).strip()

    def deploy(self, *arguments: str, **parameters: str) -> PlayRun:
        """Run deploy-slurm.yml, with these parameters of slurm.conf."""
        extra = ["-e", json.dumps({"railweld_slurm_parameters": parameters})]
        return self.lab.play(*extra, *arguments, playbook=DEPLOY)

    def submit(self, node: str, body: str, *options: str) -> str:
        script = f"sbatch --parsable --nodelist={node} --output=/root/%j.out {' '.join(options)}"
        return self.head(f"cd /root && {script} --wrap={json.dumps(body)}")

    def job(self, number: str) -> dict[str, str]:
        text = self.head(f"scontrol --oneliner show job {number}")
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def waits_in(self, number: str, state: str) -> None:
        wait_for(lambda: self.job(number)["JobState"] == state, f"job {number} {state}")

    def config(self, key: str) -> str:
        match = re.search(rf"^{key}\s*= (.*)$", self.head("scontrol show config"), re.MULTILINE)
        assert match, key
        return match[1].strip()

    def files(self) -> dict[str, str]:
        return {name: self.head(f"sha256sum < /etc/slurm/{name}") for name in FILES}

    def state_of(self, node: str) -> str:
        return self.head(f"sinfo --noheader --nodes={node} --format='%T|%E'")

    def controller(self) -> str:
        """The process of slurmctld."""
        return self.head("systemctl show --property=MainPID --value slurmctld")

    def pids_of_slurmd(self, node: str) -> tuple[str, str]:
        """The slurmd of gpu1 (virtual, on the head) or gpu2 (its own), and its step daemons."""
        host, unit = ("head1", "slurmd@gpu1") if node == "gpu1" else (node, "slurmd")
        return (
            self.lab.node(host, "systemctl", "show", "--property=MainPID", "--value", unit).strip(),
            self.lab.node(host, "pgrep", "--full", "slurmstepd", check=False).strip(),
        )


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A deployed cluster on nodes whose time is in order."""
    inventory = write_inventory(
        tmp_path_factory.mktemp("inventory"),
        site="slurm",
        third_octet=22,
        gpu_nodes=2,
        variables={
            "railweld_partitions": [
                {"name": "train", "group": "gpu_nodes", "default": True, "bridge": False}
            ],
            # A job that is cancelled by a test ends at once.
            "railweld_slurm_parameters": {},
        },
        host_variables={
            "gpu1": {"railweld_slurmd": "virtual"},
            "gpu2": {"railweld_cpus": 2, "railweld_sockets": 1, "railweld_memory_mib": 1000},
        },
    )
    with running_lab(inventory) as lab:
        lab.play(playbook=PREPARE).assert_ok()
        lab.node("gpu2", "sh", "-c", DEVICES)
        cluster = Slurm(lab)
        run = cluster.deploy().assert_ok()
        assert {"head1", "gpu2"} <= set(run.report["hosts"])
        yield cluster


@pytest.fixture
def jobs(slurm: Slurm) -> Iterator[dict[str, str]]:
    """A job on each node that waits for its file /root/go; both run."""
    body = "echo begun; while [ ! -e /root/go ]; do sleep 0.2; done; echo ended"
    slurm.head("rm -f /root/go")
    slurm.lab.node("gpu2", "rm", "-f", "/root/go")
    numbers = {node: slurm.submit(node, body, "--gres=gpu:1") for node in ("gpu1", "gpu2")}
    for number in numbers.values():
        slurm.waits_in(number, "RUNNING")
    yield numbers
    release(slurm)
    slurm.head(f"scancel {' '.join(numbers.values())}", check=False)
    wait_for(lambda: slurm.head("squeue --noheader --states=RUNNING,COMPLETING") == "", "no jobs")


def release(slurm: Slurm) -> None:
    """Let the waiting jobs come to their end."""
    slurm.head("touch /root/go")
    slurm.lab.node("gpu2", "touch", "/root/go")


def end_well(slurm: Slurm, jobs: dict[str, str]) -> None:
    """The jobs ran through, were never started again, and printed their last line."""
    release(slurm)
    for node, number in jobs.items():
        slurm.waits_in(number, "COMPLETED")
        job = slurm.job(number)
        assert (job["ExitCode"], job["Restarts"], job["NodeList"]) == ("0:0", "0", node)
        host = "head1" if node == "gpu1" else node
        assert slurm.lab.node(host, "cat", f"/root/{number}.out").split() == ["begun", "ended"]


def test_both_kinds_of_node_are_in_service_with_their_gpus(slurm: Slurm) -> None:
    seen = slurm.head("sinfo --Node --noheader --format='%N %T %G %c'").splitlines()
    assert seen == ["gpu1 idle gpu:a100:8 128", "gpu2 idle gpu:a100:8 2"]
    assert slurm.config("PropagateResourceLimitsExcept") == "MEMLOCK"


def test_accounting_has_the_job_with_its_gpus(slurm: Slurm) -> None:
    number = slurm.submit("gpu1", "true", "--gres=gpu:3", "--wait")
    query = f"sacct -X --noheader --parsable2 --jobs={number} --format=State,AllocTRES,Cluster"
    wait_for(lambda: "COMPLETED" in slurm.head(query), "the job in sacct")
    assert "gres/gpu:a100=3" in slurm.head(query)
    assert slurm.head(query).endswith("|slurm")


def test_a_second_run_changes_nothing(slurm: Slurm) -> None:
    run = slurm.deploy().assert_ok()
    assert set(run.changed().values()) == {0}, run.output[-6000:]


def test_a_users_locked_memory_limit_does_not_reach_the_job(slurm: Slurm) -> None:
    number = slurm.head(
        "cd /root && ulimit -l 64 && sbatch --wait --parsable --nodelist=gpu1 "
        "--output=/root/limit.out --wrap='ulimit -l'"
    )
    assert slurm.job(number)["JobState"] == "COMPLETED"
    assert slurm.head("cat /root/limit.out") != "64"


def test_a_reconfigure_leaves_daemons_and_jobs_alone(slurm: Slurm, jobs: dict[str, str]) -> None:
    boot = slurm.config("BOOT_TIME")
    before = {node: slurm.pids_of_slurmd(node) for node in jobs}
    run = slurm.deploy(KillWait="75").assert_ok()
    assert "KillWait: 60 -> 75: reconfigure" in run.output
    assert slurm.config("KillWait") == "75 sec"
    assert slurm.config("BOOT_TIME") == boot
    assert {node: slurm.pids_of_slurmd(node) for node in jobs} == before
    end_well(slurm, jobs)
    slurm.deploy().assert_ok()
    assert slurm.config("KillWait") == "60 sec"


def test_a_restart_of_slurmctld_is_chosen_and_jobs_live_on(
    slurm: Slurm, jobs: dict[str, str]
) -> None:
    boot = slurm.config("BOOT_TIME")
    before = {node: slurm.pids_of_slurmd(node) for node in jobs}
    run = slurm.deploy(MaxJobCount="5000").assert_ok()
    assert "MaxJobCount: default -> 5000: restart of slurmctld" in run.output
    assert slurm.config("MaxJobCount") == "5000"
    assert slurm.config("BOOT_TIME") != boot
    assert {node: slurm.pids_of_slurmd(node) for node in jobs} == before
    end_well(slurm, jobs)


def test_a_restart_of_every_slurmd_is_chosen_and_jobs_live_on(
    slurm: Slurm, jobs: dict[str, str]
) -> None:
    before = {node: slurm.pids_of_slurmd(node) for node in jobs}
    slurm.deploy(LaunchParameters="send_gids").assert_ok()
    after = {node: slurm.pids_of_slurmd(node) for node in jobs}
    for node in jobs:
        assert after[node][0] != before[node][0], f"slurmd of {node} was not restarted"
        assert after[node][1] == before[node][1], f"steps on {node} changed"
    end_well(slurm, jobs)
    slurm.deploy().assert_ok()


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"SchedulerType": "sched/nonsense"}, "sched/nonsense"),
        ({"NoSuchParameter": "1"}, "NoSuchParameter"),
        ({"SchedulerTimeSlice": "soon"}, "SchedulerTimeSlice"),
    ],
)
def test_what_slurmctld_does_not_start_with_replaces_no_file(
    slurm: Slurm, parameters: dict[str, str], said: str
) -> None:
    files, boot = slurm.files(), slurm.config("BOOT_TIME")
    run = slurm.deploy(**parameters)
    assert run.returncode != 0
    assert said in run.output
    assert "were not touched" in run.output
    assert (slurm.files(), slurm.config("BOOT_TIME")) == (files, boot)
    assert slurm.head("ls -A /var/lib/railweld/slurm") == "applied\ngpu"


def test_a_change_that_would_end_jobs_waits_for_them(slurm: Slurm, jobs: dict[str, str]) -> None:
    files = slurm.files()
    run = slurm.deploy(SelectType="select/linear", SelectTypeParameters="CR_Memory")
    assert run.returncode != 0
    assert f"jobs {jobs['gpu1']} root RUNNING" in run.output
    assert slurm.files() == files
    end_well(slurm, jobs)


def test_another_key_reaches_all_hosts_under_running_jobs(
    slurm: Slurm, jobs: dict[str, str]
) -> None:
    path = Path(environment().get("RAILWELD_STATE") or Path.home() / ".local/state/railweld")
    path = path / "slurm/lab/munge.key"
    old = path.read_text()
    key = secrets.token_bytes(128)
    path.write_text(base64.b64encode(key).decode())
    run = slurm.deploy("--diff").assert_ok()
    for secret in (path.read_text(), old.strip()):
        assert secret not in run.output
    for host in ("head1", "gpu2"):
        seen = slurm.lab.node(host, "sh", "-c", "base64 -w0 /etc/munge/munge.key")
        assert seen == path.read_text()
        assert slurm.lab.node(host, "stat", "-c", "%a %U", "/etc/munge/munge.key").split() == [
            "400",
            "munge",
        ]
    # A credential of one host is taken by the other.
    credential = slurm.head("munge -n")
    slurm.lab.node("gpu2", "sh", "-c", f"echo '{credential}' | unmunge")
    end_well(slurm, jobs)
    assert set(slurm.deploy().assert_ok().changed().values()) == {0}


def test_a_run_that_was_cut_off_behind_the_file_is_finished_by_the_next(
    slurm: Slurm, jobs: dict[str, str]
) -> None:
    boot = slurm.config("BOOT_TIME")
    cut(slurm, "MaxJobCount", "6000", at="Write Slurm's configuration")
    assert "MaxJobCount=6000" in slurm.head("cat /etc/slurm/slurm.conf")
    assert slurm.config("BOOT_TIME") == boot
    run = slurm.deploy(MaxJobCount="6000").assert_ok()
    assert "restart of slurmctld" in run.output
    assert slurm.config("MaxJobCount") == "6000"
    assert set(slurm.deploy(MaxJobCount="6000").assert_ok().changed().values()) == {0}
    end_well(slurm, jobs)
    slurm.deploy().assert_ok()


def cut(slurm: Slurm, key: str, value: str, *, at: str) -> None:
    """Start a run and kill it as soon as it has done the named task on the head."""
    run = subprocess.Popen(
        [
            "ansible-playbook",
            "-i",
            str(slurm.lab.inventory),
            DEPLOY,
            "-e",
            json.dumps({"railweld_slurm_parameters": {key: value}}),
        ],
        cwd=REPOSITORY,
        env={**environment(), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    try:
        for line in run.stdout:
            if at in line:
                break
        else:
            pytest.fail(f"the run ended before {at!r}")
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def test_maintenance_waits_for_the_job_and_gives_the_node_back(
    slurm: Slurm, jobs: dict[str, str]
) -> None:
    slurm.head("scontrol update nodename=gpu1 state=drain reason='admin: fan'")
    command = [
        "ansible-playbook",
        "-i",
        str(slurm.lab.inventory),
        "tests/integration/slurm/maintenance.yml",
        "-e",
        "maintenance_poll_s=1",
    ]
    run = subprocess.Popen(
        command, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, text=True
    )
    wait_for(lambda: "drain" in slurm.state_of("gpu2"), "gpu2 drained", 180)
    assert "railweld base" in slurm.state_of("gpu2")
    assert slurm.job(jobs["gpu2"])["JobState"] == "RUNNING"
    assert run.poll() is None
    release(slurm)
    output, _ = run.communicate(timeout=300)
    assert run.returncode == 0, output[-4000:]
    assert slurm.state_of("gpu2").startswith("idle")
    # What an administrator drained stays drained.
    assert slurm.state_of("gpu1").startswith("drained|admin: fan")
    slurm.head("scontrol update nodename=gpu1 state=resume")


def test_a_node_that_is_described_no_more_goes_only_without_jobs(
    slurm: Slurm, jobs: dict[str, str]
) -> None:
    only = {"railweld_partitions": [{"name": "train", "hosts": ["gpu2"], "bridge": False}]}
    run = play(slurm.lab.inventory, "-e", json.dumps(only), playbook=DEPLOY)
    assert run.returncode != 0
    assert f"removal of gpu1: found jobs {jobs['gpu1']}" in run.output
    assert "gpu1" in slurm.head("sinfo --noheader --Node --format=%N").split()
    end_well(slurm, jobs)
    play(slurm.lab.inventory, "-e", json.dumps(only), playbook=DEPLOY).assert_ok()
    assert slurm.head("sinfo --noheader --Node --format=%N").split() == ["gpu2"]
    assert slurm.head("systemctl is-active slurmd@gpu1", check=False) == "inactive"
    slurm.deploy().assert_ok()
    assert slurm.head("sinfo --noheader --Node --format=%N").split() == ["gpu1", "gpu2"]


#: Debian's revision on nodes whose Slurm was installed a while ago: its packages, renamed.
OLDER = r"""set -e
rm -rf /root/older && mkdir /root/older && cd /root/older
now=$(dpkg-query -W -f '${Version}' slurmd)
apt-get -qq download $(dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\n' |
  awk -v now="$now" '$1 == "hi" || $1 == "ii" { if ($3 == now) print $2 "=" now }')
for deb in *.deb; do
  dpkg-deb --raw-extract "$deb" tree
  sed -i "s/$now/$now~older/g" tree/DEBIAN/control
  dpkg-deb --build --root-owner-group tree "older-$deb" >/dev/null
  rm -r tree
done
DEBIAN_FRONTEND=noninteractive dpkg --install --force-downgrade older-*.deb
"""
BACKUPS = "/var/backups/railweld-slurm"


def looked(slurm: Slurm) -> dict[str, set[str]]:
    """What is wrong with Slurm now: machine to ids of checks."""
    argv = ["railweld", "verify", "-i", str(slurm.lab.inventory), "--stage", "slurm", "--json"]
    found = [Check(**check) for check in answer(command(argv, check=False).stdout)["checks"]]
    red: dict[str, set[str]] = {}
    for check in found:
        if check.is_bad:
            red.setdefault(check.place[0], set()).add(pattern_of(check.id))
    return red


def causes(slurm: Slurm, node: str, since: int) -> set[str]:
    """What doctor says is wrong with a node, besides its base, which is not deployed here."""
    argv = ["railweld", "doctor", node, "-i", str(slurm.lab.inventory), "--json"]
    said = answer(command([*argv, "--since", f"@{since}"], check=False).stdout)
    found = [cause for incident in said["incidents"] for cause in incident["causes"]]
    return {cause["id"] for cause in found}


def credential_is_taken(slurm: Slurm) -> bool:
    """Whether the head takes a credential of gpu2's munged."""
    made = slurm.lab.node("gpu2", "munge", "--no-input").strip()
    return "Success" in slurm.head(f"echo {made} | unmunge || true")


@pytest.mark.parametrize("fault", [name for name, row in NODES.items() if row.stage == "slurm"])
def test_fault_turns_exactly_its_declared_checks_red_and_doctor_names_it(
    slurm: Slurm, fault: str
) -> None:
    row = NODES[fault]
    happened: Mapping[str, Callable[[], bool]] = {
        "munge-skew": lambda: not credential_is_taken(slurm),
        "node-drained": lambda: slurm.state_of("gpu2") == "drained|maintenance",
        "slurmctld-restart": lambda: slurm.controller() != before,
    }
    began = int(time.time())
    before, known = slurm.controller(), causes(slurm, row.node, began)
    assert not happened[fault]()
    slurm.lab.fault(fault, row.node, *(f"{key}={value}" for key, value in row.settings.items()))
    try:
        wait_for(happened[fault], fault)
        red = {machine: set(ids) for machine, ids in row.red.items()}
        wait_for(lambda: looked(slurm) == red, f"{red} alone")
        assert causes(slurm, row.node, began) - known == ({row.cause} if row.cause else set())
    finally:
        slurm.lab.clear(fault, row.node)
    wait_for(lambda: looked(slurm) == {}, "a Slurm as described")
    wait_for(lambda: "idle" in slurm.state_of("gpu2"), "gpu2 in service")


@pytest.fixture
def older(slurm: Slurm) -> str:
    """Both hosts have an older revision; returns the one that the site describes."""
    version = slurm.lab.installed("head1")["slurmctld"]
    for host in ("head1", "gpu2"):
        slurm.lab.node(host, "sh", "-c", OLDER)
        assert slurm.lab.installed(host)["slurmd"] == f"{version}~older"
    wait_for(lambda: slurm.head("sinfo -h -o %T").split() == ["idle"], "idle nodes")
    return version


def test_an_upgrade_backs_up_first_keeps_its_order_and_jobs_live_on(
    slurm: Slurm, older: str, jobs: dict[str, str]
) -> None:
    lab = slurm.lab
    held = slurm.submit("gpu1", "true", "--hold")
    plan = slurm.deploy("--check").assert_ok()
    assert f"slurmctld {older}~older -> {older}" in plan.output
    assert "would be backed up first" in plan.output
    assert slurm.head(f"ls {BACKUPS} 2>/dev/null; true") == ""
    slurm.deploy().assert_ok()
    packages = ("slurmctld", "slurmdbd", "slurmd")
    assert {lab.installed("head1")[name] for name in packages} == {older}
    assert set(packages) <= lab.holds("head1")
    # The site's own builds have no pinned revision, and nothing moves by itself.
    assert lab.installed("gpu2")["slurmd"] == f"{older}~older"
    # What is in the copies is from before the packages were replaced.
    state, accounting = (
        slurm.head(f"ls {BACKUPS}/*-{kind}") for kind in ("state.tar.gz", "accounting.sql")
    )
    assert slurm.head(f"stat -c '%U %a' {BACKUPS}") == "root 700"
    assert "slurmctld/job_state" in slurm.head(f"tar -tzf {state}").split()
    assert "CREATE TABLE `slurm_job_table`" in slurm.head(f"cat {accounting}")
    moments = f"stat -c %Y {state} {accounting} /var/lib/dpkg/info/slurmctld.list"
    taken = [int(each) for each in slurm.head(moments).split()]
    assert max(taken[:2]) <= taken[2]
    moment = "systemctl show --value -p ActiveEnterTimestampMonotonic"
    units = ("slurmdbd", "slurmctld", "slurmd@gpu1")
    started = [int(slurm.head(f"{moment} {unit}")) for unit in units]
    assert started == sorted(started)
    assert slurm.job(held)["Reason"] == "JobHeldUser"
    end_well(slurm, jobs)
    assert set(slurm.deploy().assert_ok().changed().values()) == {0}
    assert len(slurm.head(f"ls {BACKUPS}").split()) == 2


def test_a_head_that_lost_its_state_gets_it_back_from_the_backup(slurm: Slurm) -> None:
    """As docs/slurm.md says it; the upgrade's backup has a held job and those before it."""
    moment = slurm.head(f"ls {BACKUPS}/*-state.tar.gz").removesuffix("-state.tar.gz")
    before = slurm.head("sacct -nXP --starttime=now-1days --format=JobID,State").splitlines()
    slurm.head(
        "systemctl stop slurmctld slurmdbd; rm -rf /var/lib/slurm/slurmctld/*; "
        "mariadb --execute 'drop database slurm_acct_db'"
    )
    slurm.deploy().assert_ok()
    assert slurm.head("squeue --noheader") == ""
    slurm.head("systemctl stop slurmctld slurmdbd")
    slurm.head(f"tar -xzf {moment}-state.tar.gz -C /var/lib/slurm")
    slurm.head(f"mariadb slurm_acct_db < {moment}-accounting.sql")
    slurm.head("systemctl start slurmdbd slurmctld")
    wait_for(lambda: "UP" in slurm.head("scontrol ping", check=False), "slurmctld")
    queue = slurm.head("squeue --noheader --states=PENDING --format='%i %r'").split()
    assert queue[1:] == ["JobHeldUser"]
    # The backup has jobs as running that have ended since, of which nodes say so a minute later.
    after = slurm.head("sacct -nXP --starttime=now-1days --format=JobID,State").splitlines()
    ended = [each for each in before if each.endswith("|COMPLETED") and each in after]
    assert len(ended) > 1, (before, after)
    wait_for(lambda: slurm.head("sinfo -h -o %T").split() == ["idle"], "idle nodes")
    slurm.head("scancel --user=root")
