"""The NCCL profile as ConfigMaps, each variable with its reason as an annotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from railweld import names
from railweld.nccl import Profile
from railweld.stack.objects import Manifest, make

REASON: Final = "nccl.railweld.io"


@dataclass(frozen=True, kw_only=True)
class NcclProfileArgs:
    """Profiles by partition.

    Attributes:
        namespace: where jobs run.
        nccl: NCCL version that they are for.
        transport: and the transport.
        profiles: per partition, for jobs.
        bench: of the default partition, with the log that a measurement needs.
        default: the partition whose profile is called `nccl-profile`.
    """

    namespace: str = names.NAMESPACE_JOBS
    nccl: str
    transport: str
    profiles: Mapping[str, Profile]
    bench: Profile
    default: str

    def __post_init__(self) -> None:
        if self.default not in self.profiles:
            raise ValueError(
                f"default partition: found {self.default!r}, expected one of "
                f"{', '.join(self.profiles) or 'none'}"
            )


def config_map_name(args: NcclProfileArgs, partition: str) -> str:
    """The ConfigMap of a partition: the default's, unless its profile differs."""
    if args.profiles[partition].variables == args.profiles[args.default].variables:
        return names.CONFIGMAP_NCCL
    return f"{names.CONFIGMAP_NCCL}-{partition.lower().replace('_', '-')}"


def render(args: NcclProfileArgs) -> list[Manifest]:
    """One ConfigMap per distinct profile, and one for measurements."""
    chosen: dict[str, Profile] = {}
    for partition in (args.default, *args.profiles):
        chosen.setdefault(config_map_name(args, partition), args.profiles[partition])
    chosen[f"{names.CONFIGMAP_NCCL}-bench"] = args.bench
    return [_config_map(args, name, profile) for name, profile in chosen.items()]


def _config_map(args: NcclProfileArgs, name: str, profile: Profile) -> Manifest:
    annotations = {f"{REASON}/{each}": reason for each, reason in profile.reasons.items()}
    annotations["railweld.io/nccl"] = args.nccl
    annotations["railweld.io/transport"] = args.transport
    if profile.needs_gid_index:
        annotations["railweld.io/gid-index"] = (
            "this NCCL cannot choose the RoCE GID row, and the row differs per pod: the job's "
            "launcher finds it and sets NCCL_IB_GID_INDEX"
        )
    return make(
        "v1",
        "ConfigMap",
        name,
        args.namespace,
        annotations=annotations,
        data=profile.environment,
    )
