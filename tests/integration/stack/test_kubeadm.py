"""What kubeadm itself makes of the files that change a running control plane."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.cluster import kubeadm, model
from railweld.site import load_site
from tests.integration.stack.plane import ROOT, ControlPlane, program

pytestmark = pytest.mark.deep

#: As `kubeadm init` leaves it on a cluster from before the description named any arguments.
KEPT = """\
apiServer: {certSANs: [head1]}
apiVersion: kubeadm.k8s.io/v1beta4
clusterName: lab
controlPlaneEndpoint: 10.213.0.10:6443
controllerManager:
  extraArgs: [{name: v, value: "3"}]
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
networking: {podSubnet: 10.1.0.0/16, serviceSubnet: 10.96.0.0/12}
"""


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The file that role kubernetes writes for that cluster."""
    site = load_site([str(ROOT / "inventories/lab")], {"railweld_controller_qps": 60})
    fact = model.fact(site)
    text = kubeadm.changed_controllers(KEPT, model.view(fact, fact["first"]))
    patches = tmp_path / "patches"
    patches.mkdir()
    path = patches / "controllers.yaml"
    path.write_text(text.replace(kubeadm.PATCHES, str(patches)))
    return path


def run(*argv: str, folder: Path) -> None:
    done = subprocess.run(
        [program("kubernetes", "kubeadm"), *argv],
        env={**os.environ, "KUBEADM_INIT_DRYRUN_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_controllers_get_the_arguments_and_keep_their_own(
    changed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    run("config", "validate", "--config", str(changed), folder=folder)
    phase = ("init", "phase", "control-plane", "controller-manager", "--dry-run")
    run(*phase, "--config", str(changed), folder=folder)
    manifest = yaml.safe_load((folder / "kube-controller-manager.yaml").read_text())
    found = manifest["spec"]["containers"][0]["command"]
    assert {"--kube-api-burst=120", "--kube-api-qps=60", "--v=3"} <= set(found)
    # Nothing but what the cluster keeps decides about the rest.
    assert "--cluster-cidr=10.1.0.0/16" in found


def test_the_cluster_keeps_them_for_upgrades_and_nodes_that_join(
    plane: ControlPlane, changed: Path, tmp_path: Path
) -> None:
    def kept() -> dict[str, Any]:
        text = plane.kubectl(
            *("get", "configmap", "kubeadm-config", "-n", "kube-system"),
            *("-o", "jsonpath={.data.ClusterConfiguration}"),
        ).stdout
        found: dict[str, Any] = yaml.safe_load(text)
        return found

    phase = ("init", "phase", "upload-config", "kubeadm", "--kubeconfig", str(plane.kubeconfig))
    run(*phase, "--config", str(changed), folder=tmp_path)
    found = kept()
    assert {each["name"]: each["value"] for each in found["controllerManager"]["extraArgs"]} == {
        "v": "3",
        "kube-api-burst": "120",
        "kube-api-qps": "60",
    }
    assert found["networking"]["podSubnet"] == "10.1.0.0/16"
