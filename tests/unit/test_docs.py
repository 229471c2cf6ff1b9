"""Every command in README and docs: run where nothing is needed for it, else parsed as it stands.

A command is a line of a code block, or a word in backticks, that begins with one of the programs.
`inventories/SITE` stands for any site; every other path has to be there.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from ansible.cli.playbook import PlaybookCLI
from typer.exceptions import TyperException

from railweld.cli import app
from tests.unit import check_ids

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("roles/*/README.md")),
]
BIN = Path(sys.executable).parent
EXAMPLE = "inventories/example-a100"
PROGRAMS = ("railweld ", "ansible-playbook ", "make ", "python -m ")
#: Inventories of transcripts that were taken elsewhere.
ELSEWHERE = {"inventories/h200x2"}
#: Other projects' programs, in words about them.
FOREIGN = ("make src.build", "python -m torch.")
#: Commands that need no machine: these are run, with the example in place of SITE.
RUN = ("check", "doctor --list", "lab fault", "stack render", "fabric render")


@dataclass(frozen=True)
class Said:
    """A command and where it stands."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def commands(page: Path) -> Iterator[Said]:
    """All commands of a page."""
    fence = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        name = str(page.relative_to(ROOT))
        if line.startswith("```"):
            fence = "" if fence else line[3:].strip() or "sh"
            continue
        in_block = fence in ("sh", "bash", "console") if fence else line.startswith("    ")
        texts = [line] if in_block else [] if fence else re.findall(r"`([^`]+)`", line)
        for text in texts:
            for command in _commands_in(text):
                yield Said(name, number, command)


def _commands_in(text: str) -> Iterator[str]:
    """The programs' own command lines in a line of a shell."""
    text = re.sub(r"^\s*(\$ |# )?", "", text)
    text = re.split(r"\s{2,}#|\s+#\s", text)[0].strip()
    inner = re.findall(r"\$\(([^)]*)\)", text)
    for part in [*inner, *re.split(r"\s+\|\s+|\s*;\s+|\s+&&\s+", text)]:
        words = re.sub(r"^[A-Z_]+=\S+\s+", "", part.strip())
        words = re.split(r"\s+>\s*\S+", words)[0]
        # A program's name alone is a word of the sentence.
        if words.strip().startswith(PROGRAMS) and not words.startswith(FOREIGN):
            yield words.strip()


def words_of(text: str) -> list[str]:
    """Words as a shell gives them; brackets around what may be left out are gone."""
    text = re.sub(r"(^|\s)\[([^\]]*)\]", r"\1\2", text)
    return [word for word in shlex.split(text) if word not in ("…", "...", "|")]


ALL = [said for page in PAGES for said in commands(page)]
TEXTS = {said.text: said for said in ALL}


def test_there_are_commands_on_every_how_to() -> None:
    pages = {said.page for said in ALL}
    for page in ("README.md", "docs/up.md", "docs/quickstart.md", "docs/runbooks/clock.md"):
        assert page in pages
    assert len(TEXTS) > 100


def parse_railweld(words: list[str]) -> None:
    """Parse with the program's own parser, without running anything."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("railweld", list(words), resilient_parsing=True)
    rest = list(words)
    while hasattr(command, "commands"):
        if not rest:
            return
        name, found, rest = command.resolve_command(context, rest)
        command = found
        if hasattr(command, "commands"):
            context = command.make_context(name, list(rest), parent=context, resilient_parsing=True)
        elif rest:
            command.make_context(name, list(rest), parent=context)


def inventories(words: list[str]) -> Iterator[str]:
    for flag, value in pairwise(words):
        if flag in ("-i", "--inventory"):
            yield value


def check_paths(said: Said, words: list[str]) -> None:
    for inventory in inventories(words):
        fine = inventory in {"inventories/SITE", "INVENTORY", "…", *ELSEWHERE}
        assert fine or (ROOT / inventory).exists(), f"{said}: no {inventory}"


@pytest.mark.parametrize("text", [t for t in TEXTS if t.startswith("railweld")], ids=str)
def test_railweld_takes_the_command(text: str) -> None:
    said = TEXTS[text]
    words = words_of(text)[1:]
    check_paths(said, words)
    try:
        parse_railweld(words)
    except TyperException as error:
        pytest.fail(f"{said}: {error.format_message()}")


@pytest.mark.parametrize("text", [t for t in TEXTS if t.startswith("ansible-playbook")], ids=str)
def test_the_playbook_is_there_and_ansible_takes_the_options(text: str) -> None:
    said = TEXTS[text]
    words = words_of(text)
    check_paths(said, words)
    cli = PlaybookCLI(words)
    cli.init_parser()
    given = cli.parser.parse_args(words[1:])
    for playbook in given.args:
        assert playbook == "playbooks/X.yml" or (ROOT / playbook).is_file(), f"{said}: {playbook}"


@pytest.mark.parametrize("text", [t for t in TEXTS if t.startswith("make ")], ids=str)
def test_the_target_is_there(text: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    wanted = [word for word in words_of(text)[1:] if "=" not in word]
    assert [word for word in wanted if word not in targets] == [], TEXTS[text]


@pytest.mark.parametrize("text", [t for t in TEXTS if t.startswith("python -m ")], ids=str)
def test_the_module_is_there(text: str) -> None:
    assert importlib.util.find_spec(words_of(text)[2]), TEXTS[text]


def runnable() -> list[str]:
    """Commands that need no machine, as they would be typed for the example."""
    found = set()
    for text in TEXTS:
        words = words_of(text)
        command = " ".join(words[1:])
        site = set(inventories(words)) <= {"inventories/SITE", EXAMPLE, "inventories/lab"}
        is_known = any(command == each or command.startswith(f"{each} -i") for each in RUN)
        if words[0] == "railweld" and site and is_known:
            found.add(text.replace("inventories/SITE", EXAMPLE))
    return sorted(found)


@pytest.mark.parametrize("text", runnable(), ids=str)
def test_what_needs_no_machine_runs(text: str, tmp_path: Path) -> None:
    words = words_of(text)
    words = [str(tmp_path / "out") if word == "out/" else word for word in words]
    done = subprocess.run(
        [BIN / words[0], *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def test_every_check_that_a_page_names_can_be_emitted() -> None:
    areas = {each.partition(".")[0] for each in check_ids.known()} - {"ansible", "site"}
    unknown = []
    for page in PAGES:
        for word in re.findall(r"`([a-z_]+\.[a-z_*]+)`", page.read_text()):
            area, _, last = word.partition(".")
            is_file = last in ("py", "yml", "conf", "json", "xml", "html", "md", "service", "sh")
            if area in areas and not is_file and not check_ids.exists(word):
                unknown.append(f"{page.relative_to(ROOT)}: {word}")
    assert unknown == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
