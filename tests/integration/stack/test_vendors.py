"""The projects' own programs judge what the stack hands them: rules, configuration, alerts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.lab.tools import tool_version
from railweld.site import Site
from railweld.stack import metrics, rdma_plugin
from railweld.stack.graph import Stack, stack_for
from railweld.versions import load_set
from tests.integration.stack.plane import ControlPlane, free_port, program, running, wait_until

pytestmark = pytest.mark.deep


# -- Node Feature Discovery ------------------------------------------------------------------


@pytest.fixture(scope="module")
def discovery(
    tmp_path_factory: pytest.TempPathFactory, site: Callable[..., Site]
) -> Iterator[ControlPlane]:
    """A control plane with the stack's definitions, accounts and rules, and the real master."""
    stack = stack_for(site(stack_without=[]))
    addon = next(each for each in stack.addons() if each.name == "nfd")
    with running(tmp_path_factory.mktemp("nfd")) as plane:
        plane.start_kwok()
        plane.apply([*next(stack.addons()).manifests, *addon.manifests])
        plane.nodes(2, {})
        plane.run(
            "nfd-master",
            program("nfd", "nfd-master"),
            f"-kubeconfig={plane.account_kubeconfig('nfd-master')}",
            f"-port={free_port()}",
            environment={"KUBERNETES_NAMESPACE": "railweld-system", "NODE_NAME": "gpu1"},
        )
        yield plane


def found_labels(plane: ControlPlane, node: str) -> set[str]:
    text = plane.kubectl("get", "node", node, "-o", "jsonpath={.metadata.labels}").stdout
    labels = json.loads(text)
    return {name for name in labels if name.startswith("railweld.io/found-")}


def publish(plane: ControlPlane, node: str, devices: list[tuple[str, str]], *modules: str) -> None:
    """What the worker says of a node with these PCI devices (vendor, class) and modules."""
    instances = [{"attributes": {"vendor": vendor, "class": kind}} for vendor, kind in devices]
    feature = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": f"{node}-devices",
            "namespace": "railweld-system",
            "labels": {"nfd.node.kubernetes.io/node-name": node},
        },
        "spec": {
            "features": {
                "attributes": {},
                "flags": {"kernel.loadedmodule": {"elements": {each: {} for each in modules}}},
                "instances": {"pci.device": {"elements": instances}},
            }
        },
    }
    plane.kubectl("apply", "-f", "-", text=json.dumps(feature))


def test_the_real_master_labels_what_the_rules_look_for(discovery: ControlPlane) -> None:
    devices = [("10de", "0302")] * 8 + [("10de", "0680")] * 6 + [("15b3", "0207")] * 4
    publish(discovery, "gpu1", devices, "ib_uverbs", "rdma_ucm", "mlx5_core")
    # A NIC without the user-space modules, and an audio device of the GPUs' maker.
    publish(discovery, "gpu2", [("15b3", "0200"), ("10de", "0403")], "ib_uverbs")
    everything = {f"railweld.io/found-{each}" for each in ("gpu", "nvswitch", "hca", "rdma")}
    wait_until(lambda: found_labels(discovery, "gpu1") == everything)
    wait_until(lambda: found_labels(discovery, "gpu2") == {"railweld.io/found-hca"})
    publish(discovery, "gpu1", devices[:-4], "ib_uverbs", "rdma_ucm")
    wait_until(lambda: found_labels(discovery, "gpu1") == everything - {"railweld.io/found-hca"})


def test_the_real_worker_publishes_with_its_own_rights(discovery: ControlPlane) -> None:
    """As in its pod, whose owner becomes the owner of what it publishes."""

    def pod() -> str:
        return discovery.kubectl(
            *("-n", "railweld-system", "get", "pods"),
            *("--field-selector=spec.nodeName=gpu2", "-l", "app.kubernetes.io/name=nfd-worker"),
            *("-o", "jsonpath={.items[*].metadata.name} {.items[*].metadata.uid}"),
        ).stdout.strip()

    wait_until(lambda: pod() != "")
    name, uid = pod().split()
    variables = {
        "NODE_NAME": "gpu2",
        "POD_NAME": name,
        "POD_UID": uid,
        "KUBERNETES_NAMESPACE": "railweld-system",
    }
    discovery.run(
        "nfd-worker",
        program("nfd", "nfd-worker"),
        "-oneshot",
        f"-kubeconfig={discovery.account_kubeconfig('nfd-worker')}",
        f"-port={free_port()}",
        environment=variables,
    )

    def published() -> Any:
        text = discovery.kubectl(
            *("-n", "railweld-system", "get", "nodefeature", "gpu2", "--ignore-not-found"),
            *("-o", "json"),
        ).stdout
        return json.loads(text or "{}")

    wait_until(lambda: bool(published()))
    # This machine may have no PCI bus; it has a kernel.
    attributes = published()["spec"]["features"]["attributes"]
    assert attributes["kernel.version"]["elements"]["full"] == os.uname().release
    owners = {each["kind"]: each["uid"] for each in published()["metadata"]["ownerReferences"]}
    assert owners["Pod"] == uid


def test_the_real_collector_removes_what_is_left_of_a_node(discovery: ControlPlane) -> None:
    publish(discovery, "gpu2", [])
    discovery.run(
        "nfd-gc",
        program("nfd", "nfd-gc"),
        f"-kubeconfig={discovery.account_kubeconfig('nfd-gc')}",
        f"-port={free_port()}",
        environment={"KUBERNETES_NAMESPACE": "railweld-system"},
    )
    discovery.kubectl("delete", "node", "gpu2")

    def left() -> str:
        arguments = ("-n", "railweld-system", "get", "nodefeatures", "-o", "name")
        return discovery.kubectl(*arguments).stdout

    wait_until(lambda: "gpu2" not in left())


