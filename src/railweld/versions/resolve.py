"""Version sets: load a file, apply a site's overrides, ask for packages, judge the rules."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from railweld.errors import RailweldError, UsageError
from railweld.versions.model import (
    Component,
    Package,
    PackageList,
    Repo,
    RepositoryId,
    SetFile,
    VendorRepository,
)
from railweld.versions.rules import FACTS, Fact, RuleFile, RuleResult, version_key

RULES_FILE = "rules.yml"
#: Components that come from the vendor repository which a host names.
VENDOR_COMPONENTS = ("driver", "fabric_manager", "cuda", "nccl")

_Model = TypeVar("_Model", bound=BaseModel)


class VersionsError(RailweldError):
    """A version set, an override or a package that cannot be used."""


class Change(NamedTuple):
    """A component whose version the site overrides."""

    component: str
    before: str
    after: str


class Resolved:
    """A version set with a site's overrides applied."""

    def __init__(
        self, versions: SetFile, rules: RuleFile, changed: tuple[Change, ...] = ()
    ) -> None:
        self.versions = versions
        self.changed = changed
        self._rules = rules

    @property
    def name(self) -> str:
        """Name of the set."""
        return self.versions.name

    def component(self, name: str) -> Component:
        """Return one component; raises VersionsError for an unknown name."""
        components = self.versions.components()
        if name not in components:
            msg = (
                f"version set {self.name}: found component {name!r}, expected one of "
                f"{', '.join(components)}"
            )
            raise VersionsError(msg)
        return components[name]

    def absent(self, component: str, repository: str) -> str | None:
        """Say why the vendor repository has no packages of the component, or None if it has."""
        listing = self._listing(component, repository)
        if listing is None:
            return f"{self.name} lists no packages of {component} for {repository}"
        return listing.absent or None

    def packages(
        self,
        component: str,
        repository: str,
        *,
        modules: str | None = None,
        gpudirect: str = "dmabuf",
        compat: bool | None = None,
    ) -> list[Package]:
        """Exact packages of a component in a vendor repository.

        Args:
            component: see `SetFile`.
            repository: `ubuntu2204`, `ubuntu2404` or `debian12`.
            modules: `open` or `proprietary`; None takes the set's choice.
            gpudirect: `dmabuf` or `peermem`.
            compat: whether cuda-compat belongs to it; None takes the set's choice.

        Raises:
            VersionsError: the repository never had the component (see `absent`).
        """
        reason = self.absent(component, repository)
        listing = self._listing(component, repository)
        if reason is not None or listing is None:
            msg = (
                f"{component} {self.component(component).version} is not in the vendor repository "
                f"{repository}: {reason}"
            )
            raise VersionsError(msg)
        changed = any(change.component == component for change in self.changed)
        words = self.component(component).substitutions
        modules = modules or self.versions.driver.modules
        compat = self.versions.cuda.compat.enabled if compat is None else compat
        return [
            Package(
                name=spec.name,
                version=(
                    spec.overridden if changed and spec.overridden is not None else spec.version
                ).format_map(words),
            )
            for spec in listing.packages
            if spec.wanted(modules=modules, gpudirect=gpudirect, compat=compat)
        ]

    def repository(self, repository: str, kind: str) -> Repo | None:
        """Return the vendor's public apt repository, or None when there is none.

        `os` has none here: it is whatever the distribution's mirror of the site is.
        """
        spec = self.versions.repositories.get(cast("RepositoryId", kind))
        if spec is None:
            return None
        path = spec.paths.get(cast("VendorRepository", repository), "")
        if spec.paths and not path:
            return None
        kubernetes = ".".join(self.versions.kubernetes.version.split(".")[:2])
        words = {"path": path, "kubernetes": kubernetes, "doca": self.versions.doca.version}
        return Repo(
            url=spec.url.format_map(words),
            suite=spec.suite,
            components=spec.components,
            key_url=spec.key_url.format_map(words),
            key_fingerprint=spec.key_fingerprint,
            source=spec.source,
        )

    def facts(self) -> dict[str, Fact]:
        """What the set itself says, under the names that rules use."""
        versions = self.versions
        return {
            **{
                name: component.version
                for name, component in versions.components().items()
                if name in FACTS
            },
            "modules": versions.driver.modules,
            "cuda_compat": versions.cuda.compat.enabled,
            "cuda_compat_driver": versions.cuda.compat.driver,
            "cuda_compat_branches": versions.cuda.compat.branches,
            "nccl_cuda": versions.nccl.cuda,
            "slurm_origin": versions.slurm.origin,
            "slurm_package": self._slurm_package(),
            **{name: version for name, version in versions.charts.items() if name in FACTS},
        }

    def _slurm_package(self) -> str:
        """Version of slurmctld's package where the set's origin has one."""
        listing = self.versions.slurm.packages.get(
            cast("VendorRepository", self.versions.slurm.origin)
        )
        pins = (
            [spec.version for spec in listing.packages if spec.name == "slurmctld"]
            if listing
            else []
        )
        return pins[0] if pins else "own build"

    def judge(self, facts: Mapping[str, Any]) -> list[RuleResult]:
        """Return every rule that does not hold for the set together with `facts`.

        Args:
            facts: options and observations of the site, see `FACTS`. None means not known.

        Raises:
            VersionsError: a fact that no rule knows (a misspelt name would silence rules).
        """
        unknown = sorted(set(facts) - set(FACTS))
        if unknown:
            msg = f"found unknown facts {', '.join(unknown)}, expected {', '.join(FACTS)}"
            raise VersionsError(msg)
        known = self.facts() | {
            name: _fact(value) for name, value in facts.items() if value is not None
        }
        # The kubelet's own default; a site that sets it otherwise says so.
        known.setdefault("kubelet_fail_cgroup_v1", _at_least(str(known["kubernetes"]), "1.35"))
        own = self._driver_cuda(str(known["driver"]))
        if own is not None:
            known.setdefault("driver_cuda", own)
        carried = str(known["cuda"]) if known["cuda_compat"] is True else None
        candidates = [text for text in (own, carried) if text is not None]
        if candidates:
            known.setdefault("supported_cuda", max(candidates, key=_key))
        results = [result for rule in self._rules.rules if (result := rule.judge(known))]
        return self._absences(known) + results

    def _driver_cuda(self, driver: str) -> str | None:
        """Newest CUDA of the driver; an unlisted branch counts as the next lower listed one."""
        table = self._rules.driver_cuda
        lower = [branch for branch in table if _key(branch) <= _key(driver.split(".", 1)[0])]
        return table[max(lower, key=_key)] if lower else None

    def _absences(self, facts: Mapping[str, Fact]) -> list[RuleResult]:
        repository = facts.get("vendor_repository")
        if not isinstance(repository, str):
            return []
        wanted = [name for name in VENDOR_COMPONENTS if name != "fabric_manager"]
        if facts.get("nvswitch") is True:
            wanted.append("fabric_manager")
        if facts.get("rdma_stack") == "doca":
            wanted.append("doca")
        results = []
        for name in wanted:
            reason = self.absent(name, repository)
            if reason is None:
                continue
            having = [
                other
                for other, listing in self.component(name).packages.items()
                if not listing.absent
            ]
            results.append(
                RuleResult(
                    rule="package-absent",
                    severity="error",
                    found=f"{name} {self.component(name).version} from {repository}",
                    expected=f"a vendor repository that has it: {', '.join(having) or 'none'}",
                    reason=reason,
                    source=f"versions/{self.name}.yml, {name}.packages.{repository}",
                    fix=(
                        "set railweld_vendor_repository to one that has it (a mirror of it serves "
                        "other Debian-family releases too), or take another version set"
                    ),
                )
            )
        return results

    def _listing(self, component: str, repository: str) -> PackageList | None:
        return self.component(component).packages.get(cast("VendorRepository", repository))


