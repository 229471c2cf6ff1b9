"""What the API server refuses, and says why: GPU pods that would be slow, jobs that reach too far.

Every rule stands once, as CEL over a pod's spec, and is made into one policy for pods and one for
Jobs: a Job whose pods will be refused is refused itself, where its user sees it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from railweld import names
from railweld.nccl import ADVICE
from railweld.stack.admission import resource_rule, validating
from railweld.stack.objects import Manifest

#: A pod that stays on one node says so, and may do without RDMA.
LABEL_RDMA: Final = "railweld.io/rdma"
#: First Kubernetes with ValidatingAdmissionPolicy v1.
SINCE: Final = (1, 30)

_ADMINS: Final = ("system:masters", "kubeadm:cluster-admins")


class Rule(NamedTuple):
    """One requirement: CEL that must be true, and what the user is told otherwise."""

    expression: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PoliciesArgs:
    """What the rules follow from.

    Attributes:
        system: namespace of the stack, not judged as jobs are.
        jobs: namespace of the jobs.
        rdma_resource: extended resource that GPU pods must ask for; empty without RDMA.
        nccl: NCCL version, for the advice.
        transport: likewise.
        host_paths: folders of the node that jobs may mount, with what is below them.
        registries: beginnings of allowed job images; empty: any.
        host_network: whether jobs run in the host's network.
    """

    system: str = names.NAMESPACE_SYSTEM
    jobs: str = names.NAMESPACE_JOBS
    rdma_resource: str
    nccl: str
    transport: Literal["roce", "infiniband"]
    host_paths: tuple[str, ...]
    registries: tuple[str, ...] = ()
    host_network: bool = True

    def __post_init__(self) -> None:
        for path in self.host_paths:
            if not path.startswith("/") or path.rstrip("/") == "":
                raise ValueError(f"host_paths: found {path!r}, expected a folder below /")


def quoted(text: str) -> str:
    """A CEL string literal."""
    return json.dumps(text)


def _list(values: Iterable[str]) -> str:
    return "[" + ", ".join(quoted(value) for value in values) + "]"


_WANTS: Final = (
    "has(c.resources) && has(c.resources.limits) && {name} in c.resources.limits && "
    "quantity(string(c.resources.limits[{name}])).isGreaterThan(quantity('0'))"
)


def _wants(resource: str) -> str:
    return _WANTS.format(name=quoted(resource))


def variables(spec: str) -> list[dict[str, str]]:
    """What the rules below call `spec`, `all` (with init containers), `running` and `gpu`."""
    return [
        {"name": "spec", "expression": spec},
        {
            "name": "all",
            "expression": "variables.spec.containers + (has(variables.spec.initContainers) ? "
            "variables.spec.initContainers : [])",
        },
        {
            # A sidecar is an init container that goes on: it can run NCCL as well as others.
            "name": "running",
            "expression": "variables.spec.containers + variables.all.filter(c, "
            "has(c.restartPolicy) && c.restartPolicy == 'Always')",
        },
        {
            "name": "gpu",
            "expression": f"variables.running.filter(c, {_wants(names.RESOURCE_GPU)})",
        },
        {
            "name": "volumes",
            "expression": "has(variables.spec.volumes) ? variables.spec.volumes : []",
        },
    ]


def gpu_rules(args: PoliciesArgs, labels: str) -> list[Rule]:
    """Pods with GPUs, anywhere but in system namespaces. `labels` is CEL for the pod's labels."""
    rules = []
    if args.rdma_resource:
        rules.append(
            Rule(
                f"size(variables.gpu) == 0 || {labels}[?{quoted(LABEL_RDMA)}].orValue('') == 'none'"
                f" || variables.running.exists(c, {_wants(args.rdma_resource)})",
                f"a pod with GPUs but without {args.rdma_resource} runs NCCL on TCP: add "
                f"resources.limits {{{args.rdma_resource}: 1}}, or the label {LABEL_RDMA}=none if "
                "it stays on one node",
            )
        )
    rules += [
        Rule(
            "variables.gpu.all(c, has(c.securityContext) && "
            "has(c.securityContext.capabilities) && has(c.securityContext.capabilities.add) && "
            "'IPC_LOCK' in c.securityContext.capabilities.add)",
            "a container with GPUs must be able to lock memory for RDMA: add "
            "securityContext.capabilities.add [IPC_LOCK] (for users other than root the runtime's "
            "LimitMEMLOCK decides, which the containerd role sets)",
        ),
        Rule(
            "variables.gpu.all(c, has(c.volumeMounts) && c.volumeMounts.exists(m, "
            "m.mountPath == '/dev/shm' && variables.volumes.exists(v, v.name == m.name && "
            "has(v.emptyDir) && has(v.emptyDir.medium) && v.emptyDir.medium == 'Memory' && "
            "has(v.emptyDir.sizeLimit))))",
            "a container with GPUs needs a larger /dev/shm than the runtime's 64 MiB: mount an "
            "emptyDir with medium Memory and a sizeLimit at /dev/shm",
        ),
    ]
    return rules


