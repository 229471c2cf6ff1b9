"""The chain: its order and commands, and what the command does when a stage ends badly."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from railweld.access import Access
from railweld.errors import UsageError
from railweld.site import load_site
from railweld.up.chain import CHAIN, Context, chosen
from tests.unit.sites import SMALL

ROOT = Path(__file__).parents[3]
RAILWELD = Path(sys.executable).parent / "railweld"
EXAMPLE = ROOT / "inventories" / "example-a100"


def context(*inventories: str) -> Context:
    site = load_site([str(EXAMPLE)])
    return Context(site, Access(inventories or (str(EXAMPLE),)), ROOT, Path("/tmp/r.html"))


def run(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RAILWELD, "up", *options],
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_stages_are_in_the_order_in_which_they_need_each_other() -> None:
    names = [stage.name for stage in CHAIN]
    assert names == ["check", "base", "fabric", "cluster", "stack", "slurm", "proof"]
    assert [stage.name for stage in chosen("fabric", "stack")] == ["fabric", "cluster", "stack"]


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        ("fabrik", None, "--from: found 'fabrik'"),
        (None, "all", "--to: found"),
        ("slurm", "base", "after"),
    ],
)
def test_stages_that_are_not_there_are_refused(
    first: str | None, last: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        chosen(first, last)


def test_every_playbook_and_command_of_the_chain_exists() -> None:
    known = subprocess.run([RAILWELD, "--help"], capture_output=True, text=True, check=True).stdout
    for stage in CHAIN:
        for command in [*stage.apply(context()), *stage.plan(context())]:
            program, *words = command.argv
            if program == "ansible-playbook":
                playbook = next(word for word in words if word.startswith("playbooks/"))
                assert (ROOT / playbook).is_file(), playbook
            elif program == "railweld":
                assert f" {words[0]} " in known


def test_the_stack_takes_one_inventory() -> None:
    stack = next(stage for stage in CHAIN if stage.name == "stack")
    assert "../inventories/example-a100" in stack.apply(context())[1].argv
    with pytest.raises(UsageError, match="more inventories, expected one"):
        stack.apply(context("a", "b"))
    # Its program knows nothing of -e: it would make another site's stack.
    with pytest.raises(UsageError, match="more variables, expected none"):
        stack.apply(replace(context(), access=Access((str(EXAMPLE),), ("a=1",))))


def test_every_command_gets_the_operator_s_options(tmp_path: Path) -> None:
    vault = str(tmp_path / "vault")
    given = replace(
        context(), access=Access((str(EXAMPLE),), ("a=1",), vault), junit=tmp_path / "v.xml"
    )
    words = ("-i", str(EXAMPLE), "-e", "a=1", "--vault-password-file", vault)
    for stage in CHAIN:
        for command in stage.apply(given) if stage.name != "stack" else ():
            assert " ".join(words) in str(command)
    assert given.environment == {"ANSIBLE_VAULT_PASSWORD_FILE": vault}
    assert f"--junit {tmp_path}/v.xml" in str(CHAIN[-1].apply(given)[0])


def test_a_command_is_said_without_its_secrets_and_as_a_shell_takes_it() -> None:
    words = ("ansible_become_password=hunter2", "@more.yml", '{"railweld_x": [1, 2]}')
    access = Access((str(EXAMPLE),), words, "/etc/vault")
    command = replace(context(), access=access).playbook("deploy-base.yml")
    assert words[0] in command.argv
    assert "hunter2" not in str(command)
    assert "-e @more.yml -e '{\"railweld_x\": [1, 2]}' --vault-password-file /etc/vault" in str(
        command
    )


def test_a_site_gets_the_stages_that_it_describes(tmp_path: Path) -> None:
    (tmp_path / "site.yml").write_text(SMALL)
    small = load_site([str(tmp_path / "site.yml")])
    assert {stage.name: stage.skip(small) for stage in CHAIN if stage.skip(small)} == {
        "fabric": "an InfiniBand fabric is managed by its subnet manager",
        "cluster": "no host in group control_plane",
        "stack": "no host in group control_plane",
        "slurm": "no host in group slurm_head",
    }
    lab = load_site([str(ROOT / "inventories/lab")])
    assert [stage.name for stage in CHAIN if stage.skip(lab)] == []


def test_a_missing_program_is_named_before_the_first_stage_starts(tmp_path: Path) -> None:
    done = run(tmp_path, "-i", str(EXAMPLE), "--to", "stack")
    assert done.returncode == 64
    assert "pulumi (stage stack)" in done.stderr
    assert "[1/" not in done.stdout


def test_a_stage_that_fails_stops_the_chain_with_its_exit_code(tmp_path: Path) -> None:
    # From another folder, with a path relative to it; port 1 of the loopback refuses.
    (tmp_path / "site.yml").write_text(SMALL)
    done = run(tmp_path, "-i", "site.yml", "--to", "base")
    assert done.returncode not in (0, 64), done.stdout + done.stderr
    assert "up: stopped at base" in done.stdout
    lines = (tmp_path / ".local/state/railweld/small/journal.jsonl").read_text().splitlines()
    results = [(line["stage"], line["result"]) for line in map(json.loads, lines)]
    assert ("check", "done") in results
    assert any(stage == "base" and result.startswith("exit code") for stage, result in results)


def test_a_plan_that_cannot_be_made_does_not_hide_the_next(tmp_path: Path) -> None:
    (tmp_path / "site.yml").write_text(SMALL)
    done = run(tmp_path, "-i", "site.yml", "--plan")
    assert done.returncode not in (0, 64), done.stdout + done.stderr
    assert "no plan: exit code" in done.stdout
    assert "skipped: looks at what the other stages leave" in done.stdout
    assert "stopped at" not in done.stdout
    # A plan is no entry of the journal.
    assert not list(tmp_path.rglob("journal.jsonl"))


def test_a_chain_that_stops_leaves_no_junit_file_of_the_run_before(tmp_path: Path) -> None:
    (tmp_path / "site.yml").write_text(SMALL)
    (tmp_path / "verify.xml").write_text("<testsuites/>")
    done = run(tmp_path, "-i", "site.yml", "--junit", "verify.xml")
    assert "up: stopped at base" in done.stdout
    assert not (tmp_path / "verify.xml").exists()


def test_a_report_that_cannot_be_written_is_refused_before_the_first_stage(tmp_path: Path) -> None:
    (tmp_path / "site.yml").write_text(SMALL)
    done = run(tmp_path, "-i", "site.yml", "--report", "missing/report.html")
    assert done.returncode == 64
    assert "--report missing/report.html" in done.stderr
    assert "[1/" not in done.stdout


def test_slurm_is_planned_without_a_cluster_only_if_no_job_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path))
    slurm = next(stage for stage in CHAIN if stage.name == "slurm")
    plain = {"railweld_partitions": [{"name": "x", "group": "gpu_nodes", "bridge": False}]}
    assert "needs the cluster" in slurm.not_yet(context().site)
    assert slurm.not_yet(load_site([str(EXAMPLE)], plain)) == ""
