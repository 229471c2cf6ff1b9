"""The page, from a real description and records as the stages make them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from railweld.bench.output import MeasuredRun, Measurement, Size
from railweld.errors import UsageError
from railweld.record import Check, Status
from railweld.report.data import Data, read_bench
from railweld.report.page import render
from railweld.runs import Failure, Host, Plan, Run
from railweld.site import Site, load_site
from railweld.verify.stages import Table

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site() -> Site:
    return load_site([str(ROOT / "inventories" / "example-a100")])


def record(target: str, status: Status = Status.FAIL, found: str = "mtu 1500") -> Check:
    return Check(
        id="rdma.mtu", layer="link", target=target, status=status, ran="ip link", found=found,
        expected="9000", fix="set it",
    )  # fmt: skip


def data(site: Site, *checks: Check, runs: list[MeasuredRun] | None = None) -> Data:
    table = Table("Links", ("host", "mtu"), ({"host": "gpu01", "mtu": "!1500"},), (True,))
    bench = Measurement(site=site.name, runs=runs) if runs else None
    return Data(site, checks, (table,), bench, datetime(2026, 1, 2, tzinfo=UTC))


def run(nodes: list[str], busbw: float | None) -> MeasuredRun:
    rows = [Size(bytes=8, busbw_gb_per_s=0.1), Size(bytes=1 << 30, busbw_gb_per_s=42.0)]
    return MeasuredRun(nodes=nodes, busbw_gb_per_s=busbw, needed_gb_per_s=40.0, rows=rows)


def test_every_described_cable_is_drawn_once_with_what_was_found_on_it(site: Site) -> None:
    hca = site.hosts["gpu03"].hcas[1]
    end = f"gpu03/{hca.netdev}"
    links = data(site, record(end), record("gpu03/other", Status.PASS)).links
    assert len(links) == sum(len(host.hcas) for host in site.hosts.values())
    (bad,) = [link for link in links if link.state is Status.FAIL]
    assert (bad.ends, bad.ports) == ((hca.switch, "gpu03"), (hca.port, hca.netdev))


def test_a_switch_port_has_its_state_by_the_name_that_its_checks_use(site: Site) -> None:
    hca = site.hosts["gpu03"].hcas[1]
    found = data(
        site, record(f"{hca.switch} {hca.port}"), record(f"gpu03/{hca.netdev}", Status.PASS)
    )
    (bad,) = [link for link in found.links if link.state is Status.FAIL]
    assert bad.ends == (hca.switch, "gpu03")
    assert (found.state(hca.switch), found.state("gpu03")) == (Status.FAIL, Status.PASS)


def test_a_machine_has_the_worst_state_of_its_ports(site: Site) -> None:
    found = data(site, record("gpu01", Status.PASS), record("gpu01/ens1", Status.WARN))
    assert found.state("gpu01") is Status.WARN
    assert found.state("gpu02") is Status.SKIPPED


def test_findings_are_worst_first_and_leave_passes_out(site: Site) -> None:
    statuses = (Status.WARN, Status.PASS, Status.FAIL, Status.UNKNOWN)
    found = data(site, *(record("gpu01", status) for status in statuses)).findings
    assert [check.status for check in found] == [Status.FAIL, Status.UNKNOWN, Status.WARN]


def test_the_page_loads_nothing_from_anywhere(site: Site) -> None:
    text = render(data(site, record("gpu01"), runs=[run(["gpu01", "gpu02"], 42.0)]))
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"(src|href)\s*=|@import|url\(", outside)
    assert "default-src 'none'" in outside


def test_what_machines_say_is_text_and_never_markup(site: Site) -> None:
    evil = "<script>alert(1)</script>"
    text = render(data(site, record(f"gpu01/{evil}", found=evil)))
    assert evil not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_names_of_nodes_cannot_end_the_script_of_a_drawing(site: Site) -> None:
    evil = "</script><b>x"
    assert "</script><b>x" not in render(data(site, runs=[run([evil, "gpu02"], 42.0)]))


def version(target: str, id_: str, found: str, status: Status = Status.PASS) -> Check:
    return Check(
        id=id_, layer="host", target=target, status=status, ran="dpkg", found=found, expected="",
    )  # fmt: skip


def test_machines_with_another_version_stand_beside_the_described_one(site: Site) -> None:
    found = data(
        site,
        version("gpu01", "nccl.library", "NCCL 2.14.3"),
        version("gpu01", "nccl.package.libnccl2", "libnccl2 2.14.3"),
        version("gpu02", "nccl.library", "NCCL 2.18.1", Status.FAIL),
        version("gpu02", "nccl.package.libnccl2", "libnccl2 2.18.1", Status.FAIL),
        version("leaf1", "fabric.config", "2 lines <differ>", Status.FAIL),
        version("leaf1 Ethernet1/1", "fabric.config", "no difference"),
        version("leaf2", "fabric.config", "no difference"),
    )
    rows = {row.name: row for row in found.versions}
    assert list(rows) == [*site.versions.versions.components(), "switch configuration"]
    assert (rows["nccl"].same, rows["nccl"].drift) == (
        1, {"gpu02": "NCCL 2.18.1; libnccl2 2.18.1"},
    )  # fmt: skip
    assert (rows["driver"].same, rows["driver"].drift) == (0, {})
    lines = rows["switch configuration"]
    assert (lines.same, lines.drift) == (1, {"leaf1": "2 lines <differ>"})
    (section,) = re.findall(r'<section id="versions">.*?</section>', render(found), re.DOTALL)
    words = " ".join(re.sub(r"<[^>]+>", " ", section).split())
    described = site.versions.component("nccl").version
    assert f"nccl {described} 1 gpu02: NCCL 2.18.1; libnccl2 2.18.1" in words
    assert "leaf1: 2 lines &lt;differ&gt;" in words


def test_a_long_list_of_drift_is_cut_and_counted(site: Site) -> None:
    checks = [version(f"gpu{n:02}", "nccl.library", "old", Status.FAIL) for n in range(25)]
    assert render(data(site, *checks)).count(": old<br>") == 20
    assert "and 5 more" in render(data(site, *checks))


def test_nothing_found_is_said(site: Site) -> None:
    text = render(data(site, record("gpu01", Status.PASS)))
    assert "everything that was looked at is as described" in text
    assert "Bandwidth of pairs" not in text


def test_what_the_last_runs_had_to_do_is_shown(site: Site) -> None:
    plan = Plan(todo=["cni"], reasons={"cni": ["gpu01: cni: found no <route>"]})
    failure = Failure(role="cni", task="Write", reason="gpu01: found <no> disk")
    host = Host(changed=2, failures=1, unreachable=0, plan=plan, failure=failure)
    run = Run(
        run="20261130T120000Z-7", stage="cluster", playbook="deploy-cluster.yml", check_mode=False,
        began=datetime(2026, 11, 30, 12, tzinfo=UTC), seconds=61.24, hosts={"gpu01": host},
    )  # fmt: skip
    given = data(site, record("gpu01"))
    assert 'id="runs"' not in render(given)
    text = render(replace(given, runs=(run,)))
    (section,) = re.findall(r'<section id="runs">.*?</section>', text, re.DOTALL)
    words = " ".join(re.sub(r"<[^>]+>", " ", section).split())
    assert "cluster deploy-cluster.yml 20261130T120000Z-7 2026-11-30T12:00:00+00:00 61.2 1 2 1" in (
        words
    )
    assert "gpu01 to do: cni failed at cni: found &lt;no&gt; disk" in words
    assert "cni: found no &lt;route&gt;" in words


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "railweld bench --json"),
        ("[]", "railweld bench --json"),
        ('{"site": "s", "runs": [{"nodes": "x"}]}', "runs.0"),
        ('{"site": "s", "runs": [5]}', "runs.0"),
        (
            '{"site": "s", "runs": [{"nodes": ["a"], "busbw_gb_per_s": "fast", "rows": []}]}',
            "busbw_gb_per_s",
        ),
        ('{"site": "other", "runs": []}', "found site 'other'"),
    ],
)
def test_a_measurement_of_something_else_is_refused(
    site: Site, tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=re.escape(words)):
        read_bench(path, site)


def test_a_measurement_of_this_site_is_read(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(Measurement(site=site.name, runs=[run(["gpu01"], 1.0)]).model_dump_json())
    assert read_bench(path, site).runs[0].nodes == ["gpu01"]