def image_rules(registries: Sequence[str] = ()) -> list[Rule]:
    """Images that name one build, from where the site allows."""
    rules = [
        Rule(
            "variables.all.all(c, c.image.contains('@sha256:') || "
            "(c.image.matches(':[^/:]+$') && !c.image.endsWith(':latest')))",
            "an image without a tag, or with the tag latest, is another one on every node: name "
            "a tag or a digest",
        )
    ]
    if registries:
        allowed = _list(entry.rstrip("/") + "/" for entry in registries)
        rules.append(
            Rule(
                f"variables.all.all(c, {allowed}.exists(r, c.image.startsWith(r)))",
                f"images of jobs must come from {', '.join(registries)} (railweld_job_registries)",
            )
        )
    return rules


def reach_rules(args: PoliciesArgs) -> list[Rule]:
    """Jobs run in a privileged namespace; this is what they may not do all the same."""
    roots = [path.rstrip("/") for path in args.host_paths]
    user = "has({s}.securityContext) && has({s}.securityContext.runAsUser)"
    of_pod, of_container = user.format(s="variables.spec"), user.format(s="c")
    rules = [
        Rule(
            "variables.volumes.all(v, !has(v.hostPath) || "
            f"{_list(roots)}.exists(p, v.hostPath.path == p || v.hostPath.path.startsWith(p + "
            "'/')))",
            f"jobs may mount only these folders of their node: {', '.join(roots) or 'none'}",
        ),
        Rule(
            "variables.all.all(c, !has(c.securityContext) || "
            "!has(c.securityContext.privileged) || !c.securityContext.privileged)",
            "jobs may not run privileged: RDMA works with IPC_LOCK and the device plugin",
        ),
        Rule(
            "variables.all.all(c, has(c.securityContext) && "
            "has(c.securityContext.allowPrivilegeEscalation) && "
            "!c.securityContext.allowPrivilegeEscalation)",
            "jobs set allowPrivilegeEscalation: false in every container",
        ),
        Rule(
            "variables.all.all(c, !has(c.securityContext) || "
            "!has(c.securityContext.capabilities) || !has(c.securityContext.capabilities.add) || "
            "c.securityContext.capabilities.add.all(x, x == 'IPC_LOCK'))",
            "jobs may add the capability IPC_LOCK and no other",
        ),
        Rule(
            f"variables.all.all(c, ({of_container}) ? c.securityContext.runAsUser >= 1000 : "
            f"(({of_pod}) && variables.spec.securityContext.runAsUser >= 1000))",
            "jobs run as their user: set securityContext.runAsUser to a number of 1000 or more",
        ),
        Rule(
            "!(has(variables.spec.hostPID) && variables.spec.hostPID) && "
            "!(has(variables.spec.hostIPC) && variables.spec.hostIPC)",
            "jobs may not share the processes or the IPC of their node",
        ),
        Rule(
            "!has(variables.spec.nodeName) || variables.spec.nodeName == ''",
            "a nodeName goes round the scheduler's count of GPUs: use a nodeSelector",
        ),
    ]
    if not args.host_network:
        rules.append(
            Rule(
                "!(has(variables.spec.hostNetwork) && variables.spec.hostNetwork)",
                "jobs do not use the node's network here (railweld_network_mode)",
            )
        )
    return rules


