"""What the page about a job says, and what it tells people to do."""

from __future__ import annotations

import io
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from railweld.bridge import ask, desk, explain
from railweld.bridge.pod import wire

JOB = {
    "id": 12,
    "state": "RUNNING",
    "reason": "None",
    "partition": "gpu",
    "user": "alice",
    "nodes": "gpu[1-2]",
    "count": "2",
    "restarts": "0",
    "exit": "0:0",
    "submitted": "2026-11-30T08:00:00",
    "started": "2026-11-30T08:00:01",
    "ended": "",
    "output": "/home/alice/slurm-12.out",
}


def pod(rank: int, phase: str = "Running", says: str = "", **more: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "name": f"p{rank}",
        "node": f"gpu{rank + 1}",
        "phase": phase,
        "says": says,
        "exit": None,
        "agent": "",
        "node_ready": True,
        **more,
    }


def run(state: str, *pods: dict[str, Any], text: str = "", **more: Any) -> dict[str, Any]:
    return {
        "restart": 0,
        "state": state,
        "text": text,
        "attached": True,
        "job": "railweld-jobs/slurm-lab-12-r0",
        "deleting": False,
        "hosts": len(pods),
        "outcome": None,
        "times": {},
        "pods": list(pods),
        **more,
    }


def facts(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": 12,
        "now": 0.0,
        "slurm": "",
        "cluster": "",
        "bridged": True,
        "job": JOB,
        "runs": list(runs),
        "events": [],
        **more,
    }


def test_a_page_has_slurm_kubernetes_what_is_waited_for_events_and_what_to_do() -> None:
    event = {
        "time": "2026-11-30T08:00:07Z",
        "object": "pod p1",
        "reason": "Failed",
        "message": "no such image",
        "count": 3,
    }
    text = explain.page(
        facts(
            run(
                "starting",
                pod(0, agent="ready"),
                pod(1, "Pending", "ImagePullBackOff: no such image"),
                text="1/2 pods; gpu2: ImagePullBackOff: no such image",
            ),
            events=[event],
        )
    )
    assert text.splitlines() == [
        "Job 12 of alice, partition gpu, 2 nodes gpu[1-2]",
        "Slurm       RUNNING",
        "            submitted 2026-11-30T08:00:00, started 2026-11-30T08:00:01",
        "Output      /home/alice/slurm-12.out",
        "Kubernetes  Job railweld-jobs/slurm-lab-12-r0: starting; 1 of 2 pods run",
        "Waits for   1/2 pods; gpu2: ImagePullBackOff: no such image",
        "Pods        gpu2 (rank 1): Pending, ImagePullBackOff: no such image",
        "            and 1 more",
        "Events      08:00:07 Failed pod p1: no such image (3 times)",
        (
            "Do          the image cannot be pulled there: check its name (#BRIDGE image=) and "
            "that the nodes reach the registry: `kubectl -n railweld-jobs describe pod POD`"
        ),
    ]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Resources", "squeue --start -j 12"),
        ("Priority", "sprio -j 12"),
        ("ReqNodeNotAvail, UnavailableNodes:gpu1", "sinfo -R"),
        ("ReqNodeNotAvail,_UnavailableNodes:gpu1", "sinfo -R"),
        ("PartitionDown", "scontrol show partition gpu"),
        ("PartitionNodeLimit", "never starts"),
        ("DependencyNeverSatisfied", "scancel 12"),
        ("Dependency", "another job has to end first"),
        ("BeginTime", "begin time"),
        ("Cleaning", "torn down"),
        ("JobHeldUser", "held by its user"),
        ("JobHeldAdmin", "held by an administrator"),
        ("launch_failed_requeued_held", "slurmd-NODE.log"),
        ("QOSMaxJobsPerUserLimit", "sacctmgr show qos"),
        ("AssocGrpGRES", "user=alice"),
        ("None", "not looked at it yet"),
        ("SomethingNew", "JOB REASON CODES"),
    ],
)
def test_each_reason_of_a_waiting_job_has_its_words(reason: str, said: str) -> None:
    waiting = {**JOB, "state": "PENDING", "reason": reason}
    found = explain.advice(facts(job=waiting))
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (facts(run("creating", attached=True)), "journalctl -u bridged"),
        (facts(run("creating", attached=False)), "waits for the batch step"),
        (facts(run("starting", pod(0, "Pending"))), "pods are starting"),
        (
            facts(run("starting", pod(0), text="gpu1: its agent has not reported")),
            "does not reach the daemon",
        ),
        (
            facts(run("starting", text="gpu1: exceeded quota: railweld-jobs")),
            "a policy or the quota",
        ),
        (
            facts(run("starting", pod(0, "Pending", "0/3 nodes: Insufficient nvidia.com/gpu"))),
            "another pod holds its GPUs",
        ),
        (facts(run("running", pod(0))), "it runs; nothing to do"),
        (facts(run("ending", pod(0, "Terminating"))), "grace (KillWait)"),
        (facts(run("ending", pod(0, "Running", node_ready=False))), "gpu1 cannot be seen to end"),
        (facts(run("ending", pod(0, "Failed"))), "all pods have ended"),
        (facts(run("unknown"), cluster="the Kubernetes API does not answer"), "nothing is deleted"),
        (facts(job=None, slurm="no answer within 30 s"), "nothing of the job is ended"),
        (facts(job=None), "sacct -j 12"),
        (facts(bridged=False), "a plain Slurm job"),
        (facts(), "has not reached the daemon yet"),
        (facts(job={**JOB, "state": "COMPLETING"}), "Slurm ends its epilogs"),
        (facts(job={**JOB, "state": "COMPLETED"}), "it has ended"),
        (
            facts(run("ended", outcome={"status": 137, "text": "gpu1: out of memory (OOMKilled)"})),
            "ran out of memory",
        ),
        (
            facts(run("ending", outcome={"status": 1, "text": "evicted", "infrastructure": True})),
            "the cluster was at fault",
        ),
    ],
)
def test_each_state_has_its_advice(given: dict[str, Any], said: str) -> None:
    found = explain.advice(given)
    assert any(said in text for text in found), found
    assert said.split("(", maxsplit=1)[0] in explain.page(given)


