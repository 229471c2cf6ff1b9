"""The report in a real browser, without a network: what is drawn, in both themes and on paper."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path

import pytest

from railweld.bench.output import MeasuredRun, Measurement, Size
from railweld.record import Check, Status
from railweld.report.data import Data
from railweld.report.page import render
from railweld.runs import Host, Plan, Run
from railweld.site import load_site
from railweld.verify.stages import Table

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything in it, ready to be asked from the page itself."""
    site = load_site([str(ROOT / "inventories" / "example-a100")])
    hca = site.hosts["gpu03"].hcas[1]
    check = Check(
        id="rdma.mtu", layer="link", target=f"gpu03/{hca.netdev}", status=Status.FAIL,
        ran="ip link", found="1500", expected="9000", fix="set it",
    )  # fmt: skip
    nodes = list(site.hosts)[:6]
    rows = [Size(bytes=8 << n, busbw_gb_per_s=float(n)) for n in range(0, 30, 3)]
    runs = [
        MeasuredRun(nodes=list(pair), busbw_gb_per_s=42.0, needed_gb_per_s=40.0, rows=rows)
        for pair in combinations(nodes, 2)
    ]
    table = Table("Links", ("host", "mtu"), ({"host": "gpu03", "mtu": "!1500"},), (True,))
    made = datetime(2026, 1, 2, tzinfo=UTC)
    plan = Plan(todo=["cni"], reasons={"cni": ["gpu03: cni has not completed here yet"]})
    last = Run(
        run="20260101T120000Z-7", stage="cluster", playbook="deploy-cluster.yml", check_mode=False,
        began=made, seconds=61.2,
        hosts={"gpu03": Host(changed=2, failures=0, unreachable=0, plan=plan)},
    )  # fmt: skip
    measured = Measurement(site=site.name, runs=runs)
    data = Data(site, (check,), (table,), measured, made, (last,))
    # What the page sees of itself ends up in its title, which --dump-dom shows.
    probe = """<script>addEventListener('load', function () {
      document.title = [
        document.querySelectorAll('.main-svg').length > 0,
        document.querySelectorAll('#topology .point').length,
        document.querySelectorAll('#matrix .hm image').length,
        document.querySelectorAll('#runs tr').length,
        getComputedStyle(document.querySelector('#topology .legendtext')).fill,
        getComputedStyle(document.body).backgroundColor
      ].join('|');
    });</script></body>"""
    path = tmp_path_factory.mktemp("report") / "site.html"
    path.write_text(render(data).replace("</body>", probe))
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Headless Chromium without any network; returns what it prints."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "found no chromium, expected one: apt-get install chromium"
    profile = tmp_path_factory.mktemp("profile")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [
                *("unshare", "--net", program, "--headless", "--no-sandbox", "--disable-gpu"),
                *(f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0"),
                *("--virtual-time-budget=20000", *arguments),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        lines = done.stderr.splitlines()
        # Chromium's own pages complain about the missing network.
        errors = [line for line in lines if ":CONSOLE" in line and "chrome://" not in line]
        assert errors == []
        return done.stdout

    return run


def seen(dom: str) -> list[str]:
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None
    return title[1].split("|")


def test_everything_is_drawn_and_text_follows_the_theme(
    page: Path, chromium: Callable[..., str]
) -> None:
    light = seen(chromium("--dump-dom", page.as_uri()))
    drawn, points, heat, rows, text, back = light
    # Of the runs: the heading, the run, and what its node had to do.
    assert (drawn, heat, rows) == ("true", "1", "3")
    # 16 nodes and two leaves.
    assert int(points) == 18
    assert (text, back) == ("rgb(29, 39, 51)", "rgb(255, 255, 255)")
    dark = seen(chromium("--dump-dom", "--blink-settings=preferredColorScheme=0", page.as_uri()))
    assert dark[4:] == ["rgb(227, 233, 239)", "rgb(20, 25, 31)"]


def test_it_prints(page: Path, chromium: Callable[..., str], tmp_path: Path) -> None:
    paper = tmp_path / "site.pdf"
    chromium(f"--print-to-pdf={paper}", page.as_uri())
    assert paper.read_bytes().startswith(b"%PDF")
