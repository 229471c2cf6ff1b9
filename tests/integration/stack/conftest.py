"""One control plane for all tests of the stack; one deployed stack for those that look at it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from railweld.site import Site, load_site
from railweld.stack.graph import Stack, stack_for
from railweld.state import cache_dir
from tests.integration.stack.plane import ROOT, ControlPlane, running

LAB = ROOT / "inventories" / "lab"


@pytest.fixture(scope="session")
def stack() -> Stack:
    """The lab's stack, on nodes that have a cache and shared storage."""
    volume = {"name": "data", "mount": "/data", "host_path": "/mnt/data"}
    extra = {"railweld_cache_device": "/dev/nvme0n1", "railweld_job_volumes": [volume]}
    return stack_for(load_site([str(LAB)], extra))


@pytest.fixture(scope="session")
def site() -> Callable[..., Site]:
    """The lab with other values."""

    def load(**variables: object) -> Site:
        extra = {f"railweld_{name}": value for name, value in variables.items()}
        return load_site([str(LAB)], extra)

    return load


@pytest.fixture(scope="session")
def debian_program() -> Callable[[str, str], Path]:
    """A program of a Debian package, without installing it."""

    def fetch(package: str, path: str) -> Path:
        folder = cache_dir("test-programs", package)
        program = folder / path
        if not program.is_file():
            with tempfile.TemporaryDirectory() as name:
                command = ["apt-get", "download", "-q", package]
                subprocess.run(command, cwd=name, check=True, capture_output=True)
                archive = next(Path(name).glob("*.deb"))
                subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)
        return program

    return fetch


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane whose stack is applied object by object, without Pulumi."""
    with running(tmp_path_factory.mktemp("plane")) as started:
        yield started


@pytest.fixture
def empty_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane of the test's own."""
    with running(tmp_path / "plane") as started:
        yield started
