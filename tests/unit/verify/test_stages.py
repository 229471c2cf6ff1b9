"""`railweld verify`: which stages and machines are looked at, and what a table shows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from railweld.access import Access
from railweld.errors import CouldNotLookError, ExitCode, UsageError
from railweld.fabric.links import host_checks
from railweld.record import Check, Status
from railweld.site import Site, load_inventory, load_site
from railweld.verify import cli, stages
from railweld.verify.cli import _stages
from railweld.verify.hosts import not_reached
from railweld.verify.output import exit_code, print_table
from railweld.verify.stages import STAGES, Request, Table, Verified
from tests.unit.sites import SMALL

LAB = "inventories/lab"


@pytest.fixture(scope="module")
def site() -> Site:
    return load_site([LAB])


def request_for(site: Site, *limit: str) -> Request:
    return Request(Access((LAB,)), load_inventory([LAB]), site, limit=limit)


def test_stages_are_looked_at_in_their_own_order_and_all_means_all() -> None:
    assert _stages(["all"], ["one", "two"]) == ["one", "two"]
    assert _stages(["two,one"], ["one", "two"]) == ["one", "two"]
    assert _stages(["two"], ["one", "two"]) == ["two"]


def test_an_unknown_stage_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="found fabrik, expected") as caught:
        _stages(["fabrik"], list(STAGES))
    assert "fabric" in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "names"),
    [
        ((), {"head1", "gpu1", "gpu2", "gpu3", "leaf1", "leaf2", "spine1"}),
        (("gpu1",), {"gpu1"}),
        (("gpu[12],leaf1",), {"gpu1", "gpu2", "leaf1"}),
        (("spines", "gpu_nodes"), {"spine1", "gpu1", "gpu2", "gpu3"}),
    ],
)
def test_limit_takes_names_patterns_and_groups(
    site: Site, limit: tuple[str, ...], names: set[str]
) -> None:
    request = request_for(site, *limit)
    assert {name for name in (*site.hosts, *site.switches) if request.selects(name)} == names


@pytest.mark.parametrize(
    ("inventory", "looks", "areas"),
    [
        (LAB, STAGES, {"health", "cluster", "slurm"}),
        (LAB, ["base", "links", "fabric"], set()),
        (LAB, ["gpu", "slurm"], {"health", "slurm"}),
        ("small", STAGES, {"health"}),
    ],
)
def test_one_observation_serves_all_stages_that_the_site_has(
    tmp_path: Path, inventory: str, looks: Iterable[str], areas: set[str]
) -> None:
    if inventory == "small":
        inventory = str(tmp_path / "site.yml")
        Path(inventory).write_text(SMALL)
    assert stages.request_for(Access((inventory,)), looks=looks).areas == areas


def test_nobody_is_asked_where_no_node_is_wanted(site: Site) -> None:
    assert request_for(site).nodes([]) == {}


def test_a_silent_host_is_one_record_whichever_stages_looked(tmp_path: Path) -> None:
    (inventory := tmp_path / "site.yml").write_text(SMALL)
    small = load_site([str(inventory)])
    request = Request(Access(), load_inventory([str(inventory)]), small)
    request.remember(small.hosts, {})
    silent = {name: not_reached(name, "no answer within 600 s") for name in small.hosts}
    found = {name: stages.verify(request, name) for name in ("base", "gpu", "links")}
    found["fabric"] = Verified(host_checks(small, request.nodes(small.hosts)))
    assert [sorted(each.checks, key=str) for each in found.values()] == [
        sorted(silent.values(), key=str)
    ] * 4
    assert len(stages.records(found)) == len(silent)


def test_slurm_says_the_same_of_a_silent_head(site: Site) -> None:
    request = request_for(site)
    request.remember(site.hosts, {})
    found = stages.verify(request, "slurm").checks
    assert found == [not_reached("head1", "no answer within 600 s")]


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([Status.PASS, Status.WARN], ExitCode.OK),
        ([Status.PASS, Status.UNKNOWN], ExitCode.UNKNOWN),
        ([Status.UNKNOWN, Status.FAIL], ExitCode.FAILED),
        ([Status.SKIPPED], ExitCode.OK),
        ([], ExitCode.OK),
    ],
)
def test_the_worst_record_decides_the_exit_code(statuses: list[Status], code: ExitCode) -> None:
    checks = [
        Check(id="x.y", layer="host", target="gpu1", status=status, ran="", found="", expected="")
        for status in statuses
    ]
    assert exit_code(checks) == code


def test_waiting_looks_again_until_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(status: Status) -> Check:
        return Check(
            id="x.y", layer="host", target="gpu1", status=status, ran="", found="", expected=""
        )

    looks = [Status.FAIL, None, Status.UNKNOWN, Status.PASS, Status.FAIL, None]

    def look(_request: Request, _stage: str) -> Verified:
        status = looks.pop(0)
        if status is None:
            raise CouldNotLookError("no node answers")
        return Verified([record(status)])

    monkeypatch.setattr(cli, "_PAUSE_S", 0.0)
    monkeypatch.setattr(stages, "verify", look)
    where = {"inventory": [LAB], "extra_vars": None, "vault_password_file": None}
    assert cli.verify(**where, stage=["links"], wait=60) == ExitCode.OK
    assert looks == [Status.FAIL, None]
    assert cli.verify(**where, stage=["links"]) == ExitCode.FAILED
    with pytest.raises(CouldNotLookError):
        cli.verify(**where, stage=["links"])


def test_a_large_table_shows_what_needs_a_look_and_counts_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"link": f"port {number}"} for number in range(50)]
    print_table(Table("links", ("link",), rows, [number == 7 for number in range(50)]))
    shown = capsys.readouterr().out
    assert "port 7" in shown
    assert "port 8" not in shown
    assert "49 more rows without a fault" in shown
