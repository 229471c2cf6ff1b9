"""What role bridge writes onto the head."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from ansible.errors import AnsibleFilterError

from railweld import names
from railweld.slurm import model
from tests.loading import load_file
from tests.unit.slurm.conftest import SiteMaker

PLUGIN = Path(__file__).parents[3] / "roles/bridge/filter_plugins/bridge.py"


@pytest.fixture(scope="module")
def filters() -> ModuleType:
    return load_file(PLUGIN)


def test_settings_of_a_site_join_what_follows_from_the_description(
    filters: ModuleType, site: SiteMaker
) -> None:
    bridge = model.fact(site())["bridge"]
    text = filters.settings(bridge, {"tick": 2, "environment": ["WANDB_*"]})
    assert json.loads(text)["tick"] == 2
    assert json.loads(text)["cluster"] == "tiny"
    assert filters.settings(bridge, {}) == filters.settings(bridge, {})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"advertise": "1.2.3.4:5"}, "found advertise, expected entries that do not follow"),
        ({"tock": 2}, "tock: found an entry of no meaning"),
        ({"tick": "soon"}, "tick: found 'soon'"),
        ({"listen": "nowhere"}, "expected HOST:PORT"),
    ],
)
def test_wrong_settings_are_refused_before_they_are_written(
    filters: ModuleType, site: SiteMaker, more: dict[str, object], said: str
) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        filters.settings(model.fact(site())["bridge"], more)


def test_the_epilog_asks_about_jobs_of_the_bridge_only(
    filters: ModuleType, site: SiteMaker, tmp_path: Path
) -> None:
    found = {
        each["path"]: each["content"] for each in filters.scripts(model.fact(site())["bridge"])
    }
    client = tmp_path / "client"
    client.write_text('#!/bin/sh\necho "asked $*"\n')
    client.chmod(0o755)
    script = tmp_path / "epilog"
    script.write_text(found[names.BRIDGE_EPILOG].replace(names.BRIDGE_CLIENT, str(client)))

    def run(**variables: str) -> str:
        done = subprocess.run(
            ["sh", str(script)], env=variables, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert run(SLURM_JOB_PARTITION="gpu") == "asked --epilog\n"
    assert run(SLURM_JOB_PARTITION="plain") == ""
    assert run(SLURM_JOB_PARTITION="gpu2") == ""
    # A Slurm that does not say is asked about every job.
    assert run() == "asked --epilog\n"


def test_the_program_runs_on_nothing_but_itself(filters: ModuleType, tmp_path: Path) -> None:
    program = tmp_path / "bridged.pyz"
    program.write_bytes(base64.b64decode(filters.program({})))
    with zipfile.ZipFile(io.BytesIO(program.read_bytes())) as archive:
        assert "railweld/bridge/pod/agent.py" in archive.namelist()
    argv = [sys.executable, "-I", "-S", str(program), "ask", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "railweld-bridge" in done.stdout
    argv = [sys.executable, "-I", str(program), "--config", str(tmp_path / "none")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "expected the file that deploy-slurm.yml writes" in done.stderr
