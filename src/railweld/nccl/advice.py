"""Variables that go round in guides and do nothing, or harm, with the NCCL in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from railweld.versions.rules import version_key


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One variable that should not be set (so).

    Attributes:
        variable: its name.
        value: only this value is meant; None means any.
        since: first NCCL version that it is true for; empty for all.
        until: first NCCL version that it is no longer true for; empty for all.
        transport: only on this transport; None means both.
        harm: `obsolete` does nothing, `harmful` costs speed or breaks jobs.
        reason: why.
        instead: what to do.
    """

    variable: str
    value: str | None = None
    since: str = ""
    until: str = ""
    transport: Literal["roce", "infiniband"] | None = None
    harm: Literal["obsolete", "harmful"]
    reason: str
    instead: str

    def holds(self, *, nccl: str, transport: str) -> bool:
        """Whether this advice is about the given NCCL and transport."""
        version = version_key(nccl) or ()
        return (
            self.transport in (None, transport)
            and (not self.since or version >= (version_key(self.since) or ()))
            and (not self.until or version < (version_key(self.until) or ()))
        )


@dataclass(frozen=True)
class Finding:
    """A variable of an environment that goes against an advice."""

    advice: Advice
    value: str

    def sentence(self) -> str:
        """For an operator: found, why, what instead."""
        return (
            f"{self.advice.variable}={self.value} is {self.advice.harm}: {self.advice.reason}; "
            f"{self.advice.instead}"
        )


ADVICE: Final = (
    Advice(
        variable="NCCL_IB_GID_INDEX",
        since="2.21",
        transport="roce",
        harm="harmful",
        reason="NCCL chooses the RoCE v2 row itself since 2.21; a fixed row differs per pod",
        instead="leave it out; bound the choice with NCCL_IB_ADDR_RANGE if a port has several "
        "addresses",
    ),
    Advice(
        variable="NCCL_IB_GID_INDEX",
        transport="infiniband",
        harm="obsolete",
        reason="InfiniBand does not look at it",
        instead="leave it out",
    ),
    Advice(
        variable="NCCL_IB_DISABLE",
        value="0",
        harm="obsolete",
        reason="0 is the default",
        instead="leave it out; NCCL_NET=IB makes a missing network an error",
    ),
    Advice(
        variable="NCCL_IB_DISABLE",
        value="1",
        harm="harmful",
        reason="it takes RDMA away and leaves TCP",
        instead="leave it out",
    ),
    Advice(
        variable="NCCL_P2P_DISABLE",
        value="0",
        harm="obsolete",
        reason="0 is the default",
        instead="leave it out",
    ),
    Advice(
        variable="NCCL_P2P_DISABLE",
        value="1",
        harm="harmful",
        reason="it takes NVLink away",
        instead="leave it out",
    ),
    Advice(
        variable="NCCL_IB_RETRY_CNT",
        value="7",
        harm="obsolete",
        reason="7 is the default and the most that the hardware knows",
        instead="leave it out",
    ),
    Advice(
        variable="NCCL_IB_CUDA_SUPPORT",
        since="2.4.0",
        harm="obsolete",
        reason="removed in NCCL 2.4.0",
        instead="leave it out; NCCL_NET_GDR_LEVEL is its successor and is right by itself",
    ),
    Advice(
        variable="NCCL_NET_GDR_READ",
        value="1",
        since="2.4.2",
        harm="obsolete",
        reason="the default on NVLink platforms since 2.4.2, and slower on PCIe-only ones",
        instead="leave it out",
    ),
    Advice(
        variable="NCCL_SHM_DISABLE",
        value="1",
        harm="harmful",
        reason="it pushes traffic inside a node to the NIC",
        instead="give the pod a larger /dev/shm",
    ),
    Advice(
        variable="NCCL_MIN_NCHANNELS",
        harm="harmful",
        since="2.17",
        reason="deprecated since 2.17 for NCCL_MIN_CTAS, and it takes SMs from computation",
        instead="leave the number of channels to NCCL",
    ),
    Advice(
        variable="NCCL_ASYNC_ERROR_HANDLING",
        harm="obsolete",
        reason="it is PyTorch's, under the name TORCH_NCCL_ASYNC_ERROR_HANDLING, and right by "
        "default",
        instead="leave it out",
    ),
    Advice(
        variable="NCCL_BLOCKING_WAIT",
        harm="harmful",
        reason="it is PyTorch's (TORCH_NCCL_BLOCKING_WAIT) and switches asynchronous error "
        "handling off",
        instead="leave it out in training",
    ),
    Advice(
        variable="TORCH_NCCL_BLOCKING_WAIT",
        value="1",
        harm="harmful",
        reason="it beats asynchronous error handling",
        instead="leave it out in training",
    ),
)


def judge(environment: Mapping[str, str], *, nccl: str, transport: str) -> list[Finding]:
    """What an environment should not contain with this NCCL on this transport."""
    return [
        Finding(advice, environment[advice.variable])
        for advice in ADVICE
        if advice.variable in environment
        and advice.holds(nccl=nccl, transport=transport)
        and advice.value in (None, environment[advice.variable])
    ]
