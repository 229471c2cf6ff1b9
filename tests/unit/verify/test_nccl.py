"""NCCL: refused over the wrong toolkit, judged by the library file."""

from __future__ import annotations

from railweld.verify.roles import nccl


def test_converged_node_passes_guard_and_checks(observed, bad):
    ctx = observed()
    assert bad(nccl.guard(ctx)) == {}
    assert bad(nccl.checks(ctx)) == {}


def test_guard_refuses_without_the_described_toolkit(observed, bad):
    changes = {"node.cuda.release": None, "node.cuda.nvcc": None}
    assert list(bad(nccl.guard(observed(changes)))) == ["cuda.nvcc"]


def test_guard_refuses_without_the_described_driver(observed, bad):
    assert list(bad(nccl.guard(observed({"node.driver.loaded": None})))) == ["nvidia_driver.loaded"]


def test_guard_refuses_a_build_for_a_newer_cuda(observed, bad):
    found = bad(nccl.guard(observed({"host.nccl.cuda": "13.0"})))
    assert list(found) == ["nccl.built_for"]
    assert "NCCL built for CUDA 13.0 over toolkit 12.1" in found["nccl.built_for"]


def test_library_of_another_version_is_refused_whatever_dpkg_says(observed, bad):
    found = bad(nccl.checks(observed({"node.nccl.version": "2.18.3"})))
    assert list(found) == ["nccl.library"]
    assert "found NCCL 2.18.3, expected NCCL 2.14.3" in found["nccl.library"]


def test_absent_library_is_refused(observed, bad):
    found = bad(nccl.checks(observed({"node.nccl": {"version": None, "header": None}})))
    assert list(found) == ["nccl.library", "nccl.header"]


def test_distribution_build_is_refused(observed, bad):
    package = {"version": "2.18.3-1", "status": "ii", "hold": False}
    found = bad(nccl.checks(observed({"node/packages/libnccl2": package})))
    assert list(found) == ["nccl.package.libnccl2", "nccl.held"]
