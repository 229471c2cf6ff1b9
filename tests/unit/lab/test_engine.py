"""The lab's Pulumi, as far as nothing has to be built."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from railweld.lab import engine


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("RAILWELD_CACHE", str(tmp_path / "cache"))


def test_a_site_keeps_its_passphrase_which_nobody_else_reads() -> None:
    path = Path(engine.settings("lab")["PULUMI_CONFIG_PASSPHRASE_FILE"])
    text = path.read_text()
    assert len(text) > 20
    assert path.stat().st_mode & 0o777 == 0o600
    assert engine.settings("lab")["PULUMI_CONFIG_PASSPHRASE_FILE"] == str(path)
    assert path.read_text() == text
    assert Path(engine.settings("x")["PULUMI_CONFIG_PASSPHRASE_FILE"]).read_text() != text


def test_the_language_host_serves_and_ends_with_whoever_started_it() -> None:
    """Its port is the first line; when its parent is gone, it goes too."""
    host = engine.language_host() / "pulumi-language-python"
    # A shell that starts the host, hands on its port and dies without a word to it.
    script = '"$0" > "$1" & echo $!; until [ -s "$1" ]; do sleep 0.1; done; kill -9 $$'
    ports = host.parent / "port"
    done = subprocess.run(
        ["sh", "-c", script, host, ports], capture_output=True, text=True, check=False, timeout=60
    )
    assert int(ports.read_text()) > 0
    child = int(done.stdout)
    # The kernel keeps no trace of a process that ended and was no child of ours.
    subprocess.run(["tail", f"--pid={child}", "-f", "/dev/null"], check=True, timeout=60)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
