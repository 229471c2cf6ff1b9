"""The cache disk: nothing is hidden or shared, and the folders are where jobs look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from railweld.record import Check
from railweld.verify.context import Context
from railweld.verify.roles import nvme_cache

JOBS = "/local/scratch/.railweld/jobs"
FOLDERS = {
    "/local/cache": {"mode": "1777"},
    "/local/scratch": {"mode": "1777"},
    "/local/scratch/.railweld": {"mode": "700"},
    JOBS: {"mode": "1777"},
}
UUID = nvme_cache.filesystem_uuid("lab", "gpu1")


def context(device: str | None = "/dev/nvme0n1", **changes: Any) -> Context:
    tree: dict[str, Any] = {
        "host": {
            "name": "gpu1",
            "cache": {
                "device": device,
                "cache_path": "/local/cache",
                "scratch_path": "/local/scratch",
                "job_scratch_path": JOBS,
            },
        },
        "node": {
            "disks": {
                "blockdevices": [
                    {
                        "path": "/dev/sda",
                        "uuid": None,
                        "children": [{"path": "/dev/sda1", "uuid": "root"}],
                    },
                    {"path": "/dev/nvme0n1", "uuid": UUID},
                ],
                "mounts": {
                    "/": {"source": "/dev/sda1"},
                    "/local": {"source": "/dev/nvme0n1"},
                },
            },
            "folders": dict(FOLDERS),
            "units": {"railweld-scratch.timer": {"active": "active", "enabled": "enabled"}},
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        here: Any = tree
        for key in parents:
            here = here[key]
        here[last] = value
    return Context(site={"name": "lab"}, **tree)


def bad(checks: Iterable[Check]) -> dict[str, str]:
    return {check.id: check.sentence() for check in checks if check.is_bad}


def test_converged_node_passes_with_and_without_disk() -> None:
    for ctx in (context(), context(None)):
        assert bad(nvme_cache.guard(ctx)) == {}
        assert bad(nvme_cache.checks(ctx)) == {}


def test_mount_point_of_another_file_system_is_refused() -> None:
    mounts = {"/local": {"source": "/dev/sda1"}}
    found = bad(nvme_cache.guard(context(node__disks__mounts=mounts)))
    assert "/dev/sda1 mounted at /local" in found["nvme_cache.mount_point_free"]


@pytest.mark.parametrize(
    ("cache", "scratch"), [("/cache", "/scratch"), ("/local", "/local/scratch"), ("/l/a", "/l/a")]
)
def test_paths_without_a_folder_above_both_are_refused(cache: str, scratch: str) -> None:
    ctx = context(host__cache__cache_path=cache, host__cache__scratch_path=scratch)
    assert "nvme_cache.common_parent" in bad(nvme_cache.guard(ctx))


def test_disk_that_is_not_mounted_fails() -> None:
    found = bad(nvme_cache.checks(context(node__disks__mounts={})))
    assert "not mounted" in found["nvme_cache.mounted"]


def test_other_file_system_at_the_mount_point_fails() -> None:
    ctx = context(node__disks__blockdevices=[{"path": "/dev/nvme0n1", "uuid": "another"}])
    assert "another" in bad(nvme_cache.checks(ctx))["nvme_cache.mounted"]


def test_missing_folder_and_wrong_mode_fail() -> None:
    found = bad(nvme_cache.checks(context(node__folders={"/local/cache": {"mode": "755"}})))
    folders = {"cache_path", "scratch_path", "job_scratch_closed", "job_scratch_path"}
    assert set(found) == {f"nvme_cache.{each}" for each in folders}
    assert "mode 755" in found["nvme_cache.cache_path"]


@pytest.mark.parametrize(
    ("path", "state", "check"),
    [
        # Users of the node would see the folders of jobs, or make one before its job comes.
        ("/local/scratch/.railweld", {"mode": "1777"}, "job_scratch_closed"),
        # A mode that another folder has to have is wrong here.
        ("/local/cache", {"mode": "700"}, "cache_path"),
        (JOBS, None, "job_scratch_path"),
    ],
)
def test_role_makes_anew_what_its_check_finds(
    path: str, state: dict[str, str] | None, check: str
) -> None:
    ctx = context(node__folders=FOLDERS | {path: state})
    assert set(bad(nvme_cache.checks(ctx))) == {f"nvme_cache.{check}"}
    assert nvme_cache.folders_differ(ctx.node, ctx.host["cache"])
    whole = context()
    assert not nvme_cache.folders_differ(whole.node, whole.host["cache"])


@pytest.mark.parametrize("state", [None, {"active": "inactive", "enabled": "enabled"}])
def test_nothing_that_removes_what_jobs_leave_fails(state: dict[str, str] | None) -> None:
    found = bad(nvme_cache.checks(context(node__units={"railweld-scratch.timer": state})))
    assert set(found) == {"nvme_cache.scratch_timer"}


def test_file_systems_uuid_is_the_nodes_own_and_stays() -> None:
    assert nvme_cache.filesystem_uuid("lab", "gpu1") == UUID
    assert nvme_cache.filesystem_uuid("lab", "gpu2") != UUID
    assert nvme_cache.filesystem_uuid("other", "gpu1") != UUID


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/local", "local.mount"),
        ("/mnt/fast-disk", "mnt-fast\\x2ddisk.mount"),
        ("/data/.cache", "data-.cache.mount"),
        ("/.data", "\\x2edata.mount"),
    ],
)
def test_mount_unit_has_systemds_name(path: str, unit: str) -> None:
    assert nvme_cache.mount_unit(path) == unit
