"""Faults of Kubernetes that happen inside a node: API server, kubelet, images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from railweld.lab.node.making import FaultError, Settings, run, wait_for

MANIFEST = Path("/etc/kubernetes/manifests/kube-apiserver.yaml")
#: A folder that the kubelet does not read.
KEPT_MANIFEST = Path("/etc/kubernetes/kube-apiserver.yaml")
#: In front of the names of images that the kubelet shall not find.
HIDDEN = "railweld-lab.invalid/"
_IMAGES = ("ctr", "--namespace", "k8s.io", "images")


def api_stopped(_settings: Settings) -> None:
    """The kubelet is told to run no API server, as by somebody who moved its manifest away."""
    if MANIFEST.exists():
        MANIFEST.rename(KEPT_MANIFEST)
    if not KEPT_MANIFEST.exists():
        raise FaultError(f"found no {MANIFEST}; this is no control-plane node")
    wait_for(lambda: not _containers("kube-apiserver"), "end of the API server")


def api_back() -> None:
    """Give the kubelet the manifest again."""
    if KEPT_MANIFEST.exists():
        KEPT_MANIFEST.rename(MANIFEST)


def kubelet_stopped(_settings: Settings) -> None:
    """The kubelet does not run: pods go on, and nobody hears of the node."""
    run("systemctl", "stop", "kubelet.service")


def kubelet_back() -> None:
    """Start it again."""
    run("systemctl", "start", "kubelet.service")


def image_missing(settings: Settings) -> None:
    """The image of a container is gone from the node, and the container has to start anew."""
    name = settings.get("container", "")
    running = _containers(name)
    if not running:
        known = sorted({each["metadata"]["name"] for each in _containers()})
        raise FaultError(f"found no container {name!r}, expected one of {', '.join(known)}")
    for container in running:
        for reference in _references(container["imageRef"]):
            run(*_IMAGES, "tag", "--force", reference, HIDDEN + reference)
            run(*_IMAGES, "rm", reference)
        # The pod's sandbox goes with it: the kubelet makes both anew, for which it needs the image.
        for verb in ("stopp", "rmp"):
            run("crictl", verb, container["podSandboxId"])


def image_back() -> None:
    """Give the images their names again; the kubelet looks within a minute or so."""
    for hidden in run(*_IMAGES, "ls", "--quiet").split():
        if hidden.startswith(HIDDEN):
            run(*_IMAGES, "tag", "--force", hidden, hidden.removeprefix(HIDDEN))
            run(*_IMAGES, "rm", hidden)


def _containers(name: str = "") -> list[dict[str, Any]]:
    chosen = ("--name", f"^{name}$") if name else ()
    found: list[dict[str, Any]] = json.loads(run("crictl", "ps", "--output", "json", *chosen))[
        "containers"
    ]
    return found


def _references(image: str) -> list[str]:
    """Every name under which the runtime knows an image."""
    listed = json.loads(run("crictl", "inspecti", "--output", "json", image))["status"]
    found = [*(listed.get("repoTags") or ()), *(listed.get("repoDigests") or ())]
    return [each for each in found if not each.startswith(HIDDEN)]
