"""Facts about NVIDIA GPUs that more than one stage judges by. Sources: the vendor's data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class NvLink:
    """Links of one GPU, and the GB/s (1e9 bytes) of each in one direction."""

    links: int
    gb_per_s: float

    @property
    def total(self) -> float:
        """GB/s in one direction per GPU."""
        return self.links * self.gb_per_s


#: By the word of the model. PCIe cards of the same name have none, or bridges between pairs.
_NVLINK: Final = {
    "V100": NvLink(6, 25),
    "A100": NvLink(12, 25),
    "A800": NvLink(8, 25),
    "H100": NvLink(18, 25),
    "H200": NvLink(18, 25),
    "H800": NvLink(8, 25),
    "H20": NvLink(18, 25),
    "B200": NvLink(18, 50),
    "B300": NvLink(18, 50),
}
#: Compute capability without its dot, by the word of the model: what a program is compiled for.
_ARCHITECTURE: Final = {
    "V100": "70", "A100": "80", "A800": "80", "A30": "80", "A40": "86", "L40": "89",
    "H100": "90", "H200": "90", "H800": "90", "H20": "90", "B200": "100", "B300": "103",
}  # fmt: skip
_WITHOUT: Final = re.compile(r"PCIE|NVL\b", re.IGNORECASE)

#: Xid events that a faulty program causes; all others point at the GPU, its memory or its links.
#: The list is the device plugin's: these do not make it call a GPU unhealthy.
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})


def nvlink(model: str) -> NvLink | None:
    """NVLink of a model such as `A100-SXM4-80GB`; None for one without or an unknown one."""
    if _WITHOUT.search(model):
        return None
    return next((_NVLINK[word] for word in _words(model) if word in _NVLINK), None)


def architecture(model: str) -> str | None:
    """Compute capability of a model without its dot (`80`); None for an unknown one."""
    return next((_ARCHITECTURE[word] for word in _words(model) if word in _ARCHITECTURE), None)


def _words(model: str) -> list[str]:
    return re.findall(r"[A-Z]+[0-9]+", model.upper())