def test_of_many_pods_the_troubled_ones_are_shown() -> None:
    pods = [pod(rank) for rank in range(100)]
    pods[70] = pod(70, "Pending", "ErrImagePull")
    text = explain.page(facts(run("starting", *pods)))
    assert "gpu71 (rank 70): Pending, ErrImagePull" in text
    assert "and 99 more" in text
    assert len(text.splitlines()) < 15


def test_exit_status_of_a_shell() -> None:
    failed = {
        "status": "Failure",
        "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
    }
    assert desk.exit_status(json.dumps(failed).encode()) == 7
    assert desk.exit_status(b'{"status":"Success"}') == 0
    assert desk.exit_status(b"garbage") == 1
    assert desk.exit_status(b'{"status":"Failure"}') == 1


# -- the command -------------------------------------------------------------------------------


def serve(path: Path, *answers: bytes, read: bool = True) -> tuple[threading.Thread, list[bytes]]:
    """One connection of a daemon, which may hang up unread; returns what it was asked."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    asked: list[bytes] = []

    def run_() -> None:
        link, _ = listener.accept()
        asked.append(link.recv(65536, 0 if read else socket.MSG_PEEK))
        for each in answers:
            link.sendall(each)
        link.close()
        listener.close()

    thread = threading.Thread(target=run_)
    thread.start()
    return thread, asked


def test_the_answer_is_printed_and_the_daemons_status_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s"
    note = wire.control(event="note", text="is not yours")
    thread, asked = serve(
        path, wire.frame(wire.DATA, b"page\n"), note, wire.control(event="exit", status=1)
    )
    out = io.BytesIO()
    with ask.connect(str(path)) as link:
        assert ask.talk(link, {"op": "explain", "job": "12"}, out) == 1
    thread.join()
    assert out.getvalue() == b"page\n"
    assert "railweld-bridge: is not yours" in capsys.readouterr().err
    kind, payload = next(wire.Decoder().feed(asked[0]))
    assert kind == wire.CONTROL
    assert wire.parse_control(payload) == {"version": wire.VERSION, "op": "explain", "job": "12"}


def test_a_daemon_that_hangs_up_is_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s"
    for read in (True, False):
        thread, _ = serve(path, read=read)
        assert ask.main(["status"], path=str(path)) == 3
        thread.join()
        assert "hung up" in capsys.readouterr().err
        path.unlink()


def test_elsewhere_than_on_the_head_one_is_told_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask.main(["explain", "12"], path=str(tmp_path / "none")) == 3
    assert "this runs on the Slurm head" in capsys.readouterr().err
    assert ask.main(["explain"], path=str(tmp_path / "none")) == 64
    assert ask.main(["nonsense"]) == 64
