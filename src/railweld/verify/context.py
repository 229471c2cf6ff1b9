"""What a check may look at: the site, the host's model and what the probe saw on the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict, Unpack

from railweld.base.families import in_family
from railweld.record import Check, Status, judge


class Told(TypedDict):
    """What a record says beside its id."""

    ran: str
    found: object
    expected: object
    fix: str
    layer: NotRequired[str]


@dataclass(frozen=True)
class Context:
    """One host as described and as observed.

    Attributes:
        site: `railweld.site`, the values that hold for the whole site.
        host: `railweld.hosts[NAME]`, what the description derives for this host.
        node: `railweld_node`, what the probe read on it.
        cluster: `railweld_cluster` in the cluster stage: the cluster as this host sees it, and
            what its first control-plane node reported; empty elsewhere.
    """

    site: Mapping[str, Any]
    host: Mapping[str, Any]
    node: Mapping[str, Any]
    cluster: Mapping[str, Any] = field(default_factory=dict)
    #: `railweld_slurm` in the Slurm stage: the site's Slurm as this host sees it; empty elsewhere.
    slurm: Mapping[str, Any] = field(default_factory=dict)
    #: The host's name; taken from its model.
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", str(self.host.get("name", "?")))

    def seen(self, path: str, default: Any = None) -> Any:
        """Return the observation at a dotted path, or the default where it is absent or null."""
        return _walk(self.node, path, default)

    def wanted(self, path: str, default: Any = None) -> Any:
        """Return the host's model value at a dotted path, or the default where absent or null."""
        return _walk(self.host, path, default)

    def setting(self, path: str, default: Any = None) -> Any:
        """Return the site's value at a dotted path, or the default where absent or null."""
        return _walk(self.site, path, default)

    def member(self, path: str, default: Any = None) -> Any:
        """Return the cluster view's value at a dotted path, or the default where absent or null."""
        return _walk(self.cluster, path, default)

    def pins(self, component: str) -> list[tuple[str, str]]:
        """Return the (name, version) pairs that the version set asks for on this host."""
        packages = (
            self.wanted(f"packages.{component}")
            or self.member(f"host.packages.{component}")
            or _walk(self.slurm, f"host.packages.{component}", [])
        )
        return [(str(each["name"]), str(each["version"])) for each in packages]

    def package(self, name: str) -> Mapping[str, Any]:
        """Return `{version, status, hold}` of an installed package, empty when it is not there."""
        found: Mapping[str, Any] = (self.node.get("packages") or {}).get(name) or {}
        return found

    def installed_version(self, name: str) -> str | None:
        """Return the version of a completely installed package, else None."""
        found = self.package(name)
        return str(found["version"]) if found.get("status") == "ii" else None

    @property
    def has_nvswitch(self) -> bool:
        """True when the PCI bus shows an NVSwitch, which decides about the fabric manager."""
        return int(self.seen("pci.nvswitches", 0)) > 0

    @property
    def reboot_reasons(self) -> list[str]:
        """Observed reasons for which the node has to be rebooted."""
        return [str(reason) for reason in self.seen("reboot.reasons", [])]

    def judge(
        self,
        check: str,
        *,
        ok: bool,
        ran: str,
        found: object,
        expected: object,
        fix: str,
        layer: str = "host",
        ref: str = "",
    ) -> Check:
        """Build a record about this host: pass or fail."""
        return judge(
            id=check,
            target=self.name,
            ok=ok,
            ran=ran,
            found="nothing" if found is None else found,
            expected=expected,
            fix=fix,
            layer=layer,
            ref=ref,
        )

    def could_not_look(self, check: str, **told: Unpack[Told]) -> Check:
        """Build an `unknown` record: the state could not be observed, which is not a pass."""
        return self._note(Status.UNKNOWN, check, **told)

    def warn(self, check: str, **told: Unpack[Told]) -> Check:
        """Build a `warn` record: works, yet the operator should know."""
        return self._note(Status.WARN, check, **told)

    def _note(
        self,
        status: Status,
        check: str,
        *,
        ran: str,
        found: object,
        expected: object,
        fix: str,
        layer: str = "host",
    ) -> Check:
        return Check(
            id=check,
            layer=layer,
            target=self.name,
            status=status,
            ran=ran,
            found=str(found),
            expected=str(expected),
            fix=fix,
        )


def _walk(tree: Mapping[str, Any], path: str, default: Any) -> Any:
    here: Any = tree
    for key in path.split("."):
        if not isinstance(here, Mapping) or key not in here:
            return default
        here = here[key]
    return default if here is None else here


def packages_as_pinned(ctx: Context, component: str, *, role: str) -> Iterator[Check]:
    """Judge that a component's packages are installed in exactly the pinned versions and held.

    Every installed member of the component's package family has to be held, not only the ones
    that the pins name: a library that moves alone breaks the set as surely as the driver does.
    """
    pins = ctx.pins(component)
    for name, version in pins:
        found = ctx.package(name)
        status = str(found.get("status", ""))
        state = f"{name} {found.get('version')}" if found else f"{name} not installed"
        if found and status != "ii":
            state += f" (dpkg state {status})"
        yield ctx.judge(
            f"{role}.package.{name}",
            ok=status == "ii" and found.get("version") == version,
            ran=f"dpkg-query -W {name}",
            found=state,
            expected=f"{name} {version} installed",
            fix=f"run playbooks/deploy-base.yml, or the {role} role alone, on this host",
        )
    loose = unheld(ctx, component)
    yield ctx.judge(
        f"{role}.held",
        ok=not loose,
        ran="apt-mark showhold",
        found=f"not held: {', '.join(loose)}" if loose else "all held",
        expected="every installed package of the family on hold",
        fix=f"sudo apt-mark hold {' '.join(loose)}; or rerun the {role} role",
    )


def unheld(ctx: Context, component: str) -> list[str]:
    """Return installed packages of a component's family that are not on hold, sorted."""
    names = {name for name, _ in ctx.pins(component)}
    return sorted(
        name
        for name, found in (ctx.node.get("packages") or {}).items()
        if found.get("status") == "ii"
        and not found.get("hold")
        and (name in names or in_family(component, name))
    )
