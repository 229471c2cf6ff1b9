"""From lines to a first cause: order, incidents, effects, conditions, and honest silence."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from railweld.doctor.catalogue import Entry, load, read
from railweld.doctor.diagnosis import Diagnosis, Doctor
from railweld.doctor.report import as_json, as_text, exit_code
from railweld.record import Check, Status

ENTRIES = load()
FIXTURES = Path(__file__).parents[2] / "fixtures"

XID = "Nov 30 02:57:25 gpu7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off.\n"
CLOSED = (
    "2026-11-30 02:57:27 gpu1:88:99 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection "
    "closed by remote peer gpu7<41234>\n"
)
WATCHDOG = (
    "[rank3]:[E1130 03:07:25.123 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=1042, OpType=ALLREDUCE, Timeout(ms)=600000) ran\n"
)
OOM = "[rank5]: 2026-11-30 02:57:20 torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n"
MEMLOCK = (
    "gpu1:88:99 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
)


def diagnose(**logs: str | bytes) -> Diagnosis:
    """Read logs by name, in this order."""
    doctor = Doctor(ENTRIES)
    for name, text in logs.items():
        doctor.read_blocks(name, [text.encode() if isinstance(text, str) else text])
    return doctor.diagnose()


def ids(diagnosis: Diagnosis) -> list[str]:
    return [cause.entry.id for cause in diagnosis.causes]


def followers(diagnosis: Diagnosis) -> list[str]:
    incident = diagnosis.incidents[0]
    return [each.entry.id for each in incident.followed[incident.causes[0].entry.id]]


HEALTHY = [path for path in sorted(FIXTURES.rglob("*.txt")) if "FAILED" not in path.read_text()]


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.name)
def test_real_healthy_output_gets_no_blame(path: Path) -> None:
    assert diagnose(log=path.read_bytes()).incidents == []


def test_effects_on_other_ranks_stand_under_their_cause() -> None:
    diagnosis = diagnose(rank3=WATCHDOG, rank0=CLOSED, kernel=XID)
    assert ids(diagnosis) == ["xid-hardware"]
    assert followers(diagnosis) == ["peer-closed", "torch-watchdog"]


def test_time_decides_across_files_and_not_their_order() -> None:
    assert ids(diagnose(a=XID, b=OOM))[0] == "cuda-oom"
    assert ids(diagnose(b=OOM, a=XID))[0] == "cuda-oom"


def test_lowest_layer_comes_first_where_times_are_missing() -> None:
    later = "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument\n"
    assert ids(diagnose(job="RuntimeError: CUDA error: out of memory\n", host=later)) == [
        "peermem-insert",
        "cuda-oom",
    ]


def test_order_of_lines_decides_within_a_file_without_times() -> None:
    two = "RuntimeError: CUDA error: out of memory\n" + MEMLOCK
    assert ids(diagnose(job=two))[0] == "cuda-oom"


def test_faults_hours_apart_are_separate_incidents() -> None:
    late = XID.replace("02:57:25", "09:57:25")
    diagnosis = diagnose(job=OOM, kernel=late)
    assert [i.causes[0].entry.id for i in diagnosis.incidents] == ["cuda-oom", "xid-hardware"]


def test_effect_long_before_any_cause_is_not_put_under_it() -> None:
    early = CLOSED.replace("02:57:27", "02:40:00")
    diagnosis = diagnose(job=early, kernel=XID)
    assert [each.entry.id for each in diagnosis.incidents[0].unexplained] == ["peer-closed"]


def test_effects_alone_say_that_the_cause_is_elsewhere() -> None:
    diagnosis = diagnose(job=CLOSED)
    assert diagnosis.causes == []
    text = as_text(diagnosis, width=100, entries=len(ENTRIES), paint=lambda text, _: text)
    assert "without their cause" in text
    assert exit_code(diagnosis) == 1


def test_cause_names_what_follows_from_it() -> None:
    log = (
        "Nov 30 02:50:00 gpu7 kernel: mlx5_core 0000:5c:00.0 rail1: Link up\n"
        "Nov 30 02:57:25 gpu7 kernel: mlx5_core 0000:5c:00.0 rail1: Link down\n"
        "2026-11-30 02:57:45 gpu1:88:120 [0] NCCL WARN NET/IB : Got completion from peer "
        "10.0.0.7<41234> with status=12 opcode=0\n"
        "2026-11-30 02:57:46 gpu1:88:120 [0] NCCL WARN NET/IB : Got completion from peer "
        "10.0.0.7<41234> with status=5 opcode=0\n"
    )
    diagnosis = diagnose(log=log)
    assert ids(diagnosis) == ["link-down"]
    assert followers(diagnosis) == ["wc-retry-exceeded", "wc-flush"]


def test_evidence_has_file_line_host_rank_and_subject() -> None:
    diagnosis = diagnose(kernel="fine\nfine\n" + XID)
    first = diagnosis.causes[0].first
    assert (first.where, first.line, first.origin.host) == ("kernel", 3, "gpu7")
    assert first.subject == "0000:3b:00"
    assert diagnose(job=OOM).causes[0].first.origin.rank == 5


def test_rank_is_found_through_the_process_where_only_another_line_says_it() -> None:
    log = (
        "gpu1:88:120 [0] NCCL INFO comm 0x5555 rank 11 nRanks 16 nNodes 2 localRanks 8\n" + MEMLOCK
    )
    assert diagnose(log=log).causes[0].first.origin.rank == 11


def test_rank_is_taken_from_the_file_name() -> None:
    doctor = Doctor(ENTRIES)
    doctor.read_blocks("logs/rank_12/stderr.log", [b"RuntimeError: CUDA error: out of memory\n"])
    assert doctor.diagnose().causes[0].first.origin.rank == 12


def test_thousand_ranks_are_counted_and_a_few_lines_shown() -> None:
    log = "".join(OOM.replace("[rank5]", f"[rank{n}]") for n in range(1280))
    finding = diagnose(log=log).causes[0]
    assert finding.tally.count == 1280
    assert len(finding.tally.evidence) <= 5
    assert len(finding.tally.origins) == 1280


def test_repeated_lines_take_constant_memory_and_are_counted() -> None:
    finding = diagnose(log=XID * 20_000).causes[0]
    assert finding.tally.count == 20_000


def test_lines_without_a_time_beside_lines_with_one_are_said_to_be_unordered() -> None:
    assert diagnose(job=MEMLOCK, kernel=XID).notes


def test_failed_check_is_named_by_the_entry_that_claims_it() -> None:
    doctor = Doctor(ENTRIES)
    doctor.judge([check("rdma.link", "gpu7/mlx5_0"), check("nvidia_driver.gpu_count", "gpu7")])
    assert ids(doctor.diagnose()) == ["link-down", "gpu-missing"]


def test_check_that_no_entry_claims_speaks_for_itself() -> None:
    doctor = Doctor([entry for entry in ENTRIES if not entry.checks])
    doctor.judge([check("rdma.link", "gpu7/mlx5_0")])
    finding = doctor.diagnose().causes[0]
    assert finding.entry.id == "check:rdma.link"
    assert finding.entry.fix == ("mend it",)


def test_check_that_quotes_a_known_line_is_named_by_it() -> None:
    doctor = Doctor(ENTRIES)
    quoting = "dcgm-exporter: ImagePullBackOff: Back-off pulling image"
    doctor.judge([check("stack.agent", "gpu7", found=quoting), check("stack.agent", "gpu8")])
    assert ids(doctor.diagnose()) == ["image-pull", "agent-not-ready"]


def test_check_that_could_not_look_is_no_fault() -> None:
    doctor = Doctor(ENTRIES)
    doctor.judge([check("rdma.link", "gpu7", Status.UNKNOWN), check("x.y", "gpu7", Status.WARN)])
    diagnosis = doctor.diagnose()
    assert diagnosis.incidents == []
    assert len(diagnosis.unread) == 1
    assert exit_code(diagnosis) == 3


def check(id_: str, target: str, status: Status = Status.FAIL, *, found: str = "down") -> Check:
    return Check(
        id=id_, layer="host", target=target, status=status, ran="ibstat", found=found,
        expected="up", fix="mend it",
    )  # fmt: skip


RULE = """\
version: 1
entries:
  - {extra}
    id: probe
    title: something happened
    layer: job
    patterns: ['bang (?P<subject>\\w+)']
    cause: a line of a test that must be long enough
    confirm: [look]
    fix: [mend]
    sources: [here]
    basis: inferred
    samples: [bang]
    near_misses: [none]
