"""The real engine and provider against a real API server: up, again, cut, drift, refusals."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.site import load_site
from railweld.stack.diff import compare
from railweld.stack.graph import Stack, stack_for
from railweld.stack.objects import Key
from tests.integration.stack.conftest import LAB
from tests.integration.stack.plane import ControlPlane, Pulumi, running

pytestmark = pytest.mark.deep

PROFILE = Key("v1", "ConfigMap", "railweld-jobs", "nccl-profile")


@pytest.fixture(scope="module")
def deployed() -> Stack:
    """What the lab's description says."""
    return stack_for(load_site([str(LAB)]))


@pytest.fixture(scope="module")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that no other test module writes to."""
    with running(tmp_path_factory.mktemp("plane")) as started:
        started.start_kwok()
        yield started


@pytest.fixture(scope="module")
def engine(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Pulumi:
    """One stack for the module; every test brings it into the state that it needs."""
    return Pulumi(own_plane, tmp_path_factory.mktemp("pulumi"), LAB)


@pytest.fixture
def site_copy(tmp_path: Path, engine: Pulumi) -> Iterator[Callable[..., Path]]:
    """Let the stack be of a changed description for one test."""

    def change(**variables: object) -> Path:
        copy = tmp_path / "site"
        shutil.copytree(LAB, copy, dirs_exist_ok=True)
        values = {f"railweld_{name}": value for name, value in variables.items()}
        file = copy / "group_vars" / "all.yml"
        data = yaml.safe_load((LAB / "group_vars" / "all.yml").read_text()) | values
        file.write_text(yaml.safe_dump(data))
        engine("config", "set", "railweld:site", str(copy))
        return copy

    yield change
    engine("config", "set", "railweld:site", str(LAB))


def as_described(plane: ControlPlane, stack: Stack) -> bool:
    cluster = plane.cluster()
    try:
        return compare(cluster, stack.site, stack.manifests()) == []
    finally:
        cluster.close()


def live(plane: ControlPlane, wanted: Key) -> dict[str, Any] | None:
    cluster = plane.cluster()
    try:
        return cluster.get(wanted)
    finally:
        cluster.close()


def no_stack_trace(text: str) -> bool:
    return "Traceback" not in text and 'File "' not in text


def test_up_makes_everything_and_again_changes_nothing(
    engine: Pulumi, own_plane: ControlPlane, deployed: Stack
) -> None:
    engine.up(preview=True)
    assert as_described(own_plane, deployed)
    again = engine.up(preview=True)
    assert "unchanged" in again.stdout
    assert "created" not in again.stdout
    assert "updated" not in again.stdout
    engine("preview", "--expect-no-changes")


def test_no_credential_lies_in_the_state(engine: Pulumi, own_plane: ControlPlane) -> None:
    engine.up()
    user = yaml.safe_load(own_plane.kubeconfig.read_text())["users"][0]["user"]
    state = engine.exported()
    assert "nccl-profile" in state
    assert user["client-key-data"] not in state
    assert "PRIVATE KEY" not in state


def test_what_someone_changed_by_hand_shows_and_is_put_right(
    engine: Pulumi, own_plane: ControlPlane, deployed: Stack
) -> None:
    engine.up()
    own_plane.kubectl(
        *("-n", "railweld-system", "set", "image", "daemonset/clock-guard", "guard=other:1")
    )
    own_plane.kubectl(
        *("-n", "railweld-jobs", "patch", "configmap", "nccl-profile", "--type=merge"),
        *("-p", '{"data":{"NCCL_IB_TC":"0"}}'),
    )
    own_plane.kubectl("delete", "validatingadmissionpolicybinding", "railweld-gpu-pods")
    own_plane.kubectl("label", "namespace", "railweld-jobs", "railweld.io/bridge=false",
                      "--overwrite")  # fmt: skip
    assert not as_described(own_plane, deployed)
    shown = engine.changes()
    assert shown.get("update", 0) == 3
    assert shown.get("create", 0) == 1
    engine.up()
    assert as_described(own_plane, deployed)
    assert engine.changes() == {}


def test_what_someone_added_to_the_jobs_environment_is_taken_out(
    engine: Pulumi, own_plane: ControlPlane, deployed: Stack
) -> None:
    """Jobs take every key of the profile into their environment."""
    engine.up()
    own_plane.kubectl(
        *("-n", "railweld-jobs", "patch", "configmap", "nccl-profile", "--type=merge"),
        *("-p", '{"data":{"NCCL_SHM_DISABLE":"1"}}'),
    )
    assert not as_described(own_plane, deployed)
    words = 'data.NCCL_SHM_DISABLE: found "1", expected nothing'
    assert f"{words}: to be taken out" in engine("preview").stdout
    assert not as_described(own_plane, deployed)
    assert f"{words}: taken out" in engine.up().stdout
    assert as_described(own_plane, deployed)
    assert engine.changes() == {}


def test_diff_tells_what_the_cluster_has_against_the_description(
    engine: Pulumi, own_plane: ControlPlane, site_copy: Callable[..., Path]
) -> None:
    def diff(inventory: Path = LAB) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(Path(sys.executable).parent / "railweld", "stack", "diff", "-i", inventory),
                *("--kubeconfig", own_plane.kubeconfig),
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    engine.up()
    same = diff()
    assert same.returncode == 0, same.stdout + same.stderr
    assert "every object is as described" in same.stdout
    own_plane.kubectl("-n", "railweld-system", "delete", "service", "dcgm-exporter")
    own_plane.kubectl(
        *("-n", "railweld-jobs", "patch", "configmap", "nccl-profile", "--type=merge"),
        *("-p", '{"data":{"NCCL_IB_TC":"0"}}'),
    )
    own_plane.kubectl(
        *("-n", "railweld-jobs", "label", "resourcequota", "railweld-jobs"),
        "app.kubernetes.io/managed-by-",
    )
    changed = diff()
    assert changed.returncode == 2
    assert "Service railweld-system/dcgm-exporter: missing" in changed.stdout
    assert 'data.NCCL_IB_TC: found "0", expected "104"' in changed.stdout
    assert "ResourceQuota railweld-jobs/railweld-jobs: not this stack's; to hand it over: kubectl" \
        in changed.stdout  # fmt: skip
    own_plane.kubectl(
        *("-n", "railweld-jobs", "label", "resourcequota", "railweld-jobs"),
        "app.kubernetes.io/managed-by=railweld",
    )
    engine.up()
    less = diff(site_copy(stack_without=["nfd", "metrics"]))
    assert less.returncode == 2
    assert "DaemonSet railweld-system/dcgm-exporter: no longer described" in less.stdout
    assert diff().returncode == 0


def test_gpus_are_handed_over_to_the_operators_chart(
    engine: Pulumi, own_plane: ControlPlane, site_copy: Callable[..., Path], tmp_path: Path
) -> None:
    """A chart of that name from a path; it shows which values it was given."""
    chart = tmp_path / "gpu-operator-1.0.0.tgz"
    shown = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "shown"},
        "data": {"values": "{{ .Values | toJson | quote }}"},
    }
    members = {
        "gpu-operator/Chart.yaml": "apiVersion: v2\nname: gpu-operator\nversion: 1.0.0\n",
        "gpu-operator/templates/shown.yaml": yaml.safe_dump(shown).replace("'", ""),
    }
    with tarfile.open(chart, "w:gz") as archive:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    site_copy(gpu_stack="operator", charts={"gpu_operator": str(chart)})
    engine.up()
    found = live(own_plane, Key("v1", "ConfigMap", "railweld-system", "shown"))
    assert found is not None
    values = json.loads(found["data"]["values"])
    # Driver and toolkit are the roles', and there may be one exporter only.
    assert values["driver"] == {"enabled": False}
    assert values["toolkit"] == {"enabled": False}
    assert values["dcgmExporter"] == {"enabled": False}
    assert values["devicePlugin"] == {"enabled": True}
    plugin = Key("apps/v1", "DaemonSet", "railweld-system", "nvidia-device-plugin")
    assert live(own_plane, plugin) is None
    assert engine.changes() == {}


def definition(group: str, kind: str, plural: str) -> str:
    """A kind that another project's controller defines, as text for kubectl."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": schema}}},
    }
    return json.dumps(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "names": {"kind": kind, "plural": plural},
                "scope": "Namespaced",
                "versions": [version],
            },
        }
    )


