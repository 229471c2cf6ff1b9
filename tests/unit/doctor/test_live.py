"""What doctor gathers by itself, over Ansible's own connection to this machine.

The programs of Slurm, Kubernetes and the journal are scripts that print what the real ones print.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from railweld.access import Access
from railweld.doctor import live
from railweld.doctor.catalogue import load
from railweld.doctor.diagnosis import Diagnosis, Doctor
from railweld.doctor.live import Live, is_job
from railweld.record import Check, Status
from railweld.verify import stages
from railweld.verify.hosts import not_reached
from railweld.verify.stages import Request, Verified, request_for
from tests.labs import write_inventory

FLAP = """\
2026-11-30T02:50:00+00:00 gpu1 kernel: mlx5_core 0000:5c:00.0 rail1: Link up
2026-11-30T02:57:25+00:00 gpu1 kernel: mlx5_core 0000:5c:00.0 rail1: Link down
"""
JOB = """\
JobId=12 JobName=train
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   NodeList=gpu1,gone7
   BatchHost=gpu1
   StdErr={folder}/train-12.out
   StdOut={folder}/train-12.out
"""
PODS = """\
NAME         READY   STATUS    RESTARTS   AGE
slurm-12-0   0/1     Pending   0          9s
"""
_EVENT = "2026-11-30T02:57:25Z Warning FailedScheduling "
EVENTS = (
    f"{_EVENT} slurm-12-0 0/3 nodes are available: 3 Insufficient rdma/hca.\n"
    f"{_EVENT} slurm-11-0 exceeded quota: gpus, requested: requests.nvidia.com/gpu=8\n"
)
GRES = "NodeName=gpu1 Reason=gres/gpu count reported lower than configured (7 < 8)"

#: slurmctld's log when a message comes from a node whose clock is behind.
REFUSED = """\
[{at}] error: Munge decode failed: Expired credential
[{at}] auth/munge: _print_cred: ENCODED: Mon Nov 30 18:07:25 2026
[{at}] auth/munge: _print_cred: DECODED: Mon Nov 30 18:17:25 2026
[{at}] error: slurm_unpack_received_msg: {sender}:50158] auth_g_verify: REQUEST_BUILD_INFO has \
authentication error: Unspecified error
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that comes first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def prints(text: str) -> str:
    return f"cat <<'END'\n{text}END"


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    here = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
    }
    inventory = write_inventory(
        tmp_path, site="live", third_octet=37, host_variables={"head1": here, "gpu1": here}
    )
    request = request_for(Access((str(inventory),)))
    request.timeout_s = 90
    return request


