"""What a push leaves on the controller: who did what when, and what stood there before.

    <state>/SITE/fabric/RUN/journal.jsonl    one event a line, flushed to disk before the next
    <state>/SITE/fabric/RUN/SWITCH.before    running configuration before the first change
    <state>/SITE/fabric/RUN/SWITCH.after     and after the last
    <state>/SITE/fabric/RUN/SWITCH.log       what was said on the lines, secrets masked
    <state>/SITE/fabric/owned/SWITCH.json    lines that are ours, so that they can be removed

Backups hold the switch's own secrets in clear or hashed form, which is why every file is 0600.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path as FilePath
from typing import Any, Final

from railweld import state
from railweld.errors import UsageError
from railweld.fabric.lines import Path
from railweld.files import write_atomically

#: How a run is named after its start, in UTC.
_MOMENT: Final = "%Y%m%dT%H%M%SZ"


def fabric_dir(site: str) -> FilePath:
    """Folder of the fabric's state, 0700."""
    folder = state.site_state_dir(site) / "fabric"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def write_private(path: FilePath, text: str) -> None:
    """Write a file that only its owner reads, in one step, so that a reader sees old or new."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, text)


class Journal:
    """The record of one run. Safe to use from several threads."""

    def __init__(self, site: str, *, action: str = "push", now: datetime | None = None) -> None:
        moment = (now or datetime.now(UTC)).strftime(_MOMENT)
        base = fabric_dir(site)
        self.site = site
        self.run = moment
        number = 1
        while True:
            try:
                (base / self.run).mkdir(mode=0o700)
                break
            except FileExistsError:
                number += 1
                self.run = f"{moment}-{number}"
        self.folder = base / self.run
        self._lock = threading.Lock()
        self._action = action
        self.event("", f"{action} started", who=f"{getpass.getuser()}@{os.uname().nodename}")

    def event(self, switch: str, what: str, **data: Any) -> None:
        """Append one event; it is on disk when this returns."""
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "switch": switch,
            "event": what,
            **data,
        }
        with self._lock:
            self._append("journal.jsonl", json.dumps(entry, ensure_ascii=False) + "\n", sync=True)

    def said(self, switch: str, text: str) -> None:
        """Append to a switch's transcript; the text comes redacted."""
        self._append(f"{switch}.log", text + "\n")

    def finish(self, switch: str, *, before: str, after: str, result: str) -> None:
        """One line for the site's journal, which spans all stages."""
        with self._lock:
            state.journal(
                self.site,
                run=self.run,
                stage="fabric",
                target=switch,
                action=self._action,
                before=before,
                after=after,
                result=result,
            )

    def backup(self, switch: str, when: str, config: str) -> None:
        """Keep a running configuration; the first `before` of a run is the one that counts."""
        path = self.folder / f"{switch}.{when}"
        if when == "before" and path.exists():
            return
        write_private(path, config)

    def _append(self, name: str, text: str, *, sync: bool = False) -> None:
        descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, text.encode())
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def runs(site: str) -> list[str]:
    """Runs that kept a backup, oldest first."""
    return sorted(
        folder.name for folder in fabric_dir(site).glob("2*") if any(folder.glob("*.before"))
    )


def backups_before(site: str, moment: str) -> dict[str, tuple[str, str]]:
    """Per switch the configuration that stood at `moment`: (run, text).

    That is the backup of the first run at or after the moment which touched the switch.

    Raises:
        UsageError: the moment is neither a run nor a time.
    """
    known = runs(site)
    if moment not in known and not _is_time(moment):
        raise UsageError(
            f"--to: found {moment!r}, expected a time (YYYYMMDDTHHMMSSZ) or a run: "
            f"{', '.join(known[-3:]) or 'there is none yet'}; see {fabric_dir(site)}"
        )
    found: dict[str, tuple[str, str]] = {}
    for run in known:
        if run < moment:
            continue
        for path in sorted((fabric_dir(site) / run).glob("*.before")):
            found.setdefault(path.stem, (run, path.read_text(encoding="utf-8")))
    return found


def _is_time(text: str) -> bool:
    """Whether a text is a moment of the calendar as runs are named: other texts sort as well."""
    # strptime alone would also take one digit where two are written.
    if not re.fullmatch(r"\d{8}T\d{6}Z", text, re.ASCII):
        return False
    try:
        datetime.strptime(text, _MOMENT)
    except ValueError:
        return False
    return True


def owned(site: str, switch: str) -> tuple[Path, ...]:
    """Lines that an earlier push left on a switch; empty on a controller that never pushed."""
    path = fabric_dir(site) / "owned" / f"{switch}.json"
    if not path.is_file():
        return ()
    return tuple(tuple(entry) for entry in json.loads(path.read_text(encoding="utf-8")))


def record_owned(site: str, switch: str, lines: Iterable[Path]) -> None:
    """Remember which lines are ours."""
    write_private(
        fabric_dir(site) / "owned" / f"{switch}.json",
        json.dumps([list(path) for path in lines], indent=0) + "\n",
    )
