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