# -- RDMA shared device plugin ---------------------------------------------------------------


def plugin_says(config: dict[str, Any], folder: Path) -> str:
    """The last words of the real plugin about a configuration, on a machine without RDMA."""
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    done = subprocess.run(
        [program("rdma-shared-device-plugin", "k8s-rdma-shared-dp"), "--config-file", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stderr.splitlines()[-1]


def test_the_real_rdma_plugin_takes_the_configuration(stack: Stack, tmp_path: Path) -> None:
    assert stack.rdma_plugin is not None
    config = rdma_plugin.config(stack.rdma_plugin)
    # It judges the configuration before it looks for RDMA, which this machine does not have.
    assert "RDMA subsystem" in plugin_says(config, tmp_path)
    config["configList"][0]["resourceName"] = "rdma/hca"
    assert "contains invalid characters" in plugin_says(config, tmp_path)


def test_the_programs_are_those_of_the_version_set() -> None:
    """A newer version in the set is judged by a newer program."""
    images = load_set("current").versions.images
    for image, tool in (("nfd", "nfd"), ("rdma_device_plugin", "rdma-shared-device-plugin")):
        assert images[image].ref.rpartition(":")[2] == tool_version(tool)


# -- Prometheus ------------------------------------------------------------------------------

#: Alert: series that must raise it, and series that must not.
ALERTS: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]] = {
    "RailweldGpuXid": (
        [{"series": 'DCGM_FI_DEV_XID_ERRORS{gpu="3"}', "values": "0x20 79x20"}],
        [{"series": 'DCGM_FI_DEV_XID_ERRORS{gpu="3"}', "values": "0x40"}],
    ),
    "RailweldGpuRowRemapFailed": (
        [{"series": 'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="3"}', "values": "1x40"}],
        [{"series": 'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="3"}', "values": "0x40"}],
    ),
    "RailweldRdmaNotAllocatable": (
        [
            {
                "series": 'kube_node_status_allocatable{node="gpu1",resource="rdma_hca"}',
                "values": "0x40",
            }
        ],
        [
            {
                "series": 'kube_node_status_allocatable{node="gpu1",resource="rdma_hca"}',
                "values": "4x40",
            },
            {
                "series": 'kube_node_status_allocatable{node="head1",resource="nvidia_com_gpu"}',
                "values": "0x40",
            },
        ],
    ),
    "RailweldDaemonSetNotReady": (
        [
            {
                "series": "kube_daemonset_status_number_unavailable"
                '{namespace="railweld-system",daemonset="clock-guard"}',
                "values": "1x40",
            }
        ],
        [
            {
                "series": "kube_daemonset_status_number_unavailable"
                '{namespace="monitoring",daemonset="other"}',
                "values": "1x40",
            }
        ],
    ),
    "RailweldClockOff": (
        [{"series": 'railweld_clock_ok{node="gpu1"}', "values": "0x40"}],
        [{"series": 'railweld_clock_ok{node="gpu1"}', "values": "1x40"}],
    ),
    "RailweldPortFlap": (
        [
            {
                "series": 'node_infiniband_link_downed_total{device="mlx5_0",port="1"}',
                "values": "0x20 1x20",
            }
        ],
        [
            {
                "series": 'node_infiniband_link_downed_total{device="mlx5_0",port="1"}',
                "values": "7x40",
            }
        ],
    ),
    "RailweldAckTimeouts": (
        [
            {
                "series": 'node_infiniband_local_ack_timeout_err_total{device="mlx5_0"}',
                "values": "0+60x40",
            }
        ],
        [
            {
                "series": 'node_infiniband_local_ack_timeout_err_total{device="mlx5_0"}',
                "values": "60x40",
            }
        ],
    ),
    "RailweldHcaMissing": (
        [
            {"series": f'node_infiniband_info{{instance="gpu1",device="mlx5_{n}"}}',
             "values": "1x40"}
            for n in range(3)
        ],
        [
            {"series": f'node_infiniband_info{{instance="gpu1",device="mlx5_{n}"}}',
             "values": "1x40"}
            for n in range(4)
        ],
    ),
    "RailweldPauseStorm": (
        [
            {
                "series": 'node_ethtool_received_prio3_pause{device="rail1"}',
                "values": "0+1000000x40",
            }
        ],
        [{"series": 'node_ethtool_received_prio3_pause{device="rail1"}', "values": "0+6000x40"}],
    ),
}  # fmt: skip


def test_prometheus_raises_each_alert_and_not_without_cause(
    stack: Stack, tmp_path: Path, debian_program: Callable[[str, str], Path]
) -> None:
    assert stack.metrics is not None
    rules = metrics.rules(stack.metrics)
    described = {each["alert"]: each for each in rules["groups"][0]["rules"]}
    assert set(described) == set(ALERTS)
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    cases = []
    for name, (bad, good) in ALERTS.items():
        for series, fires in ((bad, True), (good, False)):
            cases.append(
                {
                    "interval": "1m",
                    "input_series": series,
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                            "eval_time": "25m",
                            "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                        }
                    ],
                }
            )
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    promtool = debian_program("prometheus", "usr/bin/promtool")
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "tests.yml"]):
        done = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