def advice_rules(args: PoliciesArgs) -> list[Rule]:
    """NCCL variables that do nothing or harm; users are told, not refused."""
    rules = []
    for each in ADVICE:
        if not each.holds(nccl=args.nccl, transport=args.transport):
            continue
        test = f"e.name == {quoted(each.variable)}"
        if each.value is not None:
            test += f" && has(e.value) && e.value == {quoted(each.value)}"
        said = each.variable if each.value is None else f"{each.variable}={each.value}"
        rules.append(
            Rule(
                f"!variables.all.exists(c, has(c.env) && c.env.exists(e, {test}))",
                f"{said}: {each.reason}; {each.instead}",
            )
        )
    return rules


_KINDS: Final = {
    "pods": ("", "object.spec", "object.metadata"),
    "jobs": ("batch", "object.spec.template.spec", "object.spec.template.metadata"),
}


def _labels(metadata: str) -> str:
    # A Job's template need not have metadata at all; the type checker knows both.
    return f"(has({metadata}.labels) ? {metadata}.labels : {{}})"


def render(args: PoliciesArgs) -> list[Manifest]:
    """Policies and their bindings, for pods and for Jobs."""
    namespace = "kubernetes.io/metadata.name"
    tenants = {
        "matchExpressions": [
            {"key": namespace, "operator": "NotIn", "values": ["kube-system", args.system]}
        ]
    }
    jobs = {"matchLabels": {names.LABEL_BRIDGE: "true"}}
    manifests: list[Manifest] = []
    for resource, (group, spec, metadata) in _KINDS.items():
        for name, rules, actions, selector in (
            ("railweld-gpu", gpu_rules(args, _labels(metadata)), ["Deny"], tenants),
            ("railweld-job-reach", reach_rules(args), ["Deny"], jobs),
            ("railweld-job-images", image_rules(args.registries), ["Deny"], jobs),
            ("railweld-nccl-advice", advice_rules(args), ["Warn", "Audit"], tenants),
        ):
            manifests += validating(
                f"{name}-{resource}",
                # Not UPDATE: a pod that is there already must stay able to lose its finalizers,
                # whatever the rules have become.
                [resource_rule(resource, groups=[group])],
                [
                    {"expression": rule.expression, "message": rule.message, "reason": "Forbidden"}
                    for rule in rules
                ],
                actions=actions,
                namespaces=selector,
                variables=variables(spec),
            )
    manifests += _creators(args, jobs)
    return manifests


def _creators(args: PoliciesArgs, selector: dict[str, Any]) -> list[Manifest]:
    """Rights that someone has in all namespaces do not reach into the privileged one of jobs."""
    bridge = f"system:serviceaccount:{args.system}:{names.SERVICE_ACCOUNT_BRIDGE}"
    return validating(
        "railweld-job-creators",
        [
            resource_rule(
                *("pods", "replicationcontrollers", "jobs", "cronjobs"),
                *("deployments", "daemonsets", "replicasets", "statefulsets"),
                groups=["", "batch", "apps"],
            ),
            # A container put into a pod that runs has all that the pod has.
            resource_rule("pods/ephemeralcontainers", operations=["UPDATE"]),
        ],
        [
            {
                "expression": f"request.userInfo.username == {quoted(bridge)} || "
                "request.userInfo.username.startsWith("
                "'system:serviceaccount:kube-system:') || "
                "request.userInfo.username == 'system:kube-controller-manager' || "
                f"request.userInfo.groups.exists(g, g in {_list(_ADMINS)})",
                "message": "only the Slurm bridge starts workloads here: submit with "
                "sbatch, or use a namespace of your own",
                "reason": "Forbidden",
            }
        ],
        namespaces=selector,
    )
