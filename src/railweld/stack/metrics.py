"""GPU metrics and the alerts of the whole site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

from railweld import names
from railweld.stack.objects import Manifest, daemon_set, host_path, make, mount, small

NAME: Final = "dcgm-exporter"
PORT: Final = 9400
ALERTS: Final = "railweld-alerts"

#: Field, type, help. Those that answer "is the GPU fed" and "is it broken".
COUNTERS: Final = (
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (C)."),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (C)."),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (W)."),
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock (MHz)."),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilisation (%)."),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (MiB)."),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (MiB)."),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Last Xid; not a count."),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit ECC errors since the driver loaded."),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for hard errors."),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for soft errors."),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "1 if a row could not be remapped."),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries."),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "NVLink bandwidth."),
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "counter", "NVLink flow-control errors."),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "NVLink retries."),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Share of time that the engine was active."),
    ("DCGM_FI_PROF_SM_ACTIVE", "gauge", "Share of cycles with a warp on an SM."),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Share of cycles of the tensor pipe."),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Share of cycles with memory transfers."),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "PCIe bytes per second out of the GPU."),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "PCIe bytes per second into the GPU."),
)


@dataclass(frozen=True, kw_only=True)
class MetricsArgs:
    """What exporter and alerts follow from.

    Attributes:
        namespace: where it runs.
        image: the exporter's full reference.
        rdma_resource: extended resource of the site.
        hcas: HCAs of the node that has fewest; an alert is due below it.
        lossless_priority: priority whose pause frames are watched; None on InfiniBand.
        max_offset_ms: of clocks.
        runtime: whether the nodes have NVIDIA's runtime, through which the exporter sees GPUs.
        operator: also make objects for the Prometheus operator.
        pull_secrets: Secrets with registry logins.
    """

    namespace: str = names.NAMESPACE_SYSTEM
    image: str
    rdma_resource: str
    hcas: int
    lossless_priority: int | None
    max_offset_ms: float
    operator: bool = False
    runtime: bool = True
    pull_secrets: tuple[str, ...] = ()


def csv() -> str:
    """The exporter's list of fields."""
    return "".join(f"{field}, {kind}, {words}\n" for field, kind, words in COUNTERS)


def rules(args: MetricsArgs) -> dict[str, Any]:
    """Alerts as a Prometheus rule file."""
    # kube-state-metrics turns what Prometheus cannot have in a label value's place into _.
    resource = args.rdma_resource.replace("/", "_").replace(".", "_").replace("-", "_")
    alerts = [
        _alert(
            "RailweldGpuXid",
            "changes(DCGM_FI_DEV_XID_ERRORS[10m]) > 0 and DCGM_FI_DEV_XID_ERRORS > 0",
            "0m",
            "GPU {{ $labels.gpu }} of {{ $labels.Hostname }} reported Xid {{ $value }}.",
            "see NVIDIA's Xid catalogue; `railweld doctor` names the frequent ones",
        ),
        _alert(
            "RailweldGpuRowRemapFailed",
            "DCGM_FI_DEV_ROW_REMAP_FAILURE > 0",
            "0m",
            "GPU {{ $labels.gpu }} of {{ $labels.Hostname }} cannot remap a bad memory row.",
            "drain the node and have the GPU replaced",
            severity="critical",
        ),
        _alert(
            "RailweldRdmaNotAllocatable",
            f'kube_node_status_allocatable{{resource="{resource}"}} == 0',
            "5m",
            f"Node {{{{ $labels.node }}}} offers no {args.rdma_resource}: no job can start there.",
            f"kubectl -n {args.namespace} logs ds/rdma-shared-device-plugin",
        ),
        _alert(
            "RailweldDaemonSetNotReady",
            f'kube_daemonset_status_number_unavailable{{namespace="{args.namespace}"}} > 0',
            "15m",
            "{{ $value }} pods of {{ $labels.daemonset }} are not ready.",
            f"kubectl -n {args.namespace} get pods -o wide",
        ),
        _alert(
            "RailweldClockOff",
            "railweld_clock_ok == 0",
            "5m",
            "The clock of {{ $labels.node }} is not synchronised, or farther off than "
            f"{args.max_offset_ms:g} ms.",
            "chronyc tracking; chronyc sources -v",
        ),
        _alert(
            "RailweldPortFlap",
            "increase(node_infiniband_link_downed_total[15m]) > 0",
            "0m",
            "Port {{ $labels.device }}/{{ $labels.port }} of {{ $labels.instance }} went down.",
            "railweld verify --stage links; look at the cable and the switch port",
        ),
        _alert(
            "RailweldAckTimeouts",
            'rate({__name__=~"node_infiniband_.*local_ack_timeout_err.*"}[5m]) > 0',
            "10m",
            "{{ $labels.device }} of {{ $labels.instance }} retransmits: packets are lost.",
            "railweld fabric verify",
        ),
    ]
    if args.hcas:
        alerts.append(
            _alert(
                "RailweldHcaMissing",
                f"count by (instance) (node_infiniband_info) < {args.hcas}",
                "5m",
                "{{ $labels.instance }} shows {{ $value }} HCAs, fewer than described.",
                "lspci -d 15b3: ; dmesg | grep mlx5; the plugin's number does not fall",
            )
        )
    if args.lossless_priority is not None:
        name = f"node_ethtool_(rx|received)_prio{args.lossless_priority}_pause"
        alerts.append(
            _alert(
                "RailweldPauseStorm",
                f'rate({{__name__=~"{name}"}}[5m]) > 10000',
                "5m",
                "{{ $labels.device }} of {{ $labels.instance }} is paused all the time.",
                "railweld fabric verify; the switch's watchdog counters",
            )
        )
    return {"groups": [{"name": "railweld", "rules": alerts}]}


