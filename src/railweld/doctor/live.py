"""Looks at nodes and jobs by itself: railweld's checks, journals, Slurm, pods.

Everything goes over Ansible's connection, within a time limit. What could not be reached is said
and never counts as healthy.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from railweld import names, nodes
from railweld.doctor.diagnosis import Doctor
from railweld.errors import RailweldError
from railweld.nodes import Answer
from railweld.record import Check
from railweld.slurm import conf
from railweld.verify import stages
from railweld.verify.stages import Request, Verified

#: Bytes that are read of one log: its end.
_TAIL: Final = 8_000_000
#: Seconds that a program on a node may take.
_COMMAND_S: Final = 30
#: Whose journals say why a node cannot work.
_UNITS: Final = (
    "chrony", "chronyd", "containerd", "kubelet", "munge", "nvidia-fabricmanager",
    "nvidia-persistenced", "slurmd",
)  # fmt: skip
_KERNEL: Final = "journalctl -k"
_JOURNAL: Final = "journalctl"
_HEARD: Final = f"{conf.LOGS}/slurmctld.log"
_ACCOUNTING: Final = "JobID,JobName,State,ExitCode,Start,End,NodeList,MaxRSS,ReqMem"
_EVENT_COLUMNS: Final = (
    "custom-columns=TIME:.lastTimestamp,TYPE:.type,REASON:.reason,OBJECT:.involvedObject.name,"
    "MESSAGE:.message"
)
_FIELD: Final = re.compile(r"(?<!\S)(StdOut|StdErr|NodeList|BatchHost|JobState)=(\S+)")


def is_job(target: str) -> bool:
    """Whether a word can be the id of a Slurm job: 8137, 8137_4."""
    return re.fullmatch(r"\d+(_\d+)?", target) is not None


class Live:
    """Gathers what nodes and jobs say and hands it to a doctor.

    Args:
        request: the site and how to reach it; its time limit holds for each look.
        doctor: gets logs, checks and what could not be reached.
        since: how far back journals are read, as journalctl takes it; never before the last boot.
    """

    def __init__(self, request: Request, doctor: Doctor, *, since: str) -> None:
        self._request = request
        self._doctor = doctor
        self._since = since

    def nodes(self, hosts: Sequence[str]) -> None:
        """Look at nodes: every check of every stage that is about them, and their journals."""
        wanted = [host for host in hosts if host in self._request.site.hosts]
        for host in sorted(set(hosts) - set(wanted)):
            self._doctor.could_not_read(f"{host}: not in the inventory, so it was not looked at")
        if not wanted:
            return
        heads = self._request.site.groups.get(names.GROUP_SLURM_HEAD, ())[:1]
        asked = [self._heard_task(wanted)]
        with ThreadPoolExecutor(2) as pool:
            journals = pool.submit(self._ask, wanted, self._journal_tasks())
            heard = pool.submit(lambda: self._ask(heads, asked) if heads else {})
            self._check(wanted)
            answers = journals.result()
        for host in wanted:
            for what in (_KERNEL, _JOURNAL):
                self._read(f"{host}: {what}", answers.get(host, {}).get(what))
        for head in heads:
            self._read(f"{head}: {_HEARD}", heard.result().get(head, {}).get(_HEARD))

    def job(self, job: str) -> None:
        """Look at a Slurm job: its record, its output, its nodes and its pods."""
        hosts = self._of_slurm(job)
        self._of_pods(job)
        self.nodes(hosts)

    def _check(self, hosts: Sequence[str]) -> None:
        self._request.limit = tuple(hosts)
        found: dict[str, Verified] = {}
        for stage in stages.STAGES:
            try:
                found[stage] = stages.verify(self._request, stage)
            except RailweldError as error:
                self._doctor.could_not_read(f"stage {stage}: {error}")
        self._doctor.judge(check for check in stages.records(found) if self._is_about(check, hosts))

    def _is_about(self, check: Check, hosts: Sequence[str]) -> bool:
        """Whether a record is about these hosts, the switch ports that they hang on or a switch."""
        site = self._request.site
        name, port = check.place
        if name not in site.switches:
            return name in hosts
        ports = {(hca.switch, hca.port) for host in hosts for hca in site.hosts[host].hcas}
        return (name, port) in ports if port else any(name == switch for switch, _ in ports)

    def _journal_tasks(self) -> list[dict[str, Any]]:
        units = " ".join(f"-u {unit}" for unit in _UNITS)
        common = f"-b --since={shlex.quote(self._since)} -o short-iso --no-pager"
        return [
            _shell(_KERNEL, f"journalctl -k {common}", instead="dmesg --time-format iso"),
            _shell(_JOURNAL, f"journalctl {units} {common}"),
        ]

    def _heard_task(self, hosts: Sequence[str]) -> dict[str, Any]:
        """What slurmctld said of messages from these hosts: it refuses them, they hear nothing.

        Only its file names the sender; the lines before that one say what was wrong.
        """
        site = self._request.site
        senders = [re.escape(word) for host in hosts for word in (host, site.hosts[host].address)]
        # `[[gpu7]:47848]` or `[10.0.0.7:47848]`.
        sender = shlex.quote(rf"\[\[?({'|'.join(senders)})\]?:[0-9]+\]")
        # Each line begins with its time, as [2026-11-30T18:17:25.167].
        begin = (
            f"$(date -d @$(systemd-analyze timestamp -- {shlex.quote(self._since)} "
            "| sed -n 's/.*UNIX seconds: *@//p') '+[%Y-%m-%dT%H:%M:%S')"
        )
        command = (
            f"if test -e {_HEARD}; then grep -E -B3 {sender} {_HEARD} "
            f"""| awk -v begin="{begin}" '$0 >= begin' | tail -c {_TAIL}; fi"""
        )
        # A log without such a line is one that says nothing.
        return _task(_HEARD, "ansible.builtin.shell", {"cmd": command, "executable": "/bin/bash"})

    def _of_slurm(self, job: str) -> list[str]:
        """Read what Slurm knows of a job and what the job printed; return its nodes."""
        head = self._one_of(names.GROUP_SLURM_HEAD, "Slurm")
        if head is None:
            return []
        asked = (
            ("scontrol show job", ["scontrol", "show", "job", "-d", job]),
            ("sacct", ["sacct", "-j", job, "-P", "--format", _ACCOUNTING]),
        )
        answers = self._ask([head], [_command(name, argv) for name, argv in asked]).get(head, {})
        for name, _ in asked:
            self._read(f"{head}: {name} {job}", answers.get(name))
        record, accounting = (
            answer.stdout if answer and answer.status == "ok" else ""
            for answer in (answers.get(name) for name, _ in asked)
        )
        # An array has a record per task: the first one counts. Slurm forgets an ended job soon.
        fields = dict(reversed(_FIELD.findall(record)))
        rows = csv.DictReader(accounting.splitlines(), delimiter="|")
        hosts = self._hosts_of(head, fields.get("NodeList") or next(rows, {}).get("NodeList", ""))
        outputs = dict.fromkeys(fields[key] for key in ("StdOut", "StdErr") if key in fields)
        self._outputs(list(outputs), [head, fields.get("BatchHost", "")])
        return hosts

    def _hosts_of(self, head: str, node_list: str) -> list[str]:
        if not re.fullmatch(r"[\w.,\[\]-]+", node_list) or node_list == "None":
            return []
        tasks = [
            _command("hostnames", ["scontrol", "show", "hostnames", node_list]),
            _command("nodes", ["scontrol", "show", "node", node_list]),
        ]
        answers = self._ask([head], tasks).get(head, {})
        self._read(f"{head}: scontrol show node", answers.get("nodes"))
        known = answers.get("hostnames")
        return known.stdout.split() if known and known.status == "ok" else []

    def _outputs(self, paths: Sequence[str], hosts: Iterable[str]) -> None:
        """Read a job's output files where the first of these hosts has them."""
        reached = [host for host in dict.fromkeys(hosts) if host in self._request.site.hosts]
        # A user chose these names, and Ansible reads {{ and {% in what it is given.
        safe = [path for path in paths if path.startswith("/") and "{" not in path]
        for path in set(paths) - set(safe):
            self._doctor.could_not_read(f"job output {path!r}: a name that is not asked for")
        if not safe:
            return
        tasks = [_command(path, ["tail", "-c", str(_TAIL), "--", path]) for path in safe]
        answers = self._ask(reached, tasks)
        for path in safe:
            given = {host: answers.get(host, {}).get(path) for host in reached}
            host = next((h for h, a in given.items() if a and a.status == "ok"), reached[0])
            self._read(f"{host}:{path}", given[host])

    def _of_pods(self, job: str) -> None:
        """Read logs and events of a job's pods."""
        plane = self._one_of(names.GROUP_CONTROL_PLANE, "Kubernetes")
        if plane is None:
            return
        kubectl = ["kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf"]
        kubectl += ["--namespace", names.NAMESPACE_JOBS, "--request-timeout", f"{_COMMAND_S}s"]
        label = f"--selector={names.LABEL_JOB_ID}={job}"
        tasks = [
            _command("pods", [*kubectl, "get", "pods", label, "--output", "wide"]),
            _command("logs", [*kubectl, "logs", label, "--all-containers", "--prefix",
                              "--timestamps", "--tail=50000", "--max-log-requests=64"]),
            _command("events", [*kubectl, "get", "events", "--no-headers", "--output",
                                _EVENT_COLUMNS]),
        ]  # fmt: skip
        answers = self._ask([plane], tasks).get(plane, {})
        pods = answers.get("pods")
        self._read(f"{plane}: kubectl get pods", pods)
        if pods is None or pods.status != "ok" or not pods.stdout.strip():
            return
        self._read(f"{plane}: kubectl logs", answers.get("logs"))
        mine = [line.split()[0] for line in pods.stdout.splitlines()[1:] if line.strip()]
        events = answers.get("events")
        if events is not None and events.status == "ok":
            # The job's object has its pods' name without their number.
            owners = {*mine, *(pod.rpartition("-")[0] for pod in mine)}
            lines = [
                line for line in events.stdout.splitlines()
                if owners & set(line.split()[3:4])
            ]  # fmt: skip
            self._doctor.read_blocks(f"{plane}: kubectl get events", ["\n".join(lines).encode()])
        else:
            self._read(f"{plane}: kubectl get events", events)

    def _one_of(self, group: str, what: str) -> str | None:
        hosts = self._request.site.groups.get(group, ())
        if not hosts:
            self._doctor.could_not_read(
                f"{what}: the inventory has no host in {group}, so it was not asked"
            )
            return None
        return hosts[0]

    def _ask(
        self, hosts: Sequence[str], tasks: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Mapping[str, Answer]]:
        try:
            return nodes.ask(self._request.access, hosts, tasks, timeout_s=self._request.timeout_s)
        except RailweldError as error:
            self._doctor.could_not_read(str(error))
            return {}

    def _read(self, name: str, answer: Answer | None) -> None:
        """Hand over a log, or say why there is none."""
        if answer is None:
            self._doctor.could_not_read(f"{name}: no answer")
        elif answer.status == "ok":
            self._doctor.read_blocks(name, [answer.stdout.encode()])
        else:
            # A program's own words say more than "non-zero return code".
            said = " ".join(str(answer.result.get("stderr") or "").split())
            self._doctor.could_not_read(f"{name}: {answer.status}: {said or answer.reason}")


def _command(name: str, argv: Sequence[str]) -> dict[str, Any]:
    """A task that runs one program; no shell, since paths and names come from users."""
    argv = ["timeout", str(_COMMAND_S), *argv]
    return _task(name, "ansible.builtin.command", {"argv": list(argv)})


def _shell(name: str, command: str, *, instead: str = "true") -> dict[str, Any]:
    """A task that runs a program of the journal, or another where there is no journal."""
    program = command.partition(" ")[0]
    text = (
        f"set -o pipefail; if command -v {program} > /dev/null; "
        f"then timeout {_COMMAND_S} {command}; else timeout {_COMMAND_S} {instead}; fi "
        f"| tail -c {_TAIL}"
    )
    return _task(name, "ansible.builtin.shell", {"cmd": text, "executable": "/bin/bash"})


def _task(name: str, module: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    # One answer that fails must not keep the next question from being asked.
    return {
        "name": name, module: dict(arguments), "changed_when": False, "check_mode": False,
        "ignore_errors": True,  # a source that cannot be read is listed; the others still count
    }  # fmt: skip
