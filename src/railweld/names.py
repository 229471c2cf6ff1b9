"""Names, paths and groups that more than one stage uses. Each stands here once."""

from __future__ import annotations

from typing import Final

GROUP_GPU_NODES: Final = "gpu_nodes"
GROUP_CONTROL_PLANE: Final = "control_plane"
GROUP_SLURM_HEAD: Final = "slurm_head"
GROUP_TIME_SERVERS: Final = "time_servers"
GROUP_LEAVES: Final = "leaves"
GROUP_SPINES: Final = "spines"

#: Groups that are switches: netmiko talks to them, Ansible roles never do.
SWITCH_GROUPS: Final = (GROUP_LEAVES, GROUP_SPINES)
#: A host is at most in one group of each tuple.
EXCLUSIVE_GROUPS: Final = (
    (GROUP_GPU_NODES, GROUP_LEAVES, GROUP_SPINES),
    (GROUP_CONTROL_PLANE, GROUP_LEAVES, GROUP_SPINES),
    (GROUP_SLURM_HEAD, GROUP_LEAVES, GROUP_SPINES),
    (GROUP_TIME_SERVERS, GROUP_LEAVES, GROUP_SPINES),
    (GROUP_GPU_NODES, GROUP_CONTROL_PLANE),
)

#: Prefix of every variable of the site description.
SITE_VARIABLE_PREFIX: Final = "railweld_"

#: On a node: what the roles leave for the probe to read.
NODE_STATE_DIR: Final = "/var/lib/railweld"
NODE_CONFIG_DIR: Final = "/etc/railweld"
#: nccl-tests on a node, and what they were built from.
NCCL_TESTS: Final = "/opt/railweld/nccl-tests"
NCCL_TESTS_STAMP: Final = f"{NCCL_TESTS}/built.json"

# -- Kubernetes: names that roles, stack, bridge and verification share ---------------------

#: What the stack itself runs in, and where training jobs run.
NAMESPACE_SYSTEM: Final = "railweld-system"
NAMESPACE_JOBS: Final = "railweld-jobs"

#: On nodes, from kubelet registration: RDMA is described for this node, and which site it is of.
LABEL_RDMA_AVAILABLE: Final = "rdma.nvidia.com/available"
LABEL_SITE: Final = "railweld.io/site"
#: Likewise: the node is described with GPUs (the name that NVIDIA's charts select by).
LABEL_GPU_PRESENT: Final = "nvidia.com/gpu.present"
#: On nodes, from the clock guard: `ok`, `off` or `unknown`.
LABEL_CLOCK: Final = "railweld.io/clock"
#: On namespaces whose pods the pin policy and the job policies look at.
LABEL_BRIDGE: Final = "railweld.io/bridge"
#: On a job's pod template: the hosts in rank order, comma-separated.
ANNOTATION_HOSTS: Final = "railweld.io/hosts"

TAINT_GPU: Final = "nvidia.com/gpu"
RESOURCE_GPU: Final = "nvidia.com/gpu"

#: How pods ask for NVIDIA's runtime: name of the RuntimeClass and of containerd's handler.
RUNTIME_CLASS_GPU: Final = "nvidia"
#: Set on nodes by the clock guard, beside its label.
CONDITION_CLOCK: Final = "ClockSynchronised"

# -- The Slurm bridge ------------------------------------------------------------------------

#: What slurmd runs in place of a batch script, and the daemon behind it.
BRIDGE_CLIENT: Final = "/usr/libexec/railweld/exec"
BRIDGE_CONFIG: Final = "/etc/railweld/bridge.json"
BRIDGE_SOCKET: Final = "/run/railweld/bridge.sock"
#: Slurm's Epilog and EpilogSlurmctld of sites with a bridge.
BRIDGE_EPILOG: Final = "/usr/libexec/railweld/epilog"
#: The daemon's way into the cluster; its token is in a file of its own, which the daemon renews.
BRIDGE_KUBECONFIG: Final = "/etc/railweld/bridge.kubeconfig"
BRIDGE_TOKEN: Final = "/var/lib/railweld/bridge/token"  # noqa: S105 - a path, not a token
#: Folder of the daemon's program, which bears its digest in its name.
BRIDGE_PROGRAMS: Final = "/usr/lib/railweld"
#: The commands for people on the head.
BRIDGE_COMMAND: Final = "/usr/local/bin/railweld-bridge"
BRIDGE_UNIT: Final = "bridged.service"
#: Where agents in pods connect, and where health and metrics are asked for.
BRIDGE_PORT: Final = 6830
BRIDGE_MONITOR: Final = "127.0.0.1:6831"
#: Beginning of every reason that the bridge gives a Slurm node; others are an admin's.
BRIDGE_REASON: Final = "railweld: "
#: In a job's pod: the agent with its shims, and what is the job's own.
POD_AGENT: Final = "/opt/railweld"
POD_JOB: Final = "/run/railweld/job"
#: Variable with the name of the run, by which its part of the node's scratch folder is called too.
POD_VARIABLE_JOB: Final = "RAILWELD_JOB"
#: Of the PodTemplate: the volume of which each run gets a part.
POD_VOLUME_SCRATCH: Final = "scratch"
#: On a job's objects.
LABEL_SLURM_CLUSTER: Final = "railweld.io/slurm-cluster"
LABEL_JOB_ID: Final = "railweld.io/job-id"
LABEL_JOB_RESTART: Final = "railweld.io/restart"
LABEL_JOB_UID: Final = "railweld.io/uid"
LABEL_PARTITION: Final = "railweld.io/partition"
LABEL_AGENT: Final = "railweld.io/agent"
GATE_PLACEMENT: Final = "railweld.io/placement"
#: On pods whose rank is that of the node that they come to, among these.
ANNOTATION_RANKS: Final = "railweld.io/ranked-hosts"
#: Variable of such a pod: its node.
POD_VARIABLE_NODE: Final = "RAILWELD_NODE"
ANNOTATION_SUBMITTED: Final = "railweld.io/submitted"
ANNOTATION_OUTCOME: Final = "railweld.io/outcome"

#: On GPU nodes: removes the scratch folders of jobs whose pods are gone.
SCRATCH_TIMER: Final = "railweld-scratch.timer"

CONFIGMAP_NCCL: Final = "nccl-profile"
SERVICE_ACCOUNT_BRIDGE: Final = "bridged"

#: In the site's state folder, mode 0600, written by deploy-cluster.yml.
KUBECONFIG: Final = "kubeconfig"


def pod_template(partition: str) -> str:
    """Name of the PodTemplate of a partition's jobs, as Kubernetes takes names."""
    return partition.lower().replace("_", "-")


def job_scratch(scratch: str) -> str:
    """Where a node's scratch folder has one folder for each run of a job of the bridge.

    The folder above it is root's alone: whoever logs in on the node neither sees them nor makes one
    before its job comes.
    """
    return f"{scratch.rstrip('/')}/.railweld/jobs"


def kube_context(site: str) -> str:
    """Context of the site's cluster in its kubeconfig; the cluster's own name is the site's."""
    return f"railweld-{site}"
