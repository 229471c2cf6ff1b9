"""What `railweld verify` costs once nodes have answered: reading, judging, tabling, printing.

The page of `railweld report` is made of the same records, beside that.

    python -m tests.bench.verify [NODES ...]        default: 16 160 1280

Answers are those of nodes as described, written as Ansible's callback writes them; one node in 100
has a port down and a clock that is off. The judge is a process of its own. Switches are not asked.
Parts are CPU seconds, which depend less on what else runs on the machine; one thread does it all.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.check_scale import write_inventory

GOAL_SECONDS, GOAL_MIB = 10.0, 500
_JUDGE = "--judge"


def write_answers(inventory: Path, path: Path) -> None:
    """Write every node's answer as one line."""
    from railweld.site import load_site  # noqa: PLC0415 - the measuring process needs none of it
    from railweld.verify.stages import OBSERVE  # noqa: PLC0415 - likewise
    from tests.observed import healthy  # noqa: PLC0415 - likewise

    site = load_site([str(inventory)])
    fact = site.fact()
    with path.open("w") as stream:
        for number, name in enumerate(site.hosts, 1):
            node = healthy(fact, name)
            if number % 100 == 0:
                node["hcas"][0] |= {"state": "DOWN", "phys_state": "Polling"}
                node["time"]["offset_s"] = 0.8
            result = {"ansible_facts": {"railweld_node": node}}
            line = {"host": name, "task": OBSERVE, "status": "ok", "result": result}
            stream.write(json.dumps(line) + "\n")


def judge(inventory: str, answers: Path) -> None:
    """Do what the command does after its nodes answered; print what it took as JSON."""
    from railweld.access import Access  # noqa: PLC0415 - timed from here
    from railweld.fabric import links  # noqa: PLC0415 - likewise
    from railweld.fabric.stage import stage_of  # noqa: PLC0415 - likewise
    from railweld.nodes import read_answers  # noqa: PLC0415 - likewise
    from railweld.report.data import Data, now  # noqa: PLC0415 - likewise
    from railweld.report.page import render  # noqa: PLC0415 - likewise
    from railweld.verify import stages  # noqa: PLC0415 - likewise
    from railweld.verify.output import print_checks, print_table  # noqa: PLC0415 - likewise

    took: dict[str, float] = {}
    began = time.process_time()

    def lap(name: str) -> None:
        took[name] = time.process_time() - began - sum(took.values())

    request = stages.request_for(Access((inventory,)))
    lap("description")
    request.remember(request.site.hosts, read_answers(answers))
    lap("read")
    checks = stages.records(
        {name: stages.verify(request, name) for name in ("base", "gpu", "links")}
    )
    lap("judge")
    hosts = set(request.site.hosts)
    cables = links._cables(stage_of(request.site, request.raw).fabric)
    joined = links.join(
        cables,
        links.host_checks(request.site, request.nodes(hosts)),
        links.nccl_checks(request.site, hosts),
    )
    table = links.table(joined)
    lap("table")
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        print_table(table)
        print_checks(checks)
    lap("print")
    data = Data(request.site, checks, (table,), None, now())
    page = render(data)
    lap("page")
    bad = sum(check.is_bad for check in checks)
    print(
        json.dumps(
            {
                "took": took,
                "checks": len(checks),
                "bad": bad,
                "links": len(joined),
                "page": len(page),
            }
        )
    )


def main(sizes: list[int]) -> None:
    """Print one row per size."""
    parts = ("description", "read", "judge", "table", "print", "page")
    print(f"{'nodes':>6} {'checks':>8} {'bad':>5} {'links':>6} " + " ".join(
        f"{part:>11}" for part in (*parts, "verify", "wall s", "MiB")
    ))  # fmt: skip
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            inventory, answers = Path(name) / "site", Path(name) / "answers.jsonl"
            write_inventory(inventory, size)
            subprocess.run(
                [sys.executable, "-m", "tests.bench.verify", "--write", inventory, answers],
                check=True,
            )
            started = time.monotonic()
            command = [sys.executable, "-m", "tests.bench.verify", _JUDGE, inventory, answers]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                found = json.loads(process.stdout.read())
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            wall = time.monotonic() - started
        took = found["took"]
        beyond = sum(took.values()) - took["description"] - took["page"]
        row = (*(took[part] for part in parts), beyond, wall, usage.ru_maxrss / 1024)
        print(f"{size:>6} {found['checks']:>8} {found['bad']:>5} {found['links']:>6} " + " ".join(
            f"{value:>11.2f}" for value in row
        ))  # fmt: skip
    print(f"goal at 1280 nodes: less than {GOAL_SECONDS:g} s and {GOAL_MIB} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == [_JUDGE]:
        judge(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1:2] == ["--write"]:
        write_answers(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main([int(argument) for argument in sys.argv[1:]] or [16, 160, 1280])
