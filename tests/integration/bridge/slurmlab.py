"""Real Slurm in one container: munge, slurmctld, and a slurmd for every virtual node.

Debian's packages on the lab's base image. The container shares the machine's network, so that the
bridge's daemon in it reaches an API server that runs as plain processes; all ports are free ones.
The repository is mounted at its own path; the daemon runs in it as on a real head, with Debian's
Python and Debian's aiohttp.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railweld.bridge import hook
from railweld.lab.image import debian_mirror, digest, ensure_base
from railweld.lab.podman import image_exists, podman, remove_container
from tests.integration.stack.plane import ROOT, free_port

PACKAGES = (
    "munge",
    "procps",
    "python3",
    "python3-aiohttp",
    "python3-yaml",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurmctld",
    "slurmd",
)
USERS = {"alice": 2001, "bob": 2002, "system": 901}
#: Those of the bridge; `plain` is beside them.
PARTITIONS = ("gpu", "gpu2")
#: The machine may do much else.
PATIENCE = 180.0


def ensure_image() -> str:
    """Lab base with Slurm's packages; built once."""
    base = ensure_base(lambda _text: None)
    recipe = (
        f"FROM {base.image}\n"
        f"RUN printf 'deb {debian_mirror()} bookworm main\\n' > /etc/apt/sources.list"
        " && apt-get -qq update"
        f" && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "
        f"{' '.join(PACKAGES)} >/dev/null"
        " && apt-get clean && rm -rf /var/lib/apt/lists/*\n"
        + "".join(
            f"RUN useradd --create-home --shell /bin/bash --uid {uid} {name}\n"
            for name, uid in USERS.items()
        )
    )
    image = f"localhost/railweld-test-slurm:{digest(recipe)}"
    if not image_exists(image):
        podman(
            "build",
            "--quiet",
            "--network",
            "host",
            "--tag",
            image,
            "--file",
            "-",
            "/var/empty" if Path("/var/empty").is_dir() else "/mnt",
            stdin=recipe.encode(),
        )
    return image


