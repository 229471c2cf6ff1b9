"""The Slurm area of the probe on outputs of Slurm 22.05.8."""

from __future__ import annotations

import base64
import hashlib
import http.server
import importlib.util
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from railweld import names
from railweld.bridge import bundle

ROOT = Path(__file__).parents[3]
CONFIG = """\
Configuration data as of 2026-11-30T03:28:54
BOOT_TIME               = 2026-11-30T03:28:24
ClusterName             = lab
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at head1 is UP
"""
NODES = """\
gpu1|idle|gpu:a100:8|128|1000000|none
gpu2|down*|gpu:a100:8(S:0-1)|128|1000000|Not responding
gpu3|drained|(null)|64|500|admin: fan | noise
"""
UNITS = """\
slurmd@gpu1.service loaded active running Slurm node daemon of virtual node gpu1
slurmd@gpu2.service loaded failed failed Slurm node daemon of virtual node gpu2
"""


def load(name: str) -> ModuleType:
    """Load a file of plugins/ under the name that Ansible gives it."""
    folder, _, module = name.rpartition("/")
    if f"ansible.module_utils.{module}" in sys.modules:
        return sys.modules[f"ansible.module_utils.{module}"]
    spec = importlib.util.spec_from_file_location(
        f"ansible.module_utils.{module}", ROOT / "plugins" / folder / f"{module}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def probe() -> ModuleType:
    load("module_utils/railweld_cluster_probe")
    return load("module_utils/railweld_slurm_probe")


#: What scontrol says on a node whose clock is behind.
REFUSED = (
    "scontrol: error: Munge decode failed: Rewound credential\n"
    "slurm_load_ctl_conf error: Zero Bytes were transmitted or received\n"
)


class Node:
    """A machine with given outputs and a root of its own."""

    def __init__(self, root: Path, outputs: dict[str, str]) -> None:
        self.root = root
        self.outputs = outputs

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def names(self, folder: str) -> list[str]:
        path = self.path(folder)
        return sorted(each.name for each in path.iterdir()) if path.is_dir() else []

    def glob(self, pattern: str) -> list[str]:
        found = self.root.glob(pattern.lstrip("/"))
        return sorted("/" + str(path.relative_to(self.root)) for path in found)

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def read(self, name: str) -> str | None:
        return self.path(name).read_text() if self.exists(name) else None

    def sha256(self, name: str) -> str | None:
        found = self.path(name)
        return hashlib.sha256(found.read_bytes()).hexdigest() if found.is_file() else None

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        words = argv[2:] if argv[0] == "timeout" else argv
        said = self.outputs.get(" ".join(words[:2]))
        return (1, "", REFUSED) if said is None else (0, said, "")

    def output(self, *argv: str) -> str | None:
        code, said, _ = self.run(argv)
        return None if code else said


def test_slurmctld_that_answers(probe: Any, tmp_path: Path) -> None:
    controller = probe.read_controller(Node(tmp_path, {"scontrol show": CONFIG}))
    assert controller == {
        "up": True,
        "error": "",
        "SLURM_VERSION": "22.05.8",
        "ClusterName": "lab",
        "BOOT_TIME": "2026-11-30T03:28:24",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
    }


@pytest.mark.parametrize(
    "text", [None, "", CONFIG.replace("is UP", "is DOWN"), "slurm_load_ctl_conf error: timed out"]
)
def test_slurmctld_that_does_not(probe: Any, tmp_path: Path, text: str | None) -> None:
    outputs = {} if text is None else {"scontrol show": text}
    found = probe.read_controller(Node(tmp_path, outputs))
    assert found["up"] is False
    assert found["error"] == ("" if text is not None else " ".join(REFUSED.split()))


def test_nodes_with_their_flags_and_sockets_apart(probe: Any, tmp_path: Path) -> None:
    nodes = probe.read_nodes(Node(tmp_path, {"sinfo --Node": NODES}))
    assert (nodes["gpu2"]["state"], nodes["gpu2"]["responds"]) == ("down", False)
    assert nodes["gpu2"]["gres"] == "gpu:a100:8"
    assert nodes["gpu3"]["reason"] == "admin: fan | noise"
    assert nodes["gpu1"]["cpus"] == 128


def test_virtual_nodes_that_run_and_that_would_run_after_a_boot(probe: Any, tmp_path: Path) -> None:
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(parents=True)
    for name in ("gpu1", "gpu3"):
        (wants / f"slurmd@{name}.service").symlink_to("/etc/systemd/system/slurmd@.service")
    assert probe.read_daemons(Node(tmp_path, {"systemctl list-units": UNITS})) == {
        "gpu1": {"active": "active", "enabled": True},
        "gpu2": {"active": "failed", "enabled": False},
        "gpu3": {"active": "inactive", "enabled": True},
    }


def test_daemons_of_a_replaced_package(probe: Any, tmp_path: Path) -> None:
    for number, program in {
        "10": "/usr/sbin/slurmctld-wlm (deleted)",
        "11": "/usr/sbin/slurmd-wlm",
        # Steps of running jobs keep their program, which is right.
        "12": "/usr/sbin/slurmstepd (deleted)",
        "13": "/usr/bin/python3.11 (deleted)",
    }.items():
        (tmp_path / "proc" / number).mkdir(parents=True)
        (tmp_path / "proc" / number / "exe").symlink_to(program)
    assert probe.read_outdated(Node(tmp_path, {})) == ["slurmctld"]


# -- the bridge --------------------------------------------------------------------------------


def test_the_probe_looks_where_the_role_writes(probe: Any) -> None:
    """It runs on the node without railweld, so its names are a second spelling."""
    assert probe.BRIDGE_UNIT == names.BRIDGE_UNIT
    assert probe.BRIDGE_PROGRAMS == names.BRIDGE_PROGRAMS
    assert probe.BRIDGE_CLIENT == names.BRIDGE_CLIENT
    assert probe.BRIDGE_EPILOG == names.BRIDGE_EPILOG
    assert probe.BRIDGE_CONFIG == names.BRIDGE_CONFIG
    assert probe.BRIDGE_KUBECONFIG == names.BRIDGE_KUBECONFIG
    assert probe.BRIDGE_TOKEN == names.BRIDGE_TOKEN
    assert probe.BRIDGE_MONITOR == names.BRIDGE_MONITOR
    assert f"/namespaces/{names.NAMESPACE_JOBS}/" in probe.BRIDGE_LOOK


def test_a_head_without_a_bridge(probe: Any, tmp_path: Path) -> None:
    found = probe.read_bridge(Node(tmp_path, {}))
    assert found["present"] is False
    assert found["programs"] == []
    assert (found["token"]["sha256"], found["api"], found["ready"]) == (None, None, None)


def test_a_token_shows_its_end_and_not_itself(probe: Any, tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(b'{"iat": 100, "exp": 300}').decode().rstrip("=")
    token = tmp_path / names.BRIDGE_TOKEN.lstrip("/")
    token.parent.mkdir(parents=True)
    token.write_text(f"header.{claims}.signature")
    token.chmod(0o600)
    program = tmp_path / bundle.build().path.lstrip("/")
    program.parent.mkdir(parents=True)
    program.touch()
    found = probe.read_bridge(Node(tmp_path, {}))
    assert found["present"] is True
    assert found["programs"] == [program.name]
    assert (found["token"]["issued"], found["token"]["expires"]) == (100.0, 300.0)
    assert found["token"]["mode"] == "0600"
    assert "signature" not in repr(found)
    assert probe.read_claims("garbage")["expires"] is None


def test_what_the_daemon_says_is_read_from_where_it_listens(probe: Any, tmp_path: Path) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b"slurmctld does not answer\n")

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = tmp_path / names.BRIDGE_CONFIG.lstrip("/")
    config.parent.mkdir(parents=True)
    config.write_text(f'{{"monitor": "127.0.0.1:{server.server_port}"}}')
    assert probe.read_ready(Node(tmp_path, {})) == "slurmctld does not answer"
    server.shutdown()
    server.server_close()
    assert probe.read_ready(Node(tmp_path, {})).startswith("no answer: ")
