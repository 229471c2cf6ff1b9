# SPDX-License-Identifier: Apache-2.0
"""Shows a run as an operator thinks of it: stage, hosts, what waits, what failed and why."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 - Ansible's own name for it
from ansible import context
from ansible.plugins.callback import CallbackBase

from railweld import runs, state
from railweld.base.run import RUN_VARIABLE
from railweld.files import write_atomically

DOCUMENTATION = r"""
name: railweld
type: stdout
short_description: Progress by role, waits, failures with their reason, a summary and a JSON report
description:
  - Prints one line per step of a role with host counts, failures as found / expected / fix, and a
    summary with the time of each role. On a terminal a status line says what is waited for.
  - Writes C(reports/RUN.json) and journal lines into the site's state folder.
requirements:
  - set as stdout callback
extends_documentation_fragment:
  - result_format_callback
options:
  show_skipped:
    description: Whether to print steps that every host skipped.
    type: bool
    default: false
    env:
      - name: RAILWELD_SHOW_SKIPPED
"""

#: Task names that start so are waits: shown from their start, with what they wait for.
_WAITS = ("Wait", "Reboot")
#: Actions that are not worth a line when they only say ok.
_QUIET = frozenset(
    prefix + name
    for prefix in ("", "ansible.builtin.")
    for name in (
        "assert",
        "debug",
        "group_by",
        "include_role",
        "include_tasks",
        "meta",
        "set_fact",
        "validate_argument_spec",
    )
)
#: Up to so many hosts the summary lists every one, beyond it only those that need a look.
_HOST_ROWS = 40


@dataclass
class _Step:
    """One task as it runs over the hosts."""

    name: str
    role: str
    action: str
    started: float
    counts: Counter[str] = field(default_factory=Counter)
    changed: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    #: It waits for something outside of Ansible; a conditional wait may be none, so it is not.
    waits: bool = False
    #: All that it says was said before: the model or the observation of this run is used again.
    repeated: bool = False


@dataclass
class _RoleTime:
    """What one role cost over the run."""

    seconds: float = 0.0
    tasks: int = 0
    hosts: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)


class CallbackModule(CallbackBase):
    """Ansible's entry point."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "railweld"

    def __init__(self) -> None:
        super().__init__()
        now = datetime.now(UTC)
        self._run = f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}"
        os.environ[RUN_VARIABLE] = self._run
        self._began = time.monotonic()
        self._began_at = now
        self._playbook = ""
        self._title = ""
        self._site: str | None = None
        self._version_set = ""
        self._step: _Step | None = None
        self._roles: dict[str, _RoleTime] = {}
        self._failures: dict[str, dict[str, Any]] = {}
        self._plans: dict[str, Any] = {}
        self._checks: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        self._warned: set[str] = set()
        self._check_mode = False
        self._results = 0
        self._live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    # --- events --------------------------------------------------------------------------------

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Name the run."""
        self._playbook = Path(str(playbook._file_name)).name
        self._check_mode = bool(context.CLIARGS.get("check"))
        mode = " (check: nothing is changed)" if self._check_mode else ""
        self._say(f"railweld {self._playbook}{mode}, run {self._run}", C.COLOR_HIGHLIGHT)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Remember the play; it is announced when it has something to do."""
        self._end_step()
        self._title = play.get_name().strip()

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """A play without hosts is the normal end of a converged site."""

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """All hosts of the play failed."""
        self._end_step()
        self._say("no host left in this play", C.COLOR_ERROR)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002 - Ansible's signature
        """Start a step; one that waits says so before it waits."""
        self._end_step()
        if self._title:
            self._say(f"\n{self._title}", C.COLOR_HIGHLIGHT)
            self._title = ""
        role = task._role.get_name() if task._role else ""
        self._step = _Step(
            name=task.get_name().strip().rpartition(" : ")[2],
            role=role,
            action=task.action,
            started=time.monotonic(),
            waits=task.get_name().rpartition(" : ")[2].startswith(_WAITS) and not task.when,
        )
        if self._step.waits:
            self._status()

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Handlers are steps too."""
        self.v2_playbook_on_task_start(task, is_conditional=False)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:  # noqa: ARG002 - Ansible's signature
        """A host is being worked on."""
        if self._step is None:
            return
        self._step.running.add(host.get_name())
        if self._step.waits and len(self._step.running) == 1 and not self._live:
            self._say(f"{self._prefix()} {self._step.name} ...", C.COLOR_VERBOSE)
        self._status()

    def v2_runner_on_ok(self, result: Any) -> None:
        """Count it, learn from it."""
        host = self._done(result)
        answer = result.result
        kind = "changed" if answer.get("changed") else "ok"
        self._count(kind, host)
        if self._step and answer.get("reused"):
            self._step.repeated = True
        self._learn(host, result)
        self._warn(host, answer)
        self._journal_result(host, result)
        waited = answer.get("waited_s") or 0
        if waited > 1:
            self._say(f"         {host}: waited {waited:.0f} s for the package lock", C.COLOR_WARN)
        said = result.task.action in C._ACTION_DEBUG and bool(answer.get("msg"))
        if said or self._is_news(result):
            self._say(f"         {_host_first(host, str(answer['msg']))}", C.COLOR_VERBOSE)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Say which host failed and why, at once."""
        host = self._done(result)
        if ignore_errors:
            self._count("ignored", host)
            return
        self._count("failed", host)
        self._learn(host, result)
        self._fail(host, self._reason(result.result))

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A host that does not answer is a failure with its own fix."""
        host = self._done(result)
        self._count("unreachable", host)
        reason = (
            f"found no connection ({str(result.result.get('msg', '')).strip()}), expected SSH. "
            f"Fix: see `ssh -v {host}`; when the node is back run again, the run continues"
        )
        self._fail(host, reason)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Count it."""
        self._count("skipped", self._done(result))

    def v2_runner_retry(self, result: Any) -> None:  # noqa: ARG002 - Ansible's signature
        """A wait that goes on."""
        self._status()

    def v2_on_file_diff(self, result: Any) -> None:
        """Show what --diff asks for."""
        diffs = result.result.get("diff")
        changed = result.result.get("changed")
        if not diffs or not changed:
            return
        text = self._get_diff(diffs if isinstance(diffs, list) else [diffs])
        if text.strip():
            self._say(f"         {result.host.get_name()}:")
            self._say(text.rstrip())

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the summary, write the report."""
        self._end_step()
        self._summary(stats)
        self._report(stats)

    # --- steps ---------------------------------------------------------------------------------

    def _prefix(self) -> str:
        role = self._step.role if self._step else ""
        return f"{time.monotonic() - self._began:7.1f}s {role:<15}"

    def _done(self, result: Any) -> str:
        host: str = result.host.get_name()
        self._results += 1
        if self._step:
            self._step.running.discard(host)
        self._status()
        return host

    def _count(self, kind: str, host: str) -> None:
        step = self._step
        if step is None:
            return
        step.counts[kind] += 1
        if kind == "changed":
            step.changed.append(host)
        if step.role and kind != "skipped":
            self._roles.setdefault(step.role, _RoleTime()).hosts.add(host)
            if kind == "changed":
                self._roles[step.role].changed.add(host)

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        self._clear()
        seconds = time.monotonic() - step.started
        if step.role:
            spent = self._roles.setdefault(step.role, _RoleTime())
            spent.seconds += seconds
            spent.tasks += 1
        shown = {kind: n for kind, n in step.counts.items() if kind != "skipped"}
        if not shown and not self.get_option("show_skipped"):
            return
        if set(shown) <= {"ok"} and (step.action in _QUIET or step.repeated):
            return
        counts = ", ".join(f"{n} {kind}" for kind, n in sorted(step.counts.items()))
        color = C.COLOR_CHANGED if step.counts["changed"] else C.COLOR_OK
        if step.counts["failed"] or step.counts["unreachable"]:
            color = C.COLOR_ERROR
        self._step = step
        line = f"{self._prefix()} {step.name}: {counts}"
        self._step = None
        if seconds >= 1:
            line += f" ({seconds:.1f} s)"
        self._say(line, color)

    # --- what results tell ---------------------------------------------------------------------

    def _learn(self, host: str, result: Any) -> None:
        answer, action = result.result, result.task.action
        if action == "railweld_site" and self._site is None and answer.get("site"):
            self._site = str(answer["site"]["name"])
            self._version_set = str(answer["site"]["version_set"])
            hosts = len(answer.get("hosts") or {})
            self._say(
                f"         site {self._site}, version set {self._version_set}, "
                f"{_count(hosts, 'host')} described"
            )
            for problem in answer.get("problems") or []:
                self._say(f"         warning: {problem}", C.COLOR_WARN)
        todo = _todo(answer)
        if todo is not None:
            self._learn_plan(host, todo, answer)
        if todo is not None or action == "railweld_check":
            known = self._checks.setdefault(host, {})
            known.update({(c["id"], c["target"]): c for c in answer.get("checks") or []})

    def _learn_plan(self, host: str, todo: list[str], answer: dict[str, Any]) -> None:
        """A run that decides again, as the cluster's when all have joined, adds to its plan."""
        plan = self._plans.setdefault(host, {"todo": [], "reasons": {}, "version_changes": []})
        plan["todo"] += [role for role in todo if role not in plan["todo"]]
        for role, reasons in (answer.get("reasons") or {}).items():
            plan["reasons"].setdefault(role, reasons)
        plan["version_changes"] += answer.get("version_changes") or []

    def _is_news(self, result: Any) -> bool:
        """A plan that has work is worth a line."""
        return bool(_todo(result.result))

    def _warn(self, host: str, answer: dict[str, Any]) -> None:
        for warning in answer.get("warnings") or []:
            text = _host_first(host, str(getattr(warning, "event", warning)))
            if text not in self._warned:
                self._warned.add(text)
                self._say(f"         warning: {text}", C.COLOR_WARN)

    def _reason(self, answer: dict[str, Any]) -> str:
        items = [item for item in answer.get("results") or [] if item.get("failed")]
        messages = [str(item.get("msg", "")) for item in items] or [str(answer.get("msg", ""))]
        text = "\n".join(message.strip() for message in messages if message.strip())
        for stream in ("stderr", "stdout", "module_stderr", "module_stdout"):
            output = str(answer.get(stream) or "").strip()
            if output and (not text or "non-zero return code" in text or "MODULE FAILURE" in text):
                text += "\n" + "\n".join(output.splitlines()[-8:])
        if not text and "censored" in answer:
            return "the answer holds a secret and is not shown (no_log); see the host's own log"
        return text or "no reason given; run again with -vvv"

    def _fail(self, host: str, reason: str) -> None:
        step = self._step
        where = f"{step.role}: {step.name}" if step and step.role else (step.name if step else "")
        self._failures[host] = {
            "role": step.role if step else "",
            "task": step.name if step else "",
            "reason": reason,
        }
        self._clear()
        self._say(f"         {host} FAILED at {where}", C.COLOR_ERROR)
        for line in reason.splitlines():
            self._say(f"           {line.strip()}", C.COLOR_ERROR)
        self._journal(host, action=step.name if step else "", result=f"failed: {reason}")

    # --- output --------------------------------------------------------------------------------

    def _say(self, text: str, color: str | None = None) -> None:
        self._clear()
        self._display.display(text, color=color)

    def _status(self) -> None:
        """The line that changes in place, on a terminal only."""
        if not self._live or self._step is None:
            return
        step = self._step
        waiting = sorted(step.running)
        names = ", ".join(waiting[:4]) + (
            f" and {len(waiting) - 4} more" if len(waiting) > 4 else ""
        )
        verb = "waits" if step.waits else "runs"
        done = sum(step.counts.values())
        text = f"{self._prefix()} {step.name}: {done} done, {verb} on {names}"
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write("\r\x1b[2K" + text[:width])
        sys.stdout.flush()

    def _clear(self) -> None:
        if self._live:
            sys.stdout.write("\r\x1b[2K")
            sys.stdout.flush()

    def _summary(self, stats: Any) -> None:
        hosts = sorted(stats.processed)
        wall = time.monotonic() - self._began
        rows = []
        for name, spent in self._roles.items():
            if spent.hosts:
                rows.append(
                    (name, f"{spent.seconds:.1f} s", str(len(spent.hosts)), str(len(spent.changed)))
                )
        if rows:
            self._say("\n" + _table(("role", "time", "hosts", "changed"), rows))
        bad = {host for host in hosts if stats.failures.get(host) or stats.dark.get(host)}
        rows = []
        for host in hosts:
            tally = stats.summarize(host)
            todo = (self._plans.get(host) or {}).get("todo")
            word = "converged" if todo == [] else "done"
            if host in bad:
                word = "unreachable" if tally["unreachable"] else "failed"
            elif host not in self._plans:
                word = "ok"
            elif self._check_mode and todo:
                word = "would change"
            rows.append((host, word, str(tally["changed"]), str(tally["ok"])))
        if len(rows) > _HOST_ROWS:
            rows = [row for row in rows if row[1] in ("failed", "unreachable", "would change")]
        if rows:
            self._say("\n" + _table(("host", "state", "changed", "steps"), rows))
        changed = sum(stats.changed.values())
        line = f"\n{_count(len(hosts), 'host')}: {len(hosts) - len(bad)} ok, {len(bad)} failed; "
        line += f"changed={changed}; {wall:.1f} s"
        self._say(line, C.COLOR_ERROR if bad else C.COLOR_OK)
        for host in sorted(bad):
            failure = self._failures.get(host, {})
            first = str(failure.get("reason", "")).splitlines()[:1]
            where = failure.get("role") or failure.get("task") or "?"
            self._say(f"  {host} at {where}: {first[0] if first else 'see above'}", C.COLOR_ERROR)

    # --- what stays ----------------------------------------------------------------------------

    def _report(self, stats: Any) -> None:
        if not self._site:
            return
        hosts = sorted(stats.processed)
        report = {
            "run": self._run,
            "stage": runs.stage_of(self._playbook),
            "playbook": self._playbook,
            "site": self._site,
            "version_set": self._version_set,
            "check_mode": self._check_mode,
            "began": self._began_at.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._began, 3),
            "results": self._results,
            "roles": {
                name: {
                    "seconds": round(spent.seconds, 3),
                    "tasks": spent.tasks,
                    "hosts": len(spent.hosts),
                    "changed": len(spent.changed),
                }
                for name, spent in self._roles.items()
            },
            "hosts": {
                host: {
                    **stats.summarize(host),
                    "plan": self._plans.get(host),
                    "failure": self._failures.get(host),
                    "checks": list(self._checks.get(host, {}).values()),
                }
                for host in hosts
            },
        }
        path = runs.folder(self._site) / f"{self._run}.json"
        write_atomically(path, json.dumps(report, indent=1, default=str) + "\n")
        self._say(f"report: {path}")

    def _journal_result(self, host: str, result: Any) -> None:
        """One line for each role that completed with a change, and for each reboot."""
        answer, action = result.result, result.task.action
        if self._check_mode or not answer.get("changed"):
            return
        if action == "railweld_record":
            record = answer.get("record") or {}
            before = (answer.get("before") or {}).get("inputs")
            self._journal(
                host,
                action=f"role {record.get('role')}",
                before=before,
                after=record.get("inputs"),
                result="ok",
            )
        elif action.rpartition(".")[2] == "reboot":
            self._journal(host, action="reboot", result="ok", after=answer.get("elapsed"))

    def _journal(
        self, host: str, *, action: str, result: str, before: Any = None, after: Any = None
    ) -> None:
        if self._site and not self._check_mode:
            state.journal(
                self._site,
                run=self._run,
                stage=runs.stage_of(self._playbook),
                target=host,
                action=action,
                before=before,
                after=after,
                result=result,
            )


def _todo(answer: dict[str, Any]) -> list[str] | None:
    """What a plan of any stage leaves for the roles; None for an answer that is no plan."""
    return (answer.get("ansible_facts") or {}).get("railweld_todo")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _host_first(host: str, text: str) -> str:
    return text if text.startswith(f"{host}:") else f"{host}: {text}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
    return "\n".join(lines)