def wait_for(
    condition: Callable[[], Any], seconds: float = PATIENCE, what: str | Callable[[], str] = ""
) -> Any:
    """Return the first true value; fail with what was seen last."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            text = what() if callable(what) else what
            raise AssertionError(f"not within {seconds:g} s: {value!r}\n{text}")
        time.sleep(0.1)


@dataclass
class SlurmLab:
    """A running Slurm."""

    name: str
    folder: Path
    nodes: tuple[str, ...]
    ports: tuple[int, int]

    # -- commands ----------------------------------------------------------------------------

    def run(
        self,
        *argv: str,
        user: str = "root",
        check: bool = True,
        cwd: str | None = None,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the container."""
        options = [
            "--user",
            user,
            "--workdir",
            cwd or ("/root" if user == "root" else f"/home/{user}"),
        ]
        options += [part for k, v in (env or {}).items() for part in ("--env", f"{k}={v}")]
        done = subprocess.run(
            ["podman", "--runtime", "runc", "exec", "--interactive", *options, self.name, *argv],
            capture_output=True,
            text=True,
            input=stdin if stdin is not None else "",
            check=False,
            timeout=180,
        )
        assert not check or done.returncode == 0, (
            f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done

    def sh(self, script: str, **options: Any) -> str:
        """Output of a shell script in the container."""
        return self.run("bash", "-c", script, **options).stdout

    def background(self, *argv: str, log: str, user: str = "root") -> int:
        """Start a process that outlives the call; returns its pid inside."""
        line = shlex.join(argv)
        text = self.sh(f"setsid {line} >>{log} 2>&1 </dev/null & echo $!", user=user)
        return int(text)

    def submit(self, *argv: str, user: str = "alice", **options: Any) -> int:
        """`sbatch`; returns the job id."""
        done = self.run("sbatch", "--parsable", *argv, user=user, **options)
        return int(done.stdout.split(";")[0])

    def script(self, text: str, *argv: str, user: str = "alice", **options: Any) -> int:
        """Submit a script from standard input."""
        return self.submit(*argv, user=user, stdin=text, **options)

    def job(self, job: int) -> dict[str, str]:
        """`scontrol show job`, as far as it is name=value words."""
        done = self.run("scontrol", "--oneliner", "show", "job", str(job), check=False)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def state(self, job: int) -> str:
        """JobState; COMPLETING stands for a job that Slurm tears down."""
        done = self.run(
            "squeue", "--noheader", "--states=all", "--format=%T", f"--job={job}", check=False
        )
        return done.stdout.strip()

    def wait_state(self, job: int, *states: str, seconds: float = PATIENCE) -> str:
        """Wait until the job is in one of these states."""
        found: str = wait_for(
            lambda: (s := self.state(job)) in states and s,
            seconds,
            lambda: f"job {job} in {states}, is {self.job(job)}",
        )
        return found

    def node(self, name: str) -> dict[str, str]:
        """State and reason of a node."""
        done = self.run("scontrol", "--oneliner", "show", "node", name)
        words = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
        reason = done.stdout.partition("Reason=")[2].partition(" [")[0]
        return {"state": words["State"], "reason": reason}

    def read(self, path: str) -> str:
        """A file of the container."""
        return self.run("cat", path).stdout

    def pids(self, pattern: str) -> list[int]:
        """Processes by their command line."""
        done = self.run("pgrep", "--full", pattern, check=False)
        return [int(each) for each in done.stdout.split()]

    def signal(self, name: str, *pids: int) -> None:
        """Send a signal to processes of the container."""
        self.run("kill", f"-{name}", *map(str, pids))

    # -- life --------------------------------------------------------------------------------

    def configure(self, **settings: str) -> None:
        """Write slurm.conf and gres.conf."""
        control, first = self.ports
        values = {
            "ClusterName": "lab",
            "SlurmctldHost": "head1(127.0.0.1)",
            "SlurmctldPort": str(control),
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "StateSaveLocation": "/var/spool/slurmctld",
            "SlurmdSpoolDir": "/var/spool/slurmd/%n",
            "SlurmdPidFile": "/run/slurmd-%n.pid",
            "SlurmctldPidFile": "/run/slurmctld.pid",
            "SlurmdLogFile": "/var/log/slurm/%n.log",
            "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "GresTypes": "gpu",
            "SelectType": "select/cons_tres",
            "SlurmdParameters": "config_overrides",
            "SchedulerParameters": "sched_min_interval=0,batch_sched_delay=0",
            "JobSubmitPlugins": "lua",
            "KillWait": "60",
            "UnkillableStepTimeout": "180",
            "ReturnToService": "1",
            "JobFileAppend": "1",
            "MinJobAge": "300",
            "Epilog": "/etc/slurm/epilog",
            "EpilogSlurmctld": "/etc/slurm/epilog",
            "MaxArraySize": "1001",
            "Licenses": "solver:1",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            **settings,
        }
        count = len(self.nodes)
        nodes = f"gpu[1-{count}]" if count > 1 else "gpu1"
        ports = f"[{first}-{first + count - 1}]" if count > 1 else str(first)
        hardware = "CPUs=128 RealMemory=1000000 Gres=gpu:8"
        lines = [f"{name}={value}" for name, value in values.items()]
        lines += [
            f"NodeName={nodes} NodeHostname=head1 NodeAddr=127.0.0.1 Port={ports} {hardware}",
            f"PartitionName=gpu Nodes={nodes} Default=YES OverSubscribe=EXCLUSIVE State=UP",
            f"PartitionName=gpu2 Nodes={nodes} OverSubscribe=EXCLUSIVE State=UP",
            f"PartitionName=plain Nodes={nodes} State=UP",
        ]
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "gres.conf").write_text(
            f"NodeName={nodes} Name=gpu File=/var/lib/railweld/gpu[0-7]\n"
        )
        (self.folder / "job_submit.lua").write_text(hook.render(PARTITIONS, ["/home", "/data"]))
        epilog = self.folder / "epilog"
        epilog.write_text(hook.epilog(PARTITIONS))
        epilog.chmod(0o755)

    def start(self) -> None:
        """Start everything and wait until every node is idle."""
        self.sh(
            "set -e; mkdir -p /run/munge /var/log/munge /var/lib/munge /var/spool/slurmctld "
            "/var/log/slurm /var/lib/railweld /data; chmod 1777 /data; "
            "chown munge:munge /run/munge /var/log/munge /var/lib/munge; "
            "touch /var/lib/railweld/gpu{0..7}; "
            "setpriv --reuid munge --regid munge --init-groups munged 2>/dev/null"
        )
        self.start_slurmctld()
        for first in range(0, len(self.nodes), 100):
            names = " ".join(self.nodes[first : first + 100])
            self.sh(f"for n in {names}; do mkdir -p /var/spool/slurmd/$n; slurmd -N $n; done")
        wait_for(
            self.idle,
            PATIENCE + len(self.nodes),
            what=lambda: self.sh("sinfo -N; sinfo -R; tail -n5 /var/log/slurm/*"),
        )

    def idle(self) -> bool:
        """Whether every node is free."""
        states = self.sh("sinfo --noheader --format=%T", check=False)
        return set(states.split()) == {"idle"}

    def start_slurmctld(self) -> None:
        """Start (again) slurmctld and wait until it answers."""
        self.run("slurmctld")
        wait_for(lambda: self.run("scontrol", "ping", check=False).stdout.find("UP") >= 0)

    def stop_slurmctld(self) -> None:
        """End slurmctld; jobs and slurmds live on."""
        self.sh(
            "kill $(cat /run/slurmctld.pid); while [ -e /run/slurmctld.pid ]; do sleep 0.1; done"
        )