def test_objects_for_multus_and_for_the_prometheus_operator_are_made_and_removed(
    engine: Pulumi, own_plane: ControlPlane, site_copy: Callable[..., Path]
) -> None:
    engine.up()
    copy = site_copy(network_mode="macvlan", prometheus="operator")
    refused = engine.up(check=False)
    assert refused.returncode != 0
    assert "NetworkAttachmentDefinition (k8s.cni.cncf.io/v1)" in refused.stdout
    assert "railweld_network_mode" in refused.stdout
    assert no_stack_trace(refused.stdout)
    for group, kind, plural in (
        ("k8s.cni.cncf.io", "NetworkAttachmentDefinition", "network-attachment-definitions"),
        ("monitoring.coreos.com", "PrometheusRule", "prometheusrules"),
        ("monitoring.coreos.com", "PodMonitor", "podmonitors"),
    ):
        own_plane.kubectl("apply", "--filename", "-", text=definition(group, kind, plural))
        wanted = f"crd/{plural}.{group}"
        own_plane.kubectl("wait", wanted, "--for=condition=Established", "--timeout=30s")
    engine.up()
    changed = stack_for(load_site([str(copy)]))
    kinds = {each["kind"] for each in changed.manifests()}
    assert {"NetworkAttachmentDefinition", "PrometheusRule", "PodMonitor"} <= kinds
    assert as_described(own_plane, changed)
    assert engine.changes() == {}
    engine("config", "set", "railweld:site", str(LAB))
    engine.up()
    rails = own_plane.kubectl("-n", "railweld-jobs", "get", "network-attachment-definitions")
    assert rails.stdout == ""