"""


def rule(extra: str) -> list[Entry]:
    return read(RULE.replace("{extra}", extra), "rule.yml")


@pytest.mark.parametrize(
    ("extra", "log", "found"),
    [
        ("at_least: 2", "bang a\nbang b\n", False),
        ("at_least: 2", "bang a\nbang a\n", True),
        ("cleared_by: ['calm (?P<subject>\\w+)']", "bang a\ncalm b\n", True),
        ("cleared_by: ['calm (?P<subject>\\w+)']", "bang a\ncalm a\n", False),
        ("cleared_by: ['calm (?P<subject>\\w+)']", "calm a\nbang a\n", True),
        ("cleared_by: ['all well']", "bang a\nbang b\nall well\n", False),
        ("armed_by: ['born (?P<subject>\\w+)']", "bang a\n", False),
        ("armed_by: ['born (?P<subject>\\w+)']", "born a\nbang a\n", True),
        ("unless: [joke]", "bang a, a joke\n", False),
        ("only_if: {settings: [NCCL_NET=IB]}", "bang a\n", False),
        (
            "only_if: {settings: [NCCL_NET=IB]}",
            "h:1:2 [0] NCCL INFO NCCL_NET set by environment to ib.\nbang a\n",
            True,
        ),
        (
            "only_if: {nccl_below: 2.26.2}",
            "h:1:2 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\nh:1:2 [0] NCCL WARN bang a\n",
            True,
        ),
        (
            "only_if: {nccl_below: 2.26.2}",
            "h:1:2 [0] NCCL INFO NCCL version 2.26.2+cuda12.4\nh:1:2 [0] NCCL WARN bang a\n",
            False,
        ),
    ],
)
def test_conditions(extra: str, log: str, found: bool) -> None:
    doctor = Doctor(rule(extra))
    doctor.read_blocks("log", [log.encode()])
    assert bool(doctor.diagnose().incidents) is found


def test_lines_far_apart_do_not_add_up() -> None:
    at = "2026-11-30 {}:00:00 bang a\n"
    for hours, found in ((("01", "05"), False), (("01", "01"), True)):
        doctor = Doctor(rule("at_least: 2\n    within_s: 600"))
        doctor.read_blocks("log", ["".join(map(at.format, hours)).encode()])
        assert bool(doctor.diagnose().incidents) is found


NOISE = [
    pytest.param(lambda text: text.replace("\n", "\r\n"), id="crlf"),
    pytest.param(lambda text: text.replace("CUDA out", "\x1b[31mCUDA\x1b[0m out"), id="colours"),
    pytest.param(lambda text: "10%|#\r 20%|##\r" + text, id="progress-bar"),
    pytest.param(lambda text: text.rstrip("\n"), id="no-line-end"),
    pytest.param(lambda text: "\ufeff" + text, id="byte-order-mark"),
    pytest.param(lambda text: "x" * 50_000 + " " + text.rstrip() + " " + "y" * 50_000, id="long"),
]


@pytest.mark.parametrize("change", NOISE)
def test_form_of_the_text_does_not_hide_a_fault(change: object) -> None:
    assert callable(change)
    finding = diagnose(log=change("fine\n" + OOM)).causes[0]
    assert finding.entry.id == "cuda-oom"
    assert all(len(item.text) <= 402 for item in finding.tally.evidence)
    assert "\x1b" not in finding.first.text


def test_broken_encoding_and_binary_garbage_do_no_harm() -> None:
    garbage = random.Random(1).randbytes(300_000)  # noqa: S311 - no secret
    diagnosis = diagnose(log=garbage + b"\n" + OOM.encode() + b"\xff\xfe\x80\n" + garbage)
    assert ids(diagnosis) == ["cuda-oom"]


@pytest.mark.parametrize("size", [1, 7, 100, 4096])
def test_blocks_may_be_cut_anywhere(size: int) -> None:
    text = ("fine\n" * 50 + OOM + "fine\n" * 50 + XID).encode()
    doctor = Doctor(ENTRIES)
    doctor.read_blocks("log", (text[i : i + size] for i in range(0, len(text), size)))
    diagnosis = doctor.diagnose()
    assert ids(diagnosis) == ["cuda-oom", "xid-hardware"]
    assert [each.first.line for each in diagnosis.causes] == [51, 102]
    assert diagnosis.progress.lines == 102


def test_line_longer_than_a_block_is_judged_at_its_seams() -> None:
    doctor = Doctor(ENTRIES)
    long = b"x" * 100_000
    doctor.read_blocks("log", [b"a\n" + long, b" CUDA out", b" of memory " + long, long, b"\nb\n"])
    diagnosis = doctor.diagnose()
    assert ids(diagnosis) == ["cuda-oom"]
    assert diagnosis.causes[0].first.line == 2
    assert diagnosis.progress.lines == 3


def test_nothing_known_is_said_without_claiming_health() -> None:
    diagnosis = diagnose(log="all is well\n")
    text = as_text(diagnosis, width=100, entries=len(ENTRIES), paint=lambda text, _: text)
    assert "Nothing known found in 1 line " in text
    assert "does not prove" in text
    assert exit_code(diagnosis) == 0


def test_json_has_everything_that_the_text_has() -> None:
    found = as_json(diagnose(rank0=CLOSED, kernel=XID))
    assert found["first_cause"] == "xid-hardware"
    cause = found["incidents"][0]["causes"][0]
    assert {"cause", "confirm", "fix", "sources", "evidence", "followed_by"} <= set(cause)
    assert cause["evidence"][0]["line"] == 1
    assert cause["followed_by"][0]["id"] == "peer-closed"
    assert "gpu7" in cause["confirm"][0]
