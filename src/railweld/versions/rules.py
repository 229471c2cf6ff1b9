"""Compatibility rules: data in `versions/rules.yml`, judged here without any I/O.

A rule has conditions (`when`, all of them) and requirements (`require`, one of them). Each is a
comparison such as `driver >= 525.60.13`, `gpudirect == dmabuf`, `driver.major in 470, 525` or
`fabric_manager == $driver`; several are joined by ` and `. Facts named `…_package` are compared as
dpkg compares package versions, all others by their leading dotted number. A rule about something
that is not known yet (the running kernel while only the description is checked) does not speak.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from debian.debian_support import version_compare
from pydantic import Field, field_validator

from railweld.versions.model import Strict

#: Everything that a rule may ask for, and what it means.
FACTS: Final[Mapping[str, str]] = {
    "driver": "driver version of the set",
    "driver_cuda": "newest CUDA release that this driver supports by itself",
    "supported_cuda": "newest CUDA release that runs: the driver's, or cuda-compat's",
    "modules": "kernel modules of the driver: open or proprietary",
    "fabric_manager": "fabric manager version",
    "nvswitch": "true when the node has NVSwitches",
    "gpu_model": "GPU name as nvidia-smi prints it, without `NVIDIA `",
    "gpu_datacenter": "true for data-centre GPUs",
    "cuda": "CUDA toolkit version",
    "cuda_compat": "true when cuda-compat is installed",
    "cuda_compat_driver": "driver version whose libraries cuda-compat carries",
    "cuda_compat_branches": "driver branches on which cuda-compat may run",
    "nccl": "NCCL version",
    "nccl_cuda": "CUDA release that NCCL was built with",
    "dcgm": "DCGM version",
    "doca": "DOCA version",
    "rdma_stack": "inbox or doca",
    "rdma_core": "version of the installed rdma-core",
    "gpudirect": "dmabuf or peermem",
    "ofed_before_driver": "true when OFED was installed when the driver was built",
    "transport": "roce or infiniband",
    "network_mode": "host, macvlan, sriov or dra",
    "kernel": "running kernel",
    "headers": "true when headers for the running kernel are installed",
    "secure_boot": "on, off or unsupported",
    "module_signer": "true when the site names an enrolled key that signs modules",
    "kubernetes": "Kubernetes version",
    "cgroup": "v1, v2 or hybrid",
    "kubelet_fail_cgroup_v1": "kubelet's failCgroupV1",
    "containerd": "containerd version",
    "container_toolkit": "NVIDIA container toolkit version",
    "slurm": "Slurm version",
    "slurm_origin": "where Slurm's packages come from: debian12, source, the site's own builds",
    "slurm_package": "Debian version of slurmctld's package; text without digits for other builds",
    "gpu_operator": "gpu-operator chart version",
    "network_operator": "network-operator chart version",
    "vendor_repository": "ubuntu2204, ubuntu2404 or debian12",
}

Fact = str | bool | tuple[str, ...]
Severity = Literal["error", "warning"]

_CONDITION: Final = re.compile(
    r"^(?P<left>[a-z_0-9]+(?:\.major)?)\s*"
    r"(?P<op>==|!=|>=|<=|>|<|~|not in\b|in\b)\s*(?P<right>\S.*)$"
)
_NUMBER: Final = re.compile(r"^v?(\d+(?:\.\d+)*)")


class RuleResult(Strict):
    """A rule that does not hold, in the operator's words."""

    rule: str
    severity: Severity
    found: str
    expected: str
    reason: str
    source: str
    fix: str

    def sentence(self) -> str:
        """One line for a terminal."""
        return (
            f"{self.rule}: found {self.found}, expected {self.expected}. {self.reason} "
            f"Fix: {self.fix}"
        )