def test_what_others_added_is_left_alone(
    engine: Pulumi, own_plane: ControlPlane, deployed: Stack
) -> None:
    engine.up()
    own_plane.kubectl("label", "namespace", "railweld-jobs", "team=vision")
    own_plane.kubectl("-n", "railweld-jobs", "create", "configmap", "mine", "--from-literal=a=b")
    engine.up()
    assert as_described(own_plane, deployed)
    namespace = live(own_plane, Key("v1", "Namespace", "", "railweld-jobs"))
    assert namespace is not None
    assert namespace["metadata"]["labels"]["team"] == "vision"
    assert live(own_plane, Key("v1", "ConfigMap", "railweld-jobs", "mine")) is not None


def test_a_changed_description_changes_only_what_follows_from_it(
    engine: Pulumi, site_copy: Callable[..., Path], own_plane: ControlPlane
) -> None:
    engine.up()
    site_copy(lossless_dscp=30)
    assert engine.changes() == {"update": 2}
    engine.up()
    profile = live(own_plane, PROFILE)
    assert profile is not None
    assert profile["data"]["NCCL_IB_TC"] == "120"


def test_an_addon_left_out_is_removed(
    engine: Pulumi, site_copy: Callable[..., Path], own_plane: ControlPlane
) -> None:
    engine.up()
    site_copy(stack_without=["nfd", "metrics"])
    engine.up()
    exporter = Key("apps/v1", "DaemonSet", "railweld-system", "dcgm-exporter")
    assert live(own_plane, exporter) is None


def test_up_does_not_wait_for_a_node_that_is_away(
    engine: Pulumi, own_plane: ControlPlane, deployed: Stack
) -> None:
    engine("destroy", "--yes")
    own_plane.nodes(1, {"nvidia.com/gpu": "8", "rdma/hca": "4"}, alive=False)
    try:
        engine.up()
        assert as_described(own_plane, deployed)
    finally:
        own_plane.kubectl("delete", "node", "gpu1")


