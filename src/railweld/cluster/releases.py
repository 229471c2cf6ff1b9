"""What depends on the Kubernetes release: kubeadm's file format, sandbox image, version skew."""

from __future__ import annotations

from typing import Final

from railweld.errors import RailweldError

#: Sandbox image that kubeadm of a minor release expects (its constants.go, PauseVersion).
PAUSE: Final = {
    26: "3.9",
    27: "3.9",
    28: "3.9",
    29: "3.9",
    30: "3.9",
    31: "3.10",
    32: "3.10",
    33: "3.10",
    34: "3.10.1",
    35: "3.10.1",
    36: "3.10.2",
    37: "3.10.2",
}
#: First minor release whose kubeadm writes and reads v1beta4.
_V1BETA4: Final = 31


def minor(version: str) -> int:
    """36 of `1.36.3` or `v1.36.3`.

    Raises:
        RailweldError: not a Kubernetes version.
    """
    parts = version.removeprefix("v").split(".")
    if len(parts) < 3 or parts[0] != "1" or not parts[1].isdecimal():
        raise RailweldError(f"Kubernetes version: found {version!r}, expected like 1.36.3")
    return int(parts[1])


def numbers(version: str) -> tuple[int, ...]:
    """`(1, 36, 3)`, to compare releases."""
    digits = version.removeprefix("v").partition("-")[0].split(".")
    return tuple(int(each) for each in digits if each.isdecimal())


def kubeadm_api(version: str) -> str:
    """API version of kubeadm's configuration files."""
    return f"kubeadm.k8s.io/{'v1beta4' if minor(version) >= _V1BETA4 else 'v1beta3'}"


def pause_tag(version: str) -> str:
    """Tag of the sandbox image; of an unknown release that of the nearest known one."""
    known = minor(version)
    return PAUSE[min(PAUSE, key=lambda each: abs(each - known))]


def upgrade_problem(running: str, wanted: str) -> str:
    """Why a control plane must not go from one version to the other; empty when it may.

    kubeadm supports a newer patch of the same minor release, and the next minor release.
    """
    here, there = numbers(running), numbers(wanted)
    if there < here:
        return (
            f"found the cluster at {running}, expected {wanted}, which is older: Kubernetes cannot "
            "go back. Fix: correct railweld_version_overrides.kubernetes; a backup of etcd is the "
            "only way to an older cluster"
        )
    if there[1] > here[1] + 1:
        return (
            f"found the cluster at {running}, expected {wanted}: a minor release must not be "
            f"skipped. Fix: upgrade to 1.{here[1] + 1} first "
            f"(railweld_version_overrides.kubernetes: 1.{here[1] + 1}.x)"
        )
    return ""


def kubelet_problem(kubelet: str, apiserver: str) -> str:
    """Why a kubelet must not run beside an API server; empty when it may."""
    ours, theirs = numbers(kubelet), numbers(apiserver)
    if ours[:2] > theirs[:2]:
        return (
            f"found kubelet {kubelet} before API server {apiserver}, expected the API server first"
        )
    if ours[1] + 3 < theirs[1]:
        return (
            f"found kubelet {kubelet} more than three minor releases behind API server {apiserver}"
        )
    return ""