@contextlib.contextmanager
def running(
    folder: Path, nodes: Sequence[str], mounts: Sequence[Path] = (), **settings: str
) -> Iterator[SlurmLab]:
    """A Slurm for the length of a `with`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"railweld-test-slurm-{os.getpid()}-{digest(str(folder))[:6]}"
    first = free_ports(len(nodes))
    lab = SlurmLab(name, folder, tuple(nodes), (free_port(), first))
    lab.configure(**settings)
    image = ensure_image()
    volumes = [
        *(
            f"{lab.folder / each}:/etc/slurm/{each}"
            for each in ("slurm.conf", "gres.conf", "job_submit.lua", "epilog")
        ),
        f"{ROOT / 'src/railweld/bridge/client.py'}:/usr/libexec/railweld/exec:ro",
        f"{ROOT / 'src/railweld/lab/torchrun.py'}:/usr/local/bin/torchrun:ro",
        f"{ROOT}:{ROOT}:ro",
        *(f"{path}:{path}" for path in mounts),
    ]
    podman(
        "run",
        "--detach",
        "--name",
        name,
        "--network",
        "host",
        "--hostname",
        "head1",
        "--privileged",
        "--ulimit",
        "nofile=20000:20000",
        "--ulimit",
        "nproc=10000:10000",
        # Many slurmds, jobs and pods are many processes.
        "--pids-limit",
        "-1",
        *(part for volume in volumes for part in ("--volume", volume)),
        # The first process has to take care of orphans.
        image,
        "bash",
        "-c",
        "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done",
    )
    try:
        lab.start()
        yield lab
    finally:
        remove_container(name)


def free_ports(count: int) -> int:
    """First of so many free ports in a row.

    None of those that the system gives to connections: between this and the last of a thousand
    slurmds' starts some would be taken.
    """
    while True:
        first = 10000 + secrets.randbelow(32768 - 10000 - count)
        held = []
        try:
            for port in range(first, first + count):
                link = socket.socket()
                held.append(link)
                link.bind(("127.0.0.1", port))
        except OSError:
            continue
        else:
            return first
        finally:
            for link in held:
                link.close()