def test_destroy_leaves_nothing_of_the_stack_and_the_labels_of_nodes(
    engine: Pulumi, own_plane: ControlPlane, deployed: Stack
) -> None:
    own_plane.nodes(1, {"nvidia.com/gpu": "8"})
    own_plane.kubectl("label", "node", "gpu1", "railweld.io/site=lab", "rack=7")
    try:
        engine.up()
        engine("destroy", "--yes")
        found = own_plane.kubectl("get", "node", "gpu1", "-o", "jsonpath={.metadata.labels}")
        labels = json.loads(found.stdout)
        assert labels["rdma.nvidia.com/available"] == "true"
        assert labels["railweld.io/site"] == "lab"
        assert labels["rack"] == "7"
    finally:
        own_plane.kubectl("delete", "node", "gpu1")
    cluster = own_plane.cluster()
    missing = {each.key for each in compare(cluster, "lab", deployed.manifests())}
    cluster.close()
    assert len(missing) == len(deployed.manifests())


@pytest.mark.parametrize("objects", [1, 12, 35, 50])
def test_a_cut_run_is_continued(
    engine: Pulumi, own_plane: ControlPlane, deployed: Stack, objects: int
) -> None:
    engine("destroy", "--yes")
    cluster = own_plane.cluster()
    wanted = [Key(m["apiVersion"], m["kind"], m["metadata"].get("namespace", ""),
                  m["metadata"]["name"]) for m in deployed.manifests()]  # fmt: skip
    process = engine.start_up()
    try:
        while sum(cluster.get(each) is not None for each in wanted) < objects:
            if process.poll() is not None:
                break
    finally:
        engine.cut(process)
        cluster.close()
    refused = engine.up(check=False)
    if refused.returncode != 0:
        # The state is locked by the run that is gone, and the engine says what to do.
        assert "pulumi cancel" in refused.stderr + refused.stdout
        engine("cancel", "--yes", "lab")
        engine.up()
    assert as_described(own_plane, deployed)
    assert engine.changes() == {}


def test_an_api_server_that_stops_in_the_middle_is_survived(
    engine: Pulumi, own_plane: ControlPlane, deployed: Stack
) -> None:
    engine("destroy", "--yes")
    process = engine.start_up()
    deadline = time.monotonic() + 120
    while live(own_plane, PROFILE) is None and time.monotonic() < deadline:
        pass
    own_plane.stop("apiserver")
    try:
        assert process.wait(timeout=300) != 0
    finally:
        own_plane.start_api_server()
        own_plane.wait()
    engine.up()
    assert as_described(own_plane, deployed)
    assert engine.changes() == {}


def test_objects_of_others_are_refused_with_the_command_that_hands_them_over(
    engine: Pulumi, own_plane: ControlPlane, deployed: Stack
) -> None:
    engine("destroy", "--yes")
    own_plane.kubectl("create", "namespace", "railweld-jobs")
    own_plane.kubectl(
        *("-n", "railweld-jobs", "create", "configmap", "nccl-profile"),
        "--from-literal=NCCL_IB_TC=7",
    )
    refused = engine.up(check=False, preview=True)
    text = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert no_stack_trace(text)
    assert "found 2 objects that exist already" in text
    commands = [
        line.strip() for line in text.splitlines() if line.strip().startswith("kubectl label")
    ]
    assert len(set(commands)) == 2
    # Nothing was touched.
    assert live(own_plane, Key("v1", "Namespace", "", "railweld-system")) is None
    for command in sorted(set(commands)):
        own_plane.kubectl(*command.split()[1:])
    engine.up()
    assert as_described(own_plane, deployed)


def fails_in_words(engine: Pulumi, *words: str, within: float = 120) -> None:
    """One clear error, after a bounded wait, and no stack trace."""
    started = time.monotonic()
    done = engine.up(check=False, preview=True)
    assert time.monotonic() - started < within
    text = done.stdout + done.stderr
    assert done.returncode != 0
    assert no_stack_trace(text), text
    assert "unhandled" not in text
    for word in words:
        assert word in text, text


def test_a_cluster_of_another_name_is_refused(engine: Pulumi, own_plane: ControlPlane) -> None:
    own_plane.name_cluster("berlin")
    try:
        fails_in_words(engine, "found the cluster of site berlin, expected lab")
    finally:
        own_plane.name_cluster("lab")