@pytest.fixture
def heard(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of slurmctld, on nodes that have nothing else to say."""
    monkeypatch.setattr(stages, "verify", lambda _request, _stage: Verified([]))
    monkeypatch.setattr(live, "_HEARD", str(tmp_path / "slurmctld.log"))
    program(programs, "journalctl", "exit 0")
    # As systemd prints it, for the window of `look`.
    begin = int(time.time()) - 24 * 3600
    program(programs, "systemd-analyze", f'[ "$3" = -24h ] && echo "    UNIX seconds: @{begin}"')
    return tmp_path / "slurmctld.log"


def look(request: Request, *, job: str = "", nodes: tuple[str, ...] = ()) -> Diagnosis:
    doctor = Doctor(load())
    looking = Live(request, doctor, since="-24h")
    if job:
        looking.job(job)
    if nodes:
        looking.nodes(nodes)
    return doctor.diagnose()


def ids(diagnosis: Diagnosis) -> set[str]:
    return {cause.entry.id for cause in diagnosis.causes}


def test_node_is_judged_by_its_checks_and_its_journal(
    request_: Request, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(id_: str, target: str) -> Check:
        return Check(
            id=id_, layer="host", target=target, status=Status.FAIL, ran="look", found="bad",
            expected="good", fix="mend",
        )  # fmt: skip

    silent = not_reached("gpu1", "no answer within 90 s")
    found = Verified([check("chrony.daemon", "gpu1"), check("rdma.memlock", "gpu2"), silent])
    monkeypatch.setattr(stages, "verify", lambda _request, _stage: found)
    program(programs, "journalctl", f'[ "$1" = -k ] || exit 0\n{prints(FLAP)}')
    diagnosis = look(request_, nodes=("gpu1", "gone7"))
    assert ids(diagnosis) == {"link-down", "chrony-unsynced"}
    evidence = next(c for c in diagnosis.causes if c.entry.id == "link-down").first
    assert (evidence.where, evidence.line) == ("gpu1: journalctl -k", 2)
    assert any("gone7: not in the inventory" in text for text in diagnosis.unread)
    # Every stage found the same, and it is said once.
    assert diagnosis.checks == 2
    assert diagnosis.unread.count(silent.sentence()) == 1


def test_journal_that_cannot_be_read_is_said(
    request_: Request, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "STAGES", {})
    program(programs, "journalctl", "echo no permission >&2; exit 1")
    diagnosis = look(request_, nodes=("gpu1",))
    assert diagnosis.incidents == []
    assert [text.partition(": ")[2][:10] for text in diagnosis.unread] == [
        "journalctl",
        "journalctl",
    ]


@pytest.mark.parametrize(
    ("sender", "hours", "causes"),
    [
        ("[[gpu1]", 1, {"munge-clock"}),
        ("[10.213.37.11", 1, {"munge-clock"}),
        ("[[gpu11]", 1, set()),
        ("[[gpu1]", 30, set()),
    ],
)
def test_what_slurmctld_said_of_its_messages_is_read(
    heard: Path, request_: Request, sender: str, hours: int, causes: set[str]
) -> None:
    at = (datetime.now().astimezone() - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%S.123")
    heard.write_text(REFUSED.format(at=at, sender=sender))
    assert ids(look(request_, nodes=("gpu1",))) == causes


def test_job_is_followed_to_its_output_its_pods_and_its_nodes(
    request_: Request, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "STAGES", {})
    output = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    (tmp_path / "train-12.out").write_text(output)
    program(
        programs,
        "scontrol",
        'case "$2" in\n'
        f"job) {prints(JOB.format(folder=tmp_path))}\n;;\n"
        "hostnames) echo gpu1; echo gone7;;\n"
        f'node) echo "{GRES}";;\n'
        "esac",
    )
    program(programs, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    program(
        programs,
        "kubectl",
        'case "$*" in\n'
        f'*"get pods"*) {prints(PODS)}\n;;\n'
        f'*"get events"*) {prints(EVENTS)}\n;;\n'
        "*) exit 0;;\nesac",
    )
    program(programs, "journalctl", "exit 0")
    diagnosis = look(request_, job="12")
    assert {"cuda-oom", "slurm-gres"} <= ids(diagnosis)
    named = {f.entry.id: f for i in diagnosis.incidents for f in i.findings()}
    assert named["cuda-oom"].first.where == f"head1:{tmp_path}/train-12.out"
    # An event of another job is not this one's.
    assert "pending-resource" in named
    assert "quota" not in named
    assert any("sacct 12" in text and "disabled" in text for text in diagnosis.unread)
    assert any("gone7" in text for text in diagnosis.unread)


def test_name_of_an_output_that_ansible_would_read_as_code_is_not_asked_for(
    request_: Request, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "STAGES", {})
    mark = tmp_path / "mark"
    record = (
        f"JobId=12\n   NodeList=(null)\n   StdOut=/{{{{lookup('pipe','touch${{IFS}}{mark}')}}}}\n"
    )
    program(programs, "scontrol", prints(record))
    for name in ("sacct", "kubectl"):
        program(programs, name, "exit 1")
    diagnosis = look(request_, job="12")
    assert not mark.exists()
    assert any("not asked for" in text for text in diagnosis.unread)


@pytest.mark.parametrize(
    ("word", "expected"), [("12", True), ("12_3", True), ("gpu1", False), ("12;ls", False)]
)
def test_what_can_be_a_job(word: str, expected: bool) -> None:
    assert is_job(word) is expected
