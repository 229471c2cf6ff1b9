"""From raw inventory variables to a `Site`: validate, derive, check; report everything at once."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from railweld import names
from railweld.errors import RailweldError
from railweld.site.inventory import (
    RawInventory,
    ValueProblem,
    load_inventory,
)
from railweld.site.model import Gpu, Hca, Host, Site, Switch, SwitchPort, expand_port
from railweld.site.problem import Problem, Severity, SiteError, merge
from railweld.site.variables import (
    PATTERN_WORDS,
    HcaOverride,
    HostVariables,
    Mirror,
    Partition,
    Rail,
    Scope,
    SiteVariables,
    Uplink,
    fields,
)
from railweld.versions import Resolved, load_set

PREFIX: Final = names.SITE_VARIABLE_PREFIX
REFERENCE: Final = "docs/reference/site.md"
NODE_GROUPS: Final = (
    names.GROUP_GPU_NODES,
    names.GROUP_CONTROL_PLANE,
    names.GROUP_SLURM_HEAD,
    names.GROUP_TIME_SERVERS,
)
KNOWN_GROUPS: Final = (*NODE_GROUPS, *names.SWITCH_GROUPS)

_DIGITS = re.compile(r"(\d+)$")
_SHOWN = 80
_LOGIN = re.compile(r"://[^/@\s]*@")


class Description:
    """The description while it is being read: valid values so far, and what was wrong."""

    def __init__(self, raw: RawInventory) -> None:
        self.raw = raw
        self.problems: list[Problem] = list(raw.problems)
        members = {group: raw.groups.get(group, ()) for group in KNOWN_GROUPS}
        in_site = {host for hosts in members.values() for host in hosts}
        switches = {host for group in names.SWITCH_GROUPS for host in members[group]}
        self.names = [name for name in raw.hosts if name in in_site]
        self.switch_names = [name for name in self.names if name in switches]
        self.node_names = [name for name in self.names if name not in switches]
        #: Site variables that are valid, by field name, and which host has which value.
        self.site: dict[str, Any] = {}
        self.spread: dict[str, dict[str, Any]] = {}
        #: Variables that did not validate: anywhere, and on which host.
        self.invalid: set[str] = set()
        self.invalid_for: set[tuple[str, str]] = set()
        self.host_values: dict[str, dict[str, Any]] = {}
        self.switch_values: dict[str, dict[str, Any]] = {}
        self.hosts: dict[str, Host] = {}
        self.switches: dict[str, Switch] = {}
        self.versions: Resolved | None = None

    def report(
        self,
        id: str,  # noqa: A002 - the field's own name
        *,
        found: object,
        expected: object,
        fix: str,
        host: str = "",
        hosts: Sequence[str] = (),
        key: str = "",
        path: Sequence[str | int] = (),
        severity: Severity = "error",
        file: str | None = None,
    ) -> None:
        """Add a finding; the file and line are looked up from host, key and path."""
        where = host or (hosts[0] if hosts else "")
        if file is None:
            file = self.place(where, key, path)
        self.problems.append(
            Problem(
                severity=severity,
                id=id,
                file=file,
                key=key + dotted(path),
                host=where,
                found=str(found),
                expected=str(expected),
                fix=fix,
                hosts=tuple(hosts),
            )
        )

    def address(self, name: str) -> str:
        """Where a node or switch is reached."""
        node = self.hosts.get(name)
        return node.address if node is not None else self.switches[name].address

    def place(self, host: str, key: str, path: Sequence[str | int] = ()) -> str:
        """`file:line` of a variable, or the inventory file of the host, or the inventory."""
        owner = self.raw.hosts.get(host)
        if owner is None:
            owner = next((h for h in self.raw.hosts.values() if key in h), None)
        if owner is not None and key in owner:
            place = owner.origin(key, path)
            if place:
                return place
        return self.raw.place_of_host(host)


def dotted(path: Sequence[str | int]) -> str:
    """`[1].port` for (1, "port")."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def near(word: str, known: Sequence[str]) -> str:
    """The known word that was probably meant, or nothing."""
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.75)), "")


def load_site(
    sources: Sequence[str],
    extra_vars: Mapping[str, Any] | None = None,
    vault_password_file: str | None = None,
    versions_dir: Path | str | None = None,
) -> Site:
    """Read, build and check a site.

    Raises:
        SiteError: everything that is wrong with the description.
    """
    return require_site(load_inventory(sources, extra_vars, vault_password_file), versions_dir)


