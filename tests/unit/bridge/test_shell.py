"""Whose variables a shell in a pod gets."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from railweld.bridge.pod import shell, wire

Agents = Callable[[str], None]


def answer(listener: socket.socket, pod: str) -> None:
    """As an agent answers the first question on its socket; it leaves the connection open."""
    link, _ = listener.accept()
    with link:
        link.recv(65536)
        link.sendall(wire.control(environment={"POD": pod}, directory="/", pod=pod))
        link.recv(65536)


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    """Start agents of pods that share one folder for temporary files, in the folder's order."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ExitStack() as stack:

        def start(pod: str) -> None:
            folder = tmp_path / f"railweld-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(folder / "agent.sock"))
            listener.listen()
            thread = threading.Thread(target=answer, args=(listener, pod), daemon=True)
            thread.start()

        yield start


@pytest.mark.parametrize("pod", ["first", "second"])
def test_a_shell_asks_the_agent_of_its_own_pod(
    agents: Agents, monkeypatch: pytest.MonkeyPatch, pod: str
) -> None:
    agents("first")
    agents("second")
    monkeypatch.setenv("RAILWELD_POD_UID", pod)
    assert shell.ask()["environment"] == {"POD": pod}


def test_without_its_agent_a_shell_takes_no_others(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents("first")
    monkeypatch.setenv("RAILWELD_POD_UID", "gone")
    assert shell.ask() == {}
