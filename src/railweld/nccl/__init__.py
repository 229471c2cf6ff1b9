"""What NCCL has to be told on this site, why, and which popular advice is wrong for it."""

from railweld.nccl.advice import ADVICE, Advice, Finding, judge
from railweld.nccl.gid import GidRow, choose_gid_index, read_gid_table
from railweld.nccl.profile import (
    NcclArgs,
    Profile,
    Variable,
    args_for,
    profile,
    profiles_for,
    uses_hca,
)

__all__ = [
    "ADVICE",
    "Advice",
    "Finding",
    "GidRow",
    "NcclArgs",
    "Profile",
    "Variable",
    "args_for",
    "choose_gid_index",
    "judge",
    "profile",
    "profiles_for",
    "read_gid_table",
    "uses_hca",
]