def require_site(raw: RawInventory, versions_dir: Path | str | None = None) -> Site:
    """Build and check a site of an inventory that has been read.

    Raises:
        SiteError: everything that is wrong with the description.
    """
    site, problems = build_site(raw, versions_dir)
    if site is None:
        raise SiteError(problems)
    return site


def build_site(
    raw: RawInventory, versions_dir: Path | str | None = None
) -> tuple[Site | None, list[Problem]]:
    """Build the model and check it.

    Returns:
        The site, or None if there is any error, and all findings, errors first.
    """
    from railweld.site.check import check  # noqa: PLC0415 - the checks need this module's types

    description = Description(raw)
    _read_variables(description)
    _resolve_versions(description, versions_dir)
    _derive_hosts(description)
    _derive_switches(description)
    site = _assemble(description)
    check(description, site)
    problems = merge(description.problems)
    if any(problem.is_error for problem in problems):
        return None, problems
    return site, problems


# --- variables ---------------------------------------------------------------------------------


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    if not field.metadata:
        return TypeAdapter(cast("type[Any]", field.annotation))
    return TypeAdapter(Annotated.__class_getitem__((field.annotation, *field.metadata)))  # type: ignore[attr-defined] # built at run time


class _Reader:
    """Validates each distinct value once, however many hosts inherit it."""

    def __init__(self, description: Description) -> None:
        self._description = description
        self.known = fields()
        #: Unknown names: what was probably meant ("" if nothing), None if they are not ours.
        self.meant: dict[str, str | None] = {}
        self._adapters = {key: _adapter(field) for key, (_, field) in self.known.items()}
        self._seen: dict[tuple[str, Hashable], tuple[bool, Any]] = {}

    def read(self, host: str, key: str) -> tuple[bool, Any]:
        """Validity and value of one variable of one host; findings are reported."""
        try:
            value, token = self._description.raw.hosts[host].read(key)
        except ValueProblem as error:
            self._description.problems.append(error.problem)
            return False, None
        memo = (key, token)
        if token is not None and memo in self._seen:
            valid, result = self._seen[memo]
        else:
            valid, result = self._seen[memo] = self._validate(key, value)
        if valid:
            return True, result
        for detail in result:
            self._description.report(host=host, key=key, **detail)
        return False, None

    def _validate(self, key: str, value: Any) -> tuple[bool, Any]:
        try:
            return True, self._adapters[key].validate_python(value)
        except ValidationError as error:
            return False, list(self._explain(key, value, error))

    def _explain(self, key: str, value: Any, error: ValidationError) -> Iterator[dict[str, Any]]:
        secret = "Secret" in str(self.known[key][1].annotation)
        by_path: dict[tuple[str | int, ...], dict[str, Any]] = {}
        for item in error.errors(include_url=False):
            path = _real_path(value, item["loc"], item["type"])
            detail = _words(key, path, cast("dict[str, Any]", item))
            if secret:
                detail["found"] = "a value of the wrong type (hidden)"
            if path in by_path:  # alternatives of a union: any of them would do
                by_path[path]["expected"] += f" or {detail['expected']}"
            else:
                by_path[path] = {**detail, "path": path}
        yield from by_path.values()


def _real_path(value: Any, loc: Sequence[str | int], kind: str) -> tuple[str | int, ...]:
    """The part of pydantic's location that exists in the value (the rest names union members)."""
    path: list[str | int] = []
    for position, step in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(value, Mapping) and (step in value or (last and kind == "missing")):
            path.append(step)
            value = value.get(step)
        elif isinstance(value, (list, tuple)) and isinstance(step, int) and step < len(value):
            path.append(step)
            value = value[step]
    return tuple(path)