class VersionSet(Resolved):
    """A version set as it stands in its file."""

    def resolve(self, overrides: Mapping[str, str] | None = None) -> Resolved:
        """Apply `railweld_version_overrides`.

        The fabric manager follows the driver unless it is named too.

        Raises:
            VersionsError: unknown component, or a version whose package names are not known.
        """
        updates: dict[str, Component] = {}
        changed: list[Change] = []
        wishes = dict(overrides or {})
        if "driver" in wishes:
            wishes.setdefault("fabric_manager", wishes["driver"])
        for name, wanted in wishes.items():
            component = self.component(name)
            update: dict[str, str] = {"version": wanted}
            before, after = component.version, wanted
            if name == "nccl":
                # NCCL's builds are named after the CUDA release: 2.17.1+cuda12.1.
                version, _, build = wanted.partition("+cuda")
                cuda = self.versions.nccl.cuda
                update = {"version": version, "cuda": build or cuda}
                before, after = f"{before}+cuda{cuda}", f"{version}+cuda{build or cuda}"
            if not re.fullmatch(component.overridable or re.escape(component.version), after):
                allowed = component.overridable or component.version
                msg = (
                    f"railweld_version_overrides.{name}: found {wanted}, expected a version like "
                    f"{allowed}: {self.name} knows the package names of that only. Take a version "
                    f"set that has {name} {wanted}, or write one (copy versions/{self.name}.yml)"
                )
                raise VersionsError(msg)
            if before != after:
                updates[name] = component.model_copy(update=update)
                changed.append(Change(name, before, after))
        versions = self.versions.model_copy(update=updates)
        return Resolved(versions, self._rules, tuple(changed))


