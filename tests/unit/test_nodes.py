from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from railweld.access import Access
from railweld.errors import CouldNotLookError
from railweld.nodes import ask, read_answers
from railweld.site.inventory import load_inventory


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "hosts.yml"
    # Port 1 of the loopback refuses; the other needs no network.
    path.write_text(
        f"""\
all:
  hosts:
    here: {{ansible_connection: local, ansible_python_interpreter: {sys.executable}}}
    gone: {{ansible_host: 127.0.0.1, ansible_port: 1}}
"""
    )
    return str(path)


def command(name: str, script: str) -> dict[str, object]:
    return {"name": name, "ansible.builtin.command": {"argv": ["sh", "-c", script]}}


def test_an_answer_says_what_the_command_gave_and_what_it_returned(inventory: str) -> None:
    found = ask(Access((inventory,)), ["here"], [command("one", "echo yes; exit 3")], timeout_s=60)
    assert (found["here"]["one"].status, found["here"]["one"].rc) == ("failed", 3)
    assert found["here"]["one"].stdout == "yes"


def test_a_host_that_cannot_be_reached_says_why_and_stops_nobody(inventory: str) -> None:
    tasks = [command("one", "true"), command("two", "echo here")]
    found = ask(Access((inventory,)), ["here", "gone"], tasks, timeout_s=60)
    assert found["gone"]["one"].status == "unreachable"
    assert "Connection refused" in found["gone"]["one"].reason
    assert "two" not in found["gone"]
    assert found["here"]["two"].stdout == "here"


def processes_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(line)
    return found


def test_a_play_that_does_not_end_is_stopped_with_its_workers(
    inventory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(CouldNotLookError, match="no end within 5 s"):
        ask(Access((inventory,)), ["here"], [command("one", "sleep 40")], timeout_s=5)
    assert processes_with(f"{tmp_path}/railweld-ask-") == []


def test_an_inventory_that_ansible_cannot_read_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.ini")
    with pytest.raises(CouldNotLookError, match="missing"):
        ask(Access((missing,)), ["here"], [command("one", "true")], timeout_s=60)


def test_names_as_the_inventory_gives_them_are_taken(inventory: str) -> None:
    # Ansible tags strings with their origin; a name read from a file is no plain str.
    here = next(name for name in load_inventory([inventory]).hosts if name == "here")
    assert (
        ask(Access((inventory,)), [here], [command("one", "true")], timeout_s=60)[here]["one"].rc
        == 0
    )


def test_an_answer_that_was_cut_off_is_none_and_spoils_no_other(tmp_path: Path) -> None:
    line = '{"host": "gpu1", "task": "look", "status": "ok", "result": {}}\n'
    answers = tmp_path / "answers.jsonl"
    answers.write_text(line + line.replace("gpu1", "gpu2")[:40])
    assert set(read_answers(answers)) == {"gpu1"}


def test_asking_nobody_asks_nothing() -> None:
    assert ask(Access(("/nonexistent",)), [], [], timeout_s=1) == {}