def _words(key: str, path: tuple[str | int, ...], item: dict[str, Any]) -> dict[str, Any]:
    kind, given, context = item["type"], item["input"], item.get("ctx", {})
    fix = f"correct the value; {REFERENCE} explains {key}"
    if kind == "extra_forbidden":
        allowed = _allowed_keys(key, path)
        guess = near(str(path[-1]), allowed)
        return {
            "id": "variable.unknown_key",
            "found": f"unknown key {path[-1]!r}",
            "expected": f"one of {', '.join(allowed)}" if allowed else "no such key",
            "fix": f"did you mean {guess}?" if guess else "remove it",
        }
    if kind == "missing":
        return {
            "id": "variable.missing_key",
            "found": "nothing",
            "expected": f"{path[-1]} to be given",
            "fix": f"add it; {REFERENCE} explains {key}",
        }
    expected = item["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        expected = PATTERN_WORDS.get(context.get("pattern", ""), expected)
    elif kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context.get("expected", ""))
        guess = near(str(given), choices)
        fix = f"did you mean {guess}?" if guess else fix
    return {"id": "variable.type", "found": show(given), "expected": expected, "fix": fix}


def _allowed_keys(key: str, path: tuple[str | int, ...]) -> list[str]:
    parts: dict[str, type[BaseModel]] = {
        "railweld_rails": Rail,
        "railweld_hca_overrides": HcaOverride,
        "railweld_partitions": Partition,
        "railweld_mirrors": Mirror,
        "railweld_uplinks": Uplink,
    }
    return list(parts[key].model_fields) if key in parts and len(path) > 1 else []