def test_another_cluster_is_not_destroyed(
    engine: Pulumi, own_plane: ControlPlane, deployed: Stack
) -> None:
    engine.up()
    own_plane.name_cluster("berlin")
    try:
        refused = engine("destroy", "--yes", check=False)
        assert refused.returncode != 0
        text = refused.stdout + refused.stderr
        assert "found the cluster of site berlin, expected lab" in text
        assert no_stack_trace(text), text
        assert as_described(own_plane, deployed)
    finally:
        own_plane.name_cluster("lab")
    assert engine.changes() == {}


def test_a_cluster_without_a_name_is_refused_until_someone_says_so(
    engine: Pulumi, own_plane: ControlPlane
) -> None:
    engine("destroy", "--yes")
    own_plane.kubectl("-n", "kube-system", "delete", "configmap", "kubeadm-config")
    try:
        fails_in_words(engine, "expected proof", "kubectl label namespace railweld-system")
        own_plane.kubectl("create", "namespace", "railweld-system")
        own_plane.kubectl("label", "namespace", "railweld-system", "railweld.io/site=lab",
                          "app.kubernetes.io/managed-by=railweld")  # fmt: skip
        engine.up()
    finally:
        own_plane.name_cluster("lab")


def test_a_wrong_context_is_one_error(engine: Pulumi) -> None:
    engine("config", "set", "railweld:context", "kind-test")
    try:
        fails_in_words(engine, "found the contexts railweld-lab, expected 'kind-test'")
    finally:
        engine("config", "rm", "railweld:context")


def test_an_unreachable_cluster_is_one_error(
    engine: Pulumi, own_plane: ControlPlane, tmp_path: Path
) -> None:
    config = own_plane.kubeconfig.read_text().replace(f":{own_plane.port}", ":1")
    (tmp_path / "kubeconfig").write_text(config)
    engine("config", "set", "railweld:kubeconfig", str(tmp_path / "kubeconfig"))
    try:
        fails_in_words(engine, "no answer for 5 s", "Connection refused")
    finally:
        engine("config", "set", "railweld:kubeconfig", str(own_plane.kubeconfig))


def test_a_server_that_never_answers_is_one_error(
    engine: Pulumi, own_plane: ControlPlane, tmp_path: Path
) -> None:
    engine.up()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        config = own_plane.kubeconfig.read_text().replace(
            f":{own_plane.port}", f":{silent.getsockname()[1]}"
        )
        (tmp_path / "kubeconfig").write_text(config)
        engine("config", "set", "railweld:kubeconfig", str(tmp_path / "kubeconfig"))
        try:
            fails_in_words(engine, "no answer for 5 s", "timed out")
        finally:
            engine("config", "set", "railweld:kubeconfig", str(own_plane.kubeconfig))
    assert engine.changes() == {}


def test_a_missing_kubeconfig_names_the_playbook(engine: Pulumi, own_plane: ControlPlane) -> None:
    engine("config", "set", "railweld:kubeconfig", "/nowhere/kubeconfig")
    try:
        fails_in_words(engine, "deploy-cluster.yml")
    finally:
        engine("config", "set", "railweld:kubeconfig", str(own_plane.kubeconfig))


def test_a_description_of_another_site_is_refused(
    engine: Pulumi, site_copy: Callable[..., Path]
) -> None:
    site_copy(site="berlin")
    fails_in_words(engine, "found the description of berlin for the stack lab")


def test_a_bad_description_is_one_error(engine: Pulumi, site_copy: Callable[..., Path]) -> None:
    site_copy(lossless_priority=9)
    fails_in_words(engine, "lossless_priority")


def test_no_site_names_the_command(engine: Pulumi) -> None:
    engine("config", "rm", "railweld:site")
    try:
        fails_in_words(engine, "pulumi config set railweld:site")
    finally:
        engine("config", "set", "railweld:site", str(LAB))


def test_the_policy_pack_lets_the_stack_through_and_stops_bad_ones(
    engine: Pulumi, site_copy: Callable[..., Path]
) -> None:
    done = engine("preview", "--policy-pack", "policy")
    assert "railweld@v0.1.0" in done.stdout
    site_copy(nccl_environment={"NCCL_SHM_DISABLE": "1"})
    refused = engine("preview", "--policy-pack", "policy", check=False)
    assert refused.returncode != 0
    assert "nccl-as-advised" in refused.stdout
    assert "larger /dev/shm" in refused.stdout
