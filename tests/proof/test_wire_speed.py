"""`railweld bench` on the lab: what the stand-in reaches passes; a planted slow link is named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.labs import TestLab, answer, command

pytestmark = [pytest.mark.lab, pytest.mark.deep]

NODES = ["gpu1", "gpu2"]


def measure(lab: TestLab, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and figures."""
    argv = ["railweld", "bench", "-i", str(lab.inventory), "--json", *words]
    run = command(argv, check=False)
    return run.returncode, answer(run.stdout)


def test_rates_pass_until_a_link_is_slow_and_it_is_named(lab: TestLab) -> None:
    lab.play(playbook="playbooks/deploy-bench.yml").assert_ok()
    code, found = measure(lab)
    assert code == 0, found["checks"]
    assert [run["nodes"] for run in found["runs"]] == [["gpu1"], ["gpu2"], NODES]
    lab.fault("slow-link", "gpu1", "peer=gpu2")
    try:
        code, found = measure(lab, "--pairs")
    finally:
        lab.clear("slow-link", "gpu1")
    told = (code, found["slow_nodes"], found["slow_links"])
    assert told == (1, [], [NODES]), found["checks"]
    code, found = measure(lab, "--pairs")
    assert (code, found["slow_links"]) == (0, [])