def _alert(
    name: str, expression: str, wait: str, text: str, fix: str, *, severity: str = "warning"
) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": text, "fix": fix},
    }


def render(args: MetricsArgs) -> list[Manifest]:
    """Exporter with its list of fields, Service, alerts."""
    labels = {"app.kubernetes.io/name": NAME}
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "exporter",
                "image": args.image,
                "imagePullPolicy": "IfNotPresent",
                "env": [
                    {"name": "DCGM_EXPORTER_LISTEN", "value": f":{PORT}"},
                    {"name": "DCGM_EXPORTER_KUBERNETES", "value": "true"},
                    {"name": "DCGM_EXPORTER_COLLECTORS", "value": "/etc/railweld/counters.csv"},
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                ],
                "ports": [{"name": "metrics", "containerPort": PORT}],
                # Profiling counters need it; there may be no second profiler at the same time.
                "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}, "runAsUser": 0},
                "resources": small("128Mi", "1Gi"),
                "volumeMounts": [
                    mount("pod-resources", "/var/lib/kubelet/pod-resources", read_only=True),
                    mount("counters", "/etc/railweld", read_only=True),
                ],
            }
        ],
        "volumes": [
            host_path("pod-resources", "/var/lib/kubelet/pod-resources"),
            {"name": "counters", "configMap": {"name": f"{NAME}-counters"}},
        ],
    }
    if args.runtime:
        pod["runtimeClassName"] = names.RUNTIME_CLASS_GPU
    found = rules(args)
    manifests = [
        make("v1", "ConfigMap", f"{NAME}-counters", args.namespace, data={"counters.csv": csv()}),
        daemon_set(
            NAME,
            args.namespace,
            pod,
            node_selector={names.LABEL_GPU_PRESENT: "true"},
            config=csv(),
            pull_secrets=args.pull_secrets,
        ),
        make(
            "v1",
            "Service",
            NAME,
            args.namespace,
            labels=labels,
            annotations={"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT)},
            spec={
                "clusterIP": "None",
                "selector": labels,
                "ports": [{"name": "metrics", "port": PORT, "targetPort": "metrics"}],
            },
        ),
        # Any Prometheus can mount this as a rule file, with or without the operator.
        make(
            "v1",
            "ConfigMap",
            ALERTS,
            args.namespace,
            data={"railweld.rules.yml": yaml.safe_dump(found, sort_keys=False, width=1000)},
        ),
    ]
    if args.operator:
        manifests += [
            make("monitoring.coreos.com/v1", "PrometheusRule", ALERTS, args.namespace, spec=found),
            make(
                "monitoring.coreos.com/v1",
                "PodMonitor",
                "railweld",
                args.namespace,
                spec={
                    "selector": {
                        "matchExpressions": [
                            {
                                "key": "app.kubernetes.io/name",
                                "operator": "In",
                                "values": [NAME, "clock-guard"],
                            }
                        ]
                    },
                    "podMetricsEndpoints": [{"port": "metrics"}],
                },
            ),
        ]
    return manifests
