"""dkms: real commands and messages; a build registers a module for the node's modinfo."""

from __future__ import annotations

import json
from typing import Any

import pytest

from railweld.lab.vendor.driver import DriverBuild, source_files
from railweld.lab.vendor.programs import dkms

KERNEL = "6.1.0-18-amd64"
BUILD = DriverBuild(version="515.86.01", revision="0ubuntu1", fabric_manager_revision="1", cuda={})


@pytest.fixture
def source(node: Any) -> Any:
    for path, text in source_files(BUILD, "open").items():
        node.write(path.lstrip("/"), str(text))
    return node


def run(node: Any, *argv: str) -> int:
    return dkms.main(list(argv), {"version": "3.0.10"}, node.machine)


def registered(node: Any, module: str = "nvidia") -> dict[str, Any]:
    path = node.root / f"var/lib/railweld-lab/kernel-modules/{module}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def status(node: Any, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    run(node, "status")
    return capsys.readouterr().out


def test_install_registers_every_module_of_the_package(
    source: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source.headers()
    assert run(source, "install", "-m", "nvidia", "-v", "515.86.01") == 0
    assert status(source, capsys) == f"nvidia/515.86.01, {KERNEL}, x86_64: installed\n"
    assert registered(source)["version"] == "515.86.01"
    assert registered(source)["flavour"] == "open"
    assert registered(source)["signer"] == "DKMS module signing key"
    assert registered(source, "nvidia_peermem")["built_with_rdma_core"] == "inbox"
    assert registered(source, "nvidia_peermem")["peer_memory"] is False
    assert (source.root / f"lib/modules/{KERNEL}/updates/dkms/nvidia_uvm.ko").exists()


def test_without_headers_a_build_fails_and_names_the_package(
    source: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, "install", "nvidia/515.86.01") == 21
    assert f"Please install the linux-headers-{KERNEL} package" in capsys.readouterr().err
    assert registered(source) == {}


def test_without_headers_the_package_is_configured_without_a_module(
    source: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dkms.postinst(["nvidia", "515.86.01"], {}, source.machine) == 0
    assert f"Module build for kernel {KERNEL} was skipped" in capsys.readouterr().out
    assert registered(source) == {}
    assert status(source, capsys) == "nvidia/515.86.01: added\n"


def test_build_that_fails_is_not_installed(source: Any) -> None:
    source.headers()
    source.fault(dkms_build_fails=True)
    assert dkms.postinst(["nvidia", "515.86.01"], {}, source.machine) == 10
    assert registered(source) == {}
    assert (source.root / "var/lib/dkms/nvidia/515.86.01/build/make.log").exists()


def test_peermem_remembers_the_rdma_core_of_its_build(source: Any) -> None:
    source.headers()
    source.write(
        "var/lib/railweld-lab/kernel-modules/ib_core.json", json.dumps({"version": "25.10-1.7.1"})
    )
    dkms.postinst(["nvidia", "515.86.01"], {}, source.machine)
    assert registered(source, "nvidia_peermem")["built_with_rdma_core"] == "25.10-1.7.1"
    assert registered(source, "nvidia_peermem")["peer_memory"] is True


def test_remove_takes_the_modules_of_its_own_version_only(
    source: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source.headers()
    newer = DriverBuild(
        version="580.173.02", revision="1ubuntu1", fabric_manager_revision="1ubuntu1", cuda={}
    )
    for path, text in source_files(newer, "open").items():
        source.write(path.lstrip("/"), str(text))
    for version in ("515.86.01", "580.173.02"):
        run(source, "install", "-m", "nvidia", "-v", version)
    assert run(source, "remove", "-m", "nvidia", "-v", "515.86.01", "--all") == 0
    assert registered(source)["version"] == "580.173.02"
    assert status(source, capsys) == f"nvidia/580.173.02, {KERNEL}, x86_64: installed\n"
    run(source, "remove", "nvidia/580.173.02", "--all")
    assert registered(source) == {}


def test_other_kernels_are_built_but_not_shown_as_the_running_one(
    source: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write("lib/modules/6.1.0-22-amd64/build/Makefile", "")
    run(source, "install", "-m", "nvidia", "-v", "515.86.01", "-k", "6.1.0-22-amd64")
    assert "6.1.0-22-amd64, x86_64: installed" in status(source, capsys)
    assert registered(source) == {}


def test_postinst_builds_for_the_newest_kernel_too(
    source: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    source.headers()
    source.write("lib/modules/6.1.0-22-amd64/build/Makefile", "")
    dkms.postinst(["nvidia", "515.86.01"], {}, source.machine)
    assert len(status(source, capsys).splitlines()) == 2


def test_autoinstall_builds_what_was_skipped(source: Any) -> None:
    dkms.postinst(["nvidia", "515.86.01"], {}, source.machine)
    source.headers()
    assert run(source, "autoinstall") == 0
    assert registered(source)["version"] == "515.86.01"


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["add", "-m", "nvidia", "-v", "1.2"], 2, "Could not find module source directory"),
        (["remove", "-m", "nvidia", "-v", "1.2"], 3, "no instances of module"),
        (["build"], 1, "are not specified"),
        (["frobnicate"], 1, "Unknown action"),
    ],
)
def test_errors(
    source: Any, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, text: str
) -> None:
    assert run(source, *argv) == code
    assert text in capsys.readouterr().err
