"""The clock guard: what chronyd of every node says, as label, condition and metric.

It never restarts because of a clock, and it never says `ok` about a daemon that is dead or has no
source: chrony reports an offset of zero then, which a threshold alone would take for perfect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from railweld import names
from railweld.stack.admission import resource_rule, validating
from railweld.stack.objects import Manifest, daemon_set, make

NAME: Final = "clock-guard"
PORT: Final = 9947
#: Not root, and no user of the host.
_UID: Final = 65532


@dataclass(frozen=True, kw_only=True)
class ClockGuardArgs:
    """What the guard has to know.

    Attributes:
        namespace: where it runs.
        image: full reference.
        max_offset_ms: more than this is `off`.
        local_clock_nodes: nodes that may serve their own clock, for want of any source.
        restrict: whether the cluster can hold each guard to its own node (Kubernetes >= 1.30).
        pull_secrets: Secrets with registry logins.
    """

    namespace: str = names.NAMESPACE_SYSTEM
    image: str
    max_offset_ms: float
    local_clock_nodes: tuple[str, ...] = ()
    restrict: bool = True
    pull_secrets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_offset_ms <= 0:
            raise ValueError(f"max_offset_ms: found {self.max_offset_ms}, expected more than 0")


def render(args: ClockGuardArgs) -> list[Manifest]:
    """Account, role, DaemonSet, and the policy that holds each guard to its own node."""
    arguments = [
        "--node=$(NODE_NAME)",
        f"--max-offset={args.max_offset_ms / 1000:g}s",
        f"--listen=:{PORT}",
    ]
    if args.local_clock_nodes:
        arguments.append("--local-clock-nodes=" + ",".join(args.local_clock_nodes))
    pod = {
        "serviceAccountName": NAME,
        # chronyd answers on the host's loopback only.
        "hostNetwork": True,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _UID,
            "runAsGroup": _UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "guard",
                "image": args.image,
                "imagePullPolicy": "IfNotPresent",
                "args": arguments,
                "env": [
                    {
                        "name": "NODE_NAME",
                        "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
                    }
                ],
                "ports": [{"name": "metrics", "containerPort": PORT, "hostPort": PORT}],
                # A bad clock makes the pod unready; only a dead guard restarts it.
                "readinessProbe": {
                    "httpGet": {"path": "/readyz", "port": PORT},
                    "periodSeconds": 10,
                },
                "livenessProbe": {
                    "httpGet": {"path": "/livez", "port": PORT},
                    "periodSeconds": 30,
                    "failureThreshold": 4,
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "resources": {
                    "requests": {"cpu": "5m", "memory": "16Mi"},
                    "limits": {"memory": "64Mi"},
                },
            }
        ],
    }
    role = f"railweld:{NAME}"
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": args.namespace}
    manifests = [
        make("v1", "ServiceAccount", NAME, args.namespace),
        make(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            role,
            rules=[
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]},
                {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
            ],
        ),
        make(
            "rbac.authorization.k8s.io/v1",
            "ClusterRoleBinding",
            role,
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            subjects=[subject],
        ),
        daemon_set(NAME, args.namespace, pod, pull_secrets=args.pull_secrets),
    ]
    if args.restrict:
        manifests += _own_node_only(args)
    return manifests


def _own_node_only(args: ClockGuardArgs) -> list[Manifest]:
    """A guard on a broken-into node must not be able to move the others' labels or taints."""
    name = f"railweld-{NAME}-own-node"
    user = f"system:serviceaccount:{args.namespace}:{NAME}"
    node = "authentication.kubernetes.io/node-name"
    others = f"k == '{names.LABEL_CLOCK}'"
    return validating(
        name,
        [resource_rule("nodes", "nodes/status", operations=["UPDATE"])],
        [
            {
                "expression": f"request.userInfo.?extra[?'{node}'].orValue([])"
                ".exists(n, n == object.metadata.name)",
                "message": "the clock guard may only describe the node that it runs on",
            },
            {
                "expression": "object.spec == oldObject.spec && "
                f"variables.after.all(k, {others} || (k in variables.before && "
                "variables.before[k] == variables.after[k])) && "
                f"variables.before.all(k, {others} || k in variables.after)",
                "message": "the clock guard may only set the label "
                f"{names.LABEL_CLOCK} and its condition",
            },
        ],
        matchConditions=[{"name": "guard", "expression": f"request.userInfo.username == '{user}'"}],
        variables=[
            {
                "name": "before",
                "expression": "has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}",
            },
            {
                "name": "after",
                "expression": "has(object.metadata.labels) ? object.metadata.labels : {}",
            },
        ],
    )