class Rule(Strict):
    """One entry of `rules.yml`. Texts may name facts in braces."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    severity: Severity
    when: tuple[str, ...] = ()
    require: tuple[str, ...]
    found: str
    expected: str
    reason: str
    source: str
    fix: str

    @field_validator("when", "require")
    @classmethod
    def _parses(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        for line in lines:
            parse(line)
        return lines

    def judge(self, facts: Mapping[str, Fact]) -> RuleResult | None:
        """Return the violation, or None when the rule holds or does not apply."""
        if any(_holds(line, facts) is not True for line in self.when):
            return None
        answers = [_holds(line, facts) for line in self.require]
        if True in answers or None in answers:
            return None
        words = _Words({name: _say(value) for name, value in facts.items()})
        return RuleResult(
            rule=self.id,
            severity=self.severity,
            found=self.found.format_map(words),
            expected=self.expected.format_map(words),
            reason=self.reason.format_map(words),
            source=self.source,
            fix=self.fix.format_map(words),
        )


class RuleFile(Strict):
    """`versions/rules.yml`.

    `driver_cuda` maps a driver branch to the newest CUDA release that it supports by itself.
    """

    driver_cuda: dict[str, str]
    driver_cuda_source: str
    rules: tuple[Rule, ...]

    @field_validator("rules")
    @classmethod
    def _unique(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        seen: set[str] = set()
        for rule in rules:
            if rule.id in seen:
                msg = f"rule {rule.id} stands twice"
                raise ValueError(msg)
            seen.add(rule.id)
        return rules


@dataclass(frozen=True)
class Condition:
    """A parsed comparison."""

    left: str
    operator: str
    right: str

    def judge(self, facts: Mapping[str, Fact]) -> bool | None:
        """True or False, or None when a fact is not known."""
        left = _lookup(self.left, facts)
        right = _lookup(self.right[1:], facts) if self.right.startswith("$") else self.right
        if left is None or right is None:
            return None
        if self.left.endswith("_package") and self.operator in _PACKAGE_OPERATORS:
            return _compare_packages(_PACKAGE_OPERATORS[self.operator], left, right)
        return _OPERATORS[self.operator](left, right)


def parse(line: str) -> tuple[Condition, ...]:
    """Parse `a == b and c >= d`; raises ValueError that names the faulty part."""
    conditions = []
    for part in line.split(" and "):
        match = _CONDITION.match(part.strip())
        if match is None:
            msg = f"{part!r} is not a comparison such as 'driver >= 525.60.13'"
            raise ValueError(msg)
        left, right = match["left"], match["right"].strip()
        named = [left] + ([right[1:]] if right.startswith("$") else [])
        for name in named:
            if name.removesuffix(".major") not in FACTS:
                msg = f"{part!r} asks for {name!r}, which is not a known fact"
                raise ValueError(msg)
        conditions.append(Condition(left, match["op"], right))
    return tuple(conditions)


def _holds(line: str, facts: Mapping[str, Fact]) -> bool | None:
    answers = [condition.judge(facts) for condition in parse(line)]
    if False in answers:
        return False
    return None if None in answers else True


def _lookup(name: str, facts: Mapping[str, Fact]) -> Fact | None:
    value = facts.get(name.removesuffix(".major"))
    if name.endswith(".major") and isinstance(value, str):
        return value.split(".", 1)[0]
    return value


def _say(value: Fact) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(value) if isinstance(value, tuple) else value


def version_key(text: str) -> tuple[int, ...] | None:
    """Comparable form of the leading dotted number, or None when there is none."""
    match = _NUMBER.match(text)
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _compare(
    test: Callable[[tuple[int, ...], tuple[int, ...]], bool],
) -> Callable[[Fact, Fact], bool]:
    def compare(left: Fact, right: Fact) -> bool:
        one, other = version_key(_say(left)), version_key(_say(right))
        return one is not None and other is not None and test(one, other)

    return compare


def _equal(left: Fact, right: Fact) -> bool:
    one, other = _say(left), _say(right)
    if one == other:
        return True
    full = re.compile(r"\d+(\.\d+)*")
    return bool(full.fullmatch(one) and full.fullmatch(other)) and (
        version_key(one) == version_key(other)
    )


def _member(left: Fact, right: Fact) -> bool:
    items = right if isinstance(right, tuple) else tuple(_say(right).split(","))
    return any(_equal(left, item.strip()) for item in items)


_OPERATORS: Final[Mapping[str, Callable[[Fact, Fact], bool]]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    ">=": _compare(lambda one, other: one >= other),
    "<=": _compare(lambda one, other: one <= other),
    ">": _compare(lambda one, other: one > other),
    "<": _compare(lambda one, other: one < other),
    "in": _member,
    "not in": lambda left, right: not _member(left, right),
    "~": lambda left, right: re.search(_say(right), _say(left)) is not None,
}


#: dpkg's order: fixes arrive in a package's revision while the release stays.
_PACKAGE_OPERATORS: Final[Mapping[str, Callable[[int], bool]]] = {
    ">=": lambda order: order >= 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    "<": lambda order: order < 0,
}


def _compare_packages(test: Callable[[int], bool], left: Fact, right: Fact) -> bool:
    one, other = _say(left), _say(right)
    return one[:1].isdecimal() and test(version_compare(one, other))


class _Words(dict[str, str]):
    """Facts for the texts; one that is not known reads as such."""

    def __missing__(self, key: str) -> str:
        return "unknown" if key in FACTS else "{" + key + "}"