def versions_directory(directory: Path | str | None = None) -> Path:
    """Find the folder of version sets.

    In this order: the argument, `$RAILWELD_VERSIONS`, the folder inside an installed package,
    `versions/` of the checkout that this file belongs to, `versions/` below the working directory.
    """
    given = directory or os.environ.get("RAILWELD_VERSIONS")
    if given:
        return Path(given)
    here = Path(__file__).resolve()
    candidates = [
        here.parent / "data",
        *(parent / "versions" for parent in here.parents[2:5]),
        Path.cwd() / "versions",
    ]
    for candidate in candidates:
        if (candidate / RULES_FILE).is_file():
            return candidate
    msg = (
        f"version sets: found no {RULES_FILE} in {', '.join(map(str, candidates))}; "
        "set RAILWELD_VERSIONS to the folder that has it"
    )
    raise UsageError(msg)


def available_sets(directory: Path | str | None = None) -> list[str]:
    """Names of the version sets that can be loaded."""
    folder = versions_directory(directory)
    return sorted(path.stem for path in folder.glob("*.yml") if path.name != RULES_FILE)


def load_set(name: str, directory: Path | str | None = None) -> VersionSet:
    """Load `versions/NAME.yml` and the rules beside it.

    Raises:
        UsageError: there is no such set.
        VersionsError: the file is not a valid version set.
    """
    folder = versions_directory(directory)
    path = folder / f"{name}.yml"
    if not path.is_file():
        msg = (
            f"railweld_version_set: found {name!r}, expected one of "
            f"{', '.join(available_sets(folder)) or 'none'} (in {folder})"
        )
        raise UsageError(msg)
    versions = _read(path, SetFile)
    if versions.name != name:
        msg = f"{path}: name: found {versions.name!r}, expected {name!r} (the file's own)"
        raise VersionsError(msg)
    return VersionSet(versions, load_rules(folder))


def load_rules(directory: Path | str | None = None) -> RuleFile:
    """Load `versions/rules.yml`."""
    path = versions_directory(directory) / RULES_FILE
    if not path.is_file():
        msg = f"{path}: not found, expected the compatibility rules beside the version sets"
        raise UsageError(msg)
    return _read(path, RuleFile)


def _read(path: Path, model: type[_Model]) -> _Model:
    return cast("_Model", _parse(path, path.stat().st_mtime_ns, model))


@cache
def _parse(path: Path, _changed: int, model: type[BaseModel]) -> BaseModel:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        # Through JSON: strict there still takes an array for a tuple.
        return model.model_validate_json(json.dumps(data))
    except yaml.YAMLError as error:
        msg = f"{path}: found text that is not YAML: {error}"
        raise VersionsError(msg) from error
    except (ValidationError, TypeError) as error:
        msg = f"{path}: {_explain(error)}"
        raise VersionsError(msg) from error


def _explain(error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return f"found a value that JSON cannot carry ({error}); put it in quotes"
    return "; ".join(
        f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']} (found {item['input']!r})"
        for item in error.errors()
    )


def _fact(value: Any) -> Fact:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in value)
    return str(value)


def _key(text: str) -> tuple[int, ...]:
    return version_key(text) or ()


def _at_least(version: str, floor: str) -> bool:
    return _key(version) >= _key(floor)