def show(value: Any) -> str:
    """A value as an operator would write it, shortened, and without the login of an address."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = f"text {value!r}" if isinstance(value, str) else repr(value)
    text = _LOGIN.sub("://(hidden)@", text)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _read_variables(description: Description) -> None:
    reader = _Reader(description)
    site_values: dict[str, dict[str, Any]] = {}
    for name in description.names:
        values: dict[Scope, dict[str, Any]] = {Scope.HOST: {}, Scope.SWITCH: {}}
        for key in description.raw.hosts[name]:
            if key not in reader.known:
                _unknown(description, reader, name, key)
                continue
            scope, _ = reader.known[key]
            field = key.removeprefix(PREFIX)
            valid, value = reader.read(name, key)
            if not valid:
                description.invalid.add(key)
                description.invalid_for.add((key, name))
            elif scope is Scope.SITE:
                site_values.setdefault(field, {})[name] = value
            else:
                values[scope][field] = value
        if name in description.switch_names:
            description.switch_values[name] = values[Scope.SWITCH]
        else:
            description.host_values[name] = values[Scope.HOST]
    description.spread = site_values
    # One host's value stands for the site; the check refuses the others if they differ.
    description.site = {field: next(iter(v.values())) for field, v in site_values.items()}


def _unknown(description: Description, reader: _Reader, host: str, key: str) -> None:
    if key not in reader.meant:
        head, _, rest = key.partition("_")
        if key.startswith(PREFIX):
            # Without the prefix, which would make everything look alike.
            ours = [known.removeprefix(PREFIX) for known in reader.known]
            meant = near(key.removeprefix(PREFIX), ours)
            reader.meant[key] = PREFIX + meant if meant else ""
        elif rest and near(head, ["railweld"]):
            reader.meant[key] = PREFIX + rest
        else:
            reader.meant[key] = None  # a variable of Ansible or of the user
    guess = reader.meant[key]
    if guess is None:
        return
    description.report(
        "variable.unknown",
        host=host,
        key=key,
        found="a variable that railweld does not know",
        expected=guess or f"a variable of {REFERENCE}",
        fix=f"did you mean {guess}?" if guess else "remove it, or use a name of your own",
    )


# --- versions ----------------------------------------------------------------------------------


def _resolve_versions(description: Description, directory: Path | str | None) -> None:
    wanted = description.site.get("version_set")
    if wanted is None:
        return
    key = f"{PREFIX}version_set"
    try:
        base = load_set(wanted, directory)
        description.versions = base
        key = f"{PREFIX}version_overrides"
        description.versions = base.resolve(description.site.get("version_overrides", {}))
    except RailweldError as error:
        found, _, expected = str(error).partition(", expected ")
        description.report(
            "versions.unknown",
            key=key,
            found=found.rpartition("found ")[2],
            expected=expected or "a version set and components that exist",
            fix=f"see versions/; {REFERENCE} explains {key}",
        )


# --- hosts and switches ------------------------------------------------------------------------


def _derive_hosts(description: Description) -> None:
    for name, values in description.host_values.items():
        raw = description.raw.hosts[name]
        variables = HostVariables.model_construct(**values)
        index = values.get("node_index")
        if index is None and (digits := _DIGITS.search(name)):
            index = int(digits[1])
        is_gpu_node = names.GROUP_GPU_NODES in raw.groups
        gpu = None
        if is_gpu_node and variables.gpu_count and variables.gpu_model:
            gpu = Gpu(
                count=variables.gpu_count,
                model=variables.gpu_model,
                persistence=variables.gpu_persistence,
                ecc=variables.gpu_ecc,
                mig=variables.gpu_mig,
            )
        versions = description.versions.versions if description.versions else None
        chosen = dict(values)
        if versions is not None:
            if chosen.get("driver_modules") is None:
                chosen["driver_modules"] = versions.driver.modules
            if chosen.get("cuda_compat") is None:
                chosen["cuda_compat"] = versions.cuda.compat.enabled
        description.hosts[name] = Host.model_construct(
            **chosen,
            name=name,
            groups=raw.groups,
            address=_address(description, name),
            index=index,
            gpu=gpu,
            hcas=_hcas(description, name, variables, index) if is_gpu_node else (),
        )


def _address(description: Description, name: str) -> str:
    try:
        return str(description.raw.hosts[name].get("ansible_host") or name)
    except ValueProblem as error:
        description.problems.append(error.problem)
        return name


def _hcas(
    description: Description, name: str, variables: HostVariables, index: int | None
) -> tuple[Hca, ...]:
    overrides = dict(variables.hca_overrides)
    hcas = []
    for position, rail in enumerate(variables.rails):
        override = overrides.pop(rail.hca, None) or HcaOverride()
        port = override.port or rail.port
        if port is not None and "{" in port:
            port = _port(description, name, position, port, index)
        hcas.append(
            Hca.model_construct(
                name=rail.hca,
                rail=rail.rail,
                netdev=override.netdev or rail.netdev,
                address=_rail_address(description, name, (position, rail), override, index),
                subnet=rail.subnet,
                gateway=rail.gateway,
                rate_gbps=override.rate_gbps or rail.rate_gbps,
                switch=override.switch or rail.switch,
                port=port,
            )
        )
    known = [rail.hca for rail in variables.rails]
    for stray in overrides:
        guess = near(stray, known)
        description.report(
            "hca.override_without_rail",
            host=name,
            key=f"{PREFIX}hca_overrides",
            path=(stray,),
            found=f"{stray}, which is on no rail of this host",
            expected=f"one of {', '.join(known)}" if known else "an HCA of railweld_rails",
            fix=f"did you mean {guess}?" if guess else "remove it",
        )
    return tuple(hcas)


def _port(
    description: Description, name: str, position: int, port: str, index: int | None
) -> str | None:
    where: dict[str, Any] = {
        "host": name,
        "key": f"{PREFIX}rails",
        "path": (position, "port"),
    }
    if index is None:
        _no_index(description, name)
        return None
    expanded = expand_port(port, index)
    if "{" in expanded or "}" in expanded or re.search(r"-\d", expanded):
        description.report(
            "switch_port.template",
            **where,
            found=f"{port!r}, which gives {expanded!r}",
            expected="{index}, {index+16} or {index*2-1} as the only placeholder, above 0",
            fix="correct the port",
        )
        return None
    return expanded


def _no_index(description: Description, name: str) -> None:
    description.report(
        "host.no_index",
        host=name,
        key=f"{PREFIX}node_index",
        found=f"no digits at the end of {name}",
        expected="a number: rail addresses and switch ports follow from it",
        fix=f"set {PREFIX}node_index in host_vars/{name}.yml",
    )


_NETWORKS: dict[str, ipaddress.IPv4Network | None] = {}


def network(subnet: str) -> ipaddress.IPv4Network | None:
    """The network, or None if the text is not one; remembered, since a site has few."""
    if subnet not in _NETWORKS:
        try:
            _NETWORKS[subnet] = ipaddress.IPv4Network(subnet)
        except ValueError:
            _NETWORKS[subnet] = None
    return _NETWORKS[subnet]


def _rail_address(
    description: Description,
    name: str,
    numbered: tuple[int, Rail],
    override: HcaOverride,
    index: int | None,
) -> str | None:
    position, rail = numbered
    if rail.subnet is None:
        return None
    where: dict[str, Any] = {"host": name, "key": f"{PREFIX}rails", "path": (position, "subnet")}
    net = network(rail.subnet)
    if net is None:
        description.report(
            "rail.subnet",
            **where,
            found=show(rail.subnet),
            expected="an IPv4 network without host bits, e.g. 10.10.1.0/24",
            fix="correct the subnet",
        )
        return None
    if override.address is not None:
        where |= {"key": f"{PREFIX}hca_overrides", "path": (rail.hca, "address")}
        try:
            address = ipaddress.IPv4Address(override.address.partition("/")[0])
        except ValueError:
            description.report(
                "rail.address",
                **where,
                found=show(override.address),
                expected="an IPv4 address",
                fix="correct the address",
            )
            return None
        source = f"the override {override.address}"
    else:
        if index is None:
            _no_index(description, name)
            return None
        value = int(net.network_address) + index
        address = ipaddress.IPv4Address(min(value, 2**32 - 1))
        source = f"index {index}"
    reason = ""
    if address not in net:
        reason = f"outside {net}"
    elif net.prefixlen < 31 and address == net.network_address:
        reason = f"the network address of {net}"
    elif net.prefixlen < 31 and address == net.broadcast_address:
        reason = f"the broadcast address of {net}"
    if reason:
        description.report(
            "rail.address_unusable",
            **where,
            found=f"{address} ({source}), {reason}",
            expected=f"a host address of {net}",
            fix=f"give a larger subnet, another {PREFIX}node_index, or an address in "
            f"{PREFIX}hca_overrides",
        )
        return None
    return f"{address}/{net.prefixlen}"


def _derive_switches(description: Description) -> None:
    ports: dict[str, list[SwitchPort]] = {name: [] for name in description.switch_names}
    cable = {
        name: description.switch_values[name].get("cable_m", 5) for name in description.switch_names
    }
    for host in description.hosts.values():
        for hca in host.hcas:
            if hca.switch in ports and hca.port is not None:
                ports[hca.switch].append(
                    SwitchPort.model_construct(
                        name=hca.port,
                        kind="host",
                        peer=host.name,
                        peer_port=hca.netdev or hca.name,
                        rate_gbps=hca.rate_gbps,
                        cable_m=cable[hca.switch],
                        rail=hca.rail,
                        channel=None,
                    )
                )
    written = {
        (name, uplink.port, uplink.peer, uplink.peer_port)
        for name in description.switch_names
        for uplink in description.switch_values[name].get("uplinks", ())
    }
    for name in description.switch_names:
        for uplink in description.switch_values[name].get("uplinks", ()):
            length = uplink.cable_m or cable[name]
            ends = [(name, uplink.port, uplink.peer, uplink.peer_port)]
            back = (uplink.peer, uplink.peer_port, name, uplink.port)
            if back not in written and uplink.peer in ports:
                ends.append(back)  # a cable has two ends; one of them was enough to write
            for switch, port, peer, peer_port in ends:
                ports[switch].append(
                    SwitchPort.model_construct(
                        name=port,
                        kind="uplink",
                        peer=peer,
                        peer_port=peer_port,
                        rate_gbps=uplink.rate_gbps,
                        cable_m=length,
                        rail=None,
                        channel=uplink.channel,
                    )
                )
    for name in description.switch_names:
        description.switches[name] = Switch.model_construct(
            **description.switch_values[name],
            name=name,
            groups=description.raw.hosts[name].groups,
            address=_address(description, name),
            ports=tuple(ports[name]),
        )


# --- the site ----------------------------------------------------------------------------------


def _assemble(description: Description) -> Site | None:
    """The site, if what it cannot be without is there. The checks may still refuse it."""
    values = dict(description.site)
    if description.versions is None or "site" not in values:
        return None
    site = SiteVariables.model_construct(**values)
    if site.lossless_queue is None:
        values["lossless_queue"] = site.lossless_priority
    values["partitions"] = tuple(
        partition.model_copy(update={"hosts": partition_hosts(description, partition)})
        for partition in site.partitions
    )
    in_site = set(description.names)
    return Site.model_construct(
        **values,
        versions=description.versions,
        hosts=description.hosts,
        switches=description.switches,
        groups={
            group: tuple(host for host in hosts if host in in_site)
            for group, hosts in description.raw.groups.items()
        },
    )


def partition_hosts(description: Description, partition: Partition) -> tuple[str, ...]:
    """Members of a partition, from its group and its list."""
    members = (*description.raw.groups.get(partition.group or "", ()), *partition.hosts)
    return tuple(dict.fromkeys(name for name in members if name in description.hosts))
