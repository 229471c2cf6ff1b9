"""`push` and `drift` on 1 to 256 virtual switches that take 50 ms for every answer.

All switches at the same time (`--batch all`, as many jobs as switches). The virtual switches run
in one process of their own, whose CPU time is told apart: on a machine of few cores it competes
with the tool's. "netmiko one by one" is `send_config_set` with the same lines, one switch after
the other, without any of the safety; measured on one switch, four times, and multiplied.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import TypeVar

from netmiko import ConnectHandler

from railweld.fabric.model import Fabric, Port, Switch
from railweld.fabric.push import Settings
from railweld.fabric.render import render
from railweld.fabric.stage import Looked, Stage
from railweld.fabric.transport import Login
from railweld.lab.veos import Neighbour, VirtualSwitch

T = TypeVar("T")

SIZES = (1, 16, 64, 256)
LATENCY_S = 0.05
PORTS = 4
ONE_BY_ONE = 4


def fabric(count: int) -> Fabric:
    """Leaves with four host ports each; every leaf carries one of eight rails."""
    return Fabric(
        site=f"bench{count}",
        switches=tuple(
            Switch(
                name=f"leaf{number}",
                model="DCS-7050CX3-32S",
                ports=tuple(
                    Port(
                        name=f"Ethernet{port}/1",
                        kind="host",
                        peer=f"gpu{port}",
                        peer_port="rail1",
                        rail=number % 8,
                    )
                    for port in range(1, PORTS + 1)
                ),
            )
            for number in range(1, count + 1)
        ),
    )


def _serve(count: int, pipe: Pipe) -> None:
    async def run() -> None:
        switches = [
            VirtualSwitch(
                model=switch.model,
                hostname=switch.name,
                latency_s=LATENCY_S,
                neighbours=[Neighbour(p.name, p.peer, p.peer_port) for p in switch.ports],
            )
            for switch in fabric(count).switches
        ]
        for switch in switches:
            await switch.start()
        pipe.send(
            {
                "ports": [switch.port for switch in switches],
                "hosts": "".join(switch.known_hosts_line() for switch in switches),
            }
        )
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, pipe.recv) == "cpu":
            pipe.send(_cpu())
        for switch in switches:
            await switch.stop()

    asyncio.run(run())


@dataclass
class Served:
    """Virtual switches in a process of their own."""

    logins: dict[str, Login]
    pipe: Pipe

    def cpu(self) -> float:
        """CPU seconds that their process has used."""
        self.pipe.send("cpu")
        return float(self.pipe.recv())


@contextmanager
def served(count: int) -> Iterator[Served]:
    """Start that many virtual switches."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(count, there), daemon=True)
    process.start()
    answer = here.recv()
    with tempfile.NamedTemporaryFile("w", suffix=".known_hosts") as known_hosts:
        known_hosts.write(answer["hosts"])
        known_hosts.flush()
        logins = {
            f"leaf{number}": Login(
                switch=f"leaf{number}",
                host="127.0.0.1",
                port=port,
                username="admin",
                password="admin",
                known_hosts=known_hosts.name,
                connect_timeout_s=60,
                command_timeout_s=120,
            )
            for number, port in enumerate(answer["ports"], start=1)
        }
        yield Served(logins, here)
    here.send("stop")
    process.join(20)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _approve(seen: Looked) -> bool:
    return bool(seen.changed)


class Watch:
    """When each switch was first and last worked on."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def __call__(self, switch: str, what: str) -> None:
        """Note a step; what `Stage` calls as its progress."""
        del what
        self._first.setdefault(switch, time.perf_counter())
        self._last[switch] = time.perf_counter()

    def slowest(self) -> float:
        """Seconds from the first to the last step of the switch that took longest."""
        return max(self._last[name] - first for name, first in self._first.items())


def measure(count: int) -> dict[str, float]:
    """Push and drift once on that many switches, all at the same time."""
    with served(count) as switches:
        settings = Settings(batch=None, jobs=count, observe_s=0)
        watch = Watch()
        stage = Stage(fabric(count), switches.logins, settings=settings, progress=watch)

        def timed(work: Callable[[], T]) -> tuple[T, dict[str, float]]:
            start, own, theirs = time.perf_counter(), _cpu(), switches.cpu()
            done = work()
            return done, {
                "s": time.perf_counter() - start,
                "cpu_s": _cpu() - own,
                "switches_cpu_s": switches.cpu() - theirs,
            }

        (_, report), push = timed(lambda: stage.push(_approve))
        if report is None or not report.ok:
            sys.exit("push failed: " + "; ".join(o.sentence() for o in report.outcomes if not o.ok)
                     if report else "push had nothing to do")  # fmt: skip
        slowest = watch.slowest()
        (found, failures), drift = timed(stage.drift)
        if failures or not all(each.clean for each in found):
            sys.exit(f"drift after the push: {failures or found}")
        alone = one_by_one(fabric(count), switches.logins) if count == 1 else 0.0
    return {
        "switches": count,
        **{f"push_{name}": value for name, value in push.items()},
        "slowest_s": slowest,
        **{f"drift_{name}": value for name, value in drift.items()},
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "one_by_one_s": alone,
    }


def one_by_one(wanted: Fabric, logins: dict[str, Login]) -> float:
    """Seconds that netmiko's plain way takes for one switch, on average."""
    lines = render(wanted, wanted.switches[0]).text().splitlines()
    typed = [line.strip() for line in lines if line.strip() not in ("", "!")]
    login = logins["leaf1"]
    start = time.perf_counter()
    for _ in range(ONE_BY_ONE):
        with ConnectHandler(
            device_type="arista_eos", host=login.host, port=login.port,
            username=login.username, password=login.password,
        ) as connection:  # fmt: skip
            connection.enable()
            connection.send_command("show running-config")
            connection.send_config_set(typed, read_timeout=60)
            connection.save_config()
    return (time.perf_counter() - start) / ONE_BY_ONE


def main(sizes: list[int]) -> None:
    """Print the table; each size runs in a fresh process, so that its memory is its own."""
    context = multiprocessing.get_context("spawn")
    base: dict[str, float] = {}
    columns = (
        "switches", "push s", "x one", "slowest switch s", "CPU s", "switches' CPU s", "drift s",
        "x one", "CPU s", "switches' CPU s", "MiB", "netmiko one by one s",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |")
    print("|---:" * len(columns) + "|")
    for size in sizes or SIZES:
        here, there = context.Pipe()
        process = context.Process(target=_measured, args=(size, there))
        process.start()
        row = json.loads(here.recv())
        process.join()
        base = base or row
        print(
            f"| {size} | {row['push_s']:.1f} | {row['push_s'] / base['push_s']:.1f} "
            f"| {row['slowest_s']:.1f} | {row['push_cpu_s']:.1f} "
            f"| {row['push_switches_cpu_s']:.1f} "
            f"| {row['drift_s']:.1f} | {row['drift_s'] / base['drift_s']:.1f} "
            f"| {row['drift_cpu_s']:.1f} | {row['drift_switches_cpu_s']:.1f} "
            f"| {row['rss_mib']:.0f} | {base['one_by_one_s'] * size:.0f} |",
            flush=True,
        )


def _measured(count: int, pipe: Pipe) -> None:
    with tempfile.TemporaryDirectory() as state:
        os.environ["RAILWELD_STATE"] = str(Path(state))
        pipe.send(json.dumps(measure(count)))


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]])
