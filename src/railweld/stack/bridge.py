"""What the Slurm bridge needs in the cluster: account, rights, pin policy, templates of job pods.

The bridge itself is a daemon on the Slurm head; nothing of it runs here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from railweld import names
from railweld.stack.admission import API, resource_rule
from railweld.stack.objects import Manifest, host_path, make, mount
from railweld.stack.quota import PRIORITY_JOB

PIN_POLICY: Final = "railweld-pin"
#: First Kubernetes with MutatingAdmissionPolicy v1.
PIN_SINCE: Final = (1, 36)
#: First Kubernetes with scheduling gates, and with nodes that can be chosen behind one.
GATES_SINCE: Final = (1, 27)
USERS: Final = "railweld:users"

_RBAC: Final = "rbac.authorization.k8s.io"
_INDEX: Final = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, kw_only=True)
class Volume:
    """Shared storage of the site, or another folder."""

    name: str
    mount: str
    host_path: str | None = None
    claim: str | None = None
    read_only: bool = False

    def __post_init__(self) -> None:
        if (self.host_path is None) == (self.claim is None):
            raise ValueError(
                f"railweld_job_volumes: {self.name}: found "
                f"{'neither' if self.claim is None else 'both'} of host_path and claim, expected "
                "one of them"
            )


@dataclass(frozen=True, kw_only=True)
class Template:
    """The pod of one partition's jobs.

    Attributes:
        name: of the PodTemplate.
        partition: of Slurm.
        gpus: of a whole node.
        nccl: ConfigMap with the profile.
        cache: folder of the node for data sets.
        scratch: folder of the node under which each job gets its own.
        cuda_compat: whether images of a newer CUDA than the driver's run through cuda-compat.
    """

    name: str
    partition: str
    gpus: int
    nccl: str
    cache: str | None
    scratch: str | None
    cuda_compat: bool = False


@dataclass(frozen=True, kw_only=True)
class BridgeArgs:
    """What the bridge's objects follow from.

    Attributes:
        system: namespace of its account.
        jobs: namespace of the jobs.
        templates: one per partition.
        image: of jobs that name none.
        rdma_resource: extended resource; empty without RDMA.
        host_network: whether jobs run in the host's network.
        networks: attachments of a job's pod in the other modes.
        shm_gib: size of /dev/shm.
        volumes: of every job.
        pin: whether pods are pinned at admission (Kubernetes >= 1.36).
        runtime: whether jobs get their GPUs from NVIDIA's runtime; with CDI from any.
        pull_secrets: Secrets with registry logins.
    """

    system: str = names.NAMESPACE_SYSTEM
    jobs: str = names.NAMESPACE_JOBS
    templates: tuple[Template, ...]
    image: str
    rdma_resource: str
    host_network: bool = True
    networks: tuple[str, ...] = ()
    shm_gib: int = 64
    volumes: tuple[Volume, ...] = ()
    pin: bool = True
    runtime: bool = True
    pull_secrets: tuple[str, ...] = ()


def render(args: BridgeArgs) -> list[Manifest]:
    """Account, roles, pin policy, templates."""
    manifests = [
        make("v1", "ServiceAccount", names.SERVICE_ACCOUNT_BRIDGE, args.system),
        *_rights(args),
        *(pod_template(args, template) for template in args.templates),
    ]
    if args.pin:
        manifests += pin_policy()
    return manifests


def _rights(args: BridgeArgs) -> list[Manifest]:
    account = {
        "kind": "ServiceAccount",
        "name": names.SERVICE_ACCOUNT_BRIDGE,
        "namespace": args.system,
    }
    users = {"kind": "Group", "apiGroup": _RBAC, "name": USERS}
    manage = ["get", "list", "watch", "create", "patch", "delete"]
    look = ["get", "list", "watch"]
    return [
        *_role(
            "railweld:bridge",
            None,
            account,
            [
                # Readiness, cordons, labels; the bridge changes no node.
                {"apiGroups": [""], "resources": ["nodes"], "verbs": look},
                {
                    "apiGroups": ["admissionregistration.k8s.io"],
                    "resources": [
                        "mutatingadmissionpolicies",
                        "mutatingadmissionpolicybindings",
                    ],
                    "resourceNames": [PIN_POLICY],
                    "verbs": ["get"],
                },
            ],
        ),
        *_role(
            "bridge",
            args.jobs,
            account,
            [
                {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": manage},
                {
                    "apiGroups": [""],
                    "resources": ["pods", "services", "configmaps", "secrets"],
                    "verbs": manage,
                },
                {"apiGroups": [""], "resources": ["pods/log", "events"], "verbs": look},
                {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
                {"apiGroups": [""], "resources": ["podtemplates"], "verbs": look},
            ],
        ),
        *_role(
            "bridge-token",
            args.system,
            account,
            [
                # The daemon renews its own token, so that no long-lived one has to exist.
                {
                    "apiGroups": [""],
                    "resources": ["serviceaccounts/token"],
                    "resourceNames": [names.SERVICE_ACCOUNT_BRIDGE],
                    "verbs": ["create"],
                },
            ],
        ),
        *_role(
            "users",
            args.jobs,
            users,
            [
                {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": look},
                {"apiGroups": [""], "resources": ["pods", "pods/log", "events"], "verbs": look},
            ],
        ),
    ]


def _role(
    name: str, namespace: str | None, subject: dict[str, str], rules: list[dict[str, Any]]
) -> list[Manifest]:
    kind = "Role" if namespace else "ClusterRole"
    return [
        make(f"{_RBAC}/v1", kind, name, namespace, rules=rules),
        make(
            f"{_RBAC}/v1",
            f"{kind}Binding",
            name,
            namespace,
            roleRef={"apiGroup": _RBAC, "kind": kind, "name": name},
            subjects=[subject],
        ),
    ]


def pod_template(args: BridgeArgs, template: Template) -> Manifest:
    """What every job of a partition is made from; user, image and command come from the job."""
    limits = {names.RESOURCE_GPU: str(template.gpus)}
    if args.rdma_resource:
        # The devices of all HCAs, however many are counted.
        limits[args.rdma_resource] = "1"
    volumes: list[dict[str, Any]] = [
        {
            "name": "shm",
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{args.shm_gib}Gi"},
        }
    ]
    mounts = [mount("shm", "/dev/shm")]  # noqa: S108 - the pod's own memory
    if template.cache:
        volumes.append(host_path("cache", template.cache, "Directory"))
        mounts.append(mount("cache", template.cache))
    if template.scratch:
        # The kubelet makes the run's own folder; no pod has those of others mounted.
        volumes.append(
            host_path(names.POD_VOLUME_SCRATCH, names.job_scratch(template.scratch), "Directory")
        )
        mounts.append(
            mount(names.POD_VOLUME_SCRATCH, template.scratch)
            | {"subPathExpr": f"$({names.POD_VARIABLE_JOB})"}
        )
    for volume in args.volumes:
        if volume.host_path:
            volumes.append(host_path(volume.name, volume.host_path, "Directory"))
        else:
            volumes.append(
                {"name": volume.name, "persistentVolumeClaim": {"claimName": volume.claim}}
            )
        mounts.append(mount(volume.name, volume.mount, read_only=volume.read_only))
    container: dict[str, Any] = {
        "name": "job",
        "image": args.image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": limits},
        "envFrom": [{"configMapRef": {"name": template.nccl}}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
        },
        "volumeMounts": mounts,
    }
    if template.cuda_compat:
        # The images ask for a driver of their own CUDA; cuda-compat on the node brings its
        # user-mode part, which the check at container start does not see.
        container["env"] = [{"name": "NVIDIA_DISABLE_REQUIRE", "value": "true"}]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": PRIORITY_JOB,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"key": names.TAINT_GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": volumes,
    }
    if args.runtime:
        spec["runtimeClassName"] = names.RUNTIME_CLASS_GPU
    if args.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if args.rdma_resource:
        spec["nodeSelector"] = {names.LABEL_RDMA_AVAILABLE: "true"}
    if args.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in args.pull_secrets]
    metadata: dict[str, Any] = {"labels": {"railweld.io/partition": template.partition}}
    if args.networks:
        metadata["annotations"] = {"k8s.v1.cni.cncf.io/networks": ",".join(args.networks)}
    return make(
        "v1",
        "PodTemplate",
        template.name,
        args.jobs,
        template={"metadata": metadata, "spec": spec},
    )


def pin_policy() -> list[Manifest]:
    """Pod i of a bridge Job goes to the i-th host of the annotation, at admission.

    No gate, no patch per pod. An index past the list, or a name that is no node, fails the pod
    instead of placing it somewhere else.
    """
    hosts = names.ANNOTATION_HOSTS
    return [
        make(
            API,
            "MutatingAdmissionPolicy",
            PIN_POLICY,
            spec={
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {names.LABEL_BRIDGE: "true"}},
                    "resourceRules": [resource_rule("pods")],
                },
                "matchConditions": [
                    {
                        "name": "bridge-pod",
                        "expression": f"'{hosts}' in object.metadata.?annotations.orValue({{}}) && "
                        f"'{_INDEX}' in object.metadata.?labels.orValue({{}})",
                    }
                ],
                "variables": [
                    {
                        "name": "index",
                        "expression": f"int(object.metadata.labels['{_INDEX}'])",
                    },
                    {
                        "name": "hosts",
                        "expression": f"object.metadata.annotations['{hosts}'].split(',')",
                    },
                ],
                "mutations": [
                    {
                        # ApplyConfiguration is refused: nodeSelector is an atomic map.
                        "patchType": "JSONPatch",
                        "jsonPatch": {
                            "expression": '[JSONPatch{op: "add", path: "/spec/nodeSelector", '
                            'value: {"kubernetes.io/hostname": '
                            "variables.hosts[variables.index]}}, "
                            'JSONPatch{op: "remove", path: "/metadata/annotations/" + '
                            f'jsonpatch.escapeKey("{hosts}")}}]'
                        },
                    }
                ],
            },
        ),
        make(
            API,
            "MutatingAdmissionPolicyBinding",
            PIN_POLICY,
            spec={"policyName": PIN_POLICY},
        ),
    ]
