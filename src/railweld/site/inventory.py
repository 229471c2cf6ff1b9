"""Reads an Ansible inventory through Ansible's own code: the values, and where each was written.

Whatever `ansible-playbook -i` accepts is accepted here, with the same precedence, because the same
classes do the work: YAML, INI, folders, group_vars, host_vars, vault, ranges, scripts, plugins.
Ansible keeps with each value the file and line that it came from (its `Origin` tag); errors use it.

Values are kept as written. A value with Jinja in it is rendered only when it is asked for: most
values of a large site have none, and rendering is what would make 1,280 hosts slow.

This is the only module that touches Ansible's internal names; they are fixed by the pin on
ansible-core in pyproject.toml.
"""

# Ansible's own modules are untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import jinja2
from ansible import constants
from ansible._internal._datatag._tags import Origin, TrustedAsTemplate
from ansible._internal._display_utils import DeferredWarningContext
from ansible._internal._templating._engine import TemplateEngine
from ansible._internal._templating._jinja_common import UndecryptableVaultError
from ansible.cli import CLI
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.module_utils._internal._datatag import AnsibleTagHelper
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.splitter import parse_kv
from ansible.parsing.vault import AnsibleVaultError, EncryptedString, VaultSecretsContext
from ansible.plugins.loader import cache_loader, init_plugin_loader, vars_loader
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from jinja2 import nodes

from railweld.errors import UsageError
from railweld.site.problem import Problem, SiteError, merge

EXTRA_VARS: Final = "-e (extra variables)"
_JINJA = ("{{", "{%", "{#")
_ORIGIN = re.compile(r"Origin: (/.*?(?::\d+)?)(?::\d+)?$", re.MULTILINE)
_FAILED = re.compile(r"Failed to parse inventory with '(?:[a-z_]+\.)*(?P<plugin>[a-z_]+)' plugin")
#: Ansible's setting, an attribute that it makes when it reads its configuration.
_STOP_AT_FIRST: Final = "INVENTORY_ANY_UNPARSED_IS_FAILED"
_MISSING: Final = object()
_LOOKUPS: Final = frozenset({"lookup", "query", "q"})
#: These read what their arguments say and nothing of the host.
_LOOKUPS_WITHOUT_VARIABLES: Final = frozenset({"env", "file", "pipe", "url", "ini", "csvfile"})
_EVERYTHING: Final = frozenset({"vars"})


class ValueProblem(Exception):  # noqa: N818 - carries a finding, is not one of the program's errors
    """A value exists but cannot be had: undefined Jinja variable, vault without password."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.sentence())


class RawHost(Mapping[str, Any]):
    """One host's variables as a mapping; values are rendered and plain Python when read.

    Reading a value that cannot be rendered raises `ValueProblem`.
    """

    def __init__(
        self, name: str, groups: tuple[str, ...], variables: dict[str, Any], inventory: RawInventory
    ) -> None:
        self.name = name
        self.groups = groups
        self.variables = variables
        self._inventory = inventory
        self._engine: TemplateEngine | None = None

    def __getitem__(self, key: str) -> Any:
        return self.read(key)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __contains__(self, key: object) -> bool:
        return key in self.variables

    def raw(self, key: str) -> Any:
        """The value as written, with Ansible's tags."""
        return self.variables[key]

    def read(self, key: str) -> tuple[Any, Hashable | None]:
        """The value, and a token that is equal for hosts whose value is the very same.

        Most values come from group variables. The token lets callers judge such a value once
        instead of once per host; None means that nothing is known.
        """
        raw = self.variables[key]
        if not is_template(raw):
            return plain(raw), id(raw)
        token = self._inventory.shared_inputs(raw, self.variables)
        if token is None:
            return self._render(key, raw), None
        known = self._inventory.rendered.get(token, _MISSING)
        if known is _MISSING:
            try:
                known = self._render(key, raw)
            except ValueProblem as error:
                known = error
            self._inventory.rendered[token] = known
        if isinstance(known, ValueProblem):
            raise ValueProblem(replace(known.problem, key=key, host=self.name))
        return known, token

    def origin(self, key: str, path: Sequence[str | int] = ()) -> str:
        """`file:line` of a variable, or of the part of it that `path` leads to."""
        value = self.variables.get(key, _MISSING)
        if value is _MISSING:
            return ""
        places = [_place(value)]
        for step in path:
            try:
                if isinstance(value, Mapping):
                    # A key knows its line even where the value (true, null) cannot carry one.
                    places.append(_place(next((k for k in value if k == step), None)))
                value = value[step]
            except (LookupError, TypeError):
                break
            places.append(_place(value))
        found = next((place for place in reversed(places) if place), "")
        return found or self._inventory.place_of_key(self.name, key)

    def _render(self, key: str, raw: Any) -> Any:
        if self._engine is None:
            self._engine = TemplateEngine(
                loader=self._inventory.loader,
                variables={**self.variables, "hostvars": self._inventory.hostvars},
            )
        try:
            with DeferredWarningContext(variables={}):
                return plain(self._engine.template(raw))
        except AnsibleError as error:
            raise ValueProblem(self._explain(key, error)) from error

    def _explain(self, key: str, error: AnsibleError) -> Problem:
        text = _first_line(error)
        file = self.origin(key) or _place_of_error(error)
        if _caused_by(error, AnsibleVaultError, UndecryptableVaultError):
            return vault_problem(file=file, key=key, host=self.name, text=text)
        return Problem(
            severity="error",
            id="value.template",
            file=file,
            key=key,
            host=self.name,
            found=f"a template that cannot be rendered: {text}",
            expected="a template that Ansible can render, with every variable in it defined",
            fix=f"correct it; `ansible -i INVENTORY HOST -m debug -a var={key}` shows the same",
        )


class RawInventory:
    """Hosts, groups and variables of an inventory, before anything is judged."""

    def __init__(
        self,
        *,
        loader: Any,
        hostvars: Any,
        groups: Mapping[str, Iterable[str]],
        variables: Mapping[str, dict[str, Any]],
        sources: Sequence[str],
        manager: Any,
        extra_vars: Mapping[str, Any],
    ) -> None:
        self.sources = tuple(sources)
        self.problems: tuple[Problem, ...] = ()
        self.loader = loader
        self.hostvars = hostvars
        #: Rendered values by what went into them, see `shared_inputs`.
        self.rendered: dict[Hashable, Any] = {}
        self._names: dict[int, frozenset[str] | None] = {}
        self._manager = manager
        self._extra_vars = extra_vars
        self.groups: dict[str, tuple[str, ...]] = {
            name: tuple(hosts) for name, hosts in groups.items() if name != "all"
        }
        membership: dict[str, list[str]] = {name: [] for name in variables}
        for group, hosts in self.groups.items():
            for host in hosts:
                if host in membership and group != "ungrouped":
                    membership[host].append(group)
        self.hosts: dict[str, RawHost] = {
            name: RawHost(name, tuple(sorted(membership[name])), values, self)
            for name, values in variables.items()
        }

    def shared_inputs(self, raw: Any, variables: Mapping[str, Any]) -> Hashable | None:
        """Identity of a template and of every variable that it can reach, or None.

        Two hosts with equal identities get the same text, so it is rendered once. A template whose
        reach cannot be told from its text (a lookup of variables, for instance) has none.
        """
        inputs: dict[str, int] = {}
        waiting = [raw]
        while waiting:
            value = waiting.pop()
            if id(value) not in self._names:
                self._names[id(value)] = _names_in(value)
            names = self._names[id(value)]
            if names is None:
                return None
            for name in names - inputs.keys():
                reached = variables.get(name)
                inputs[name] = id(reached)
                if is_template(reached):
                    waiting.append(reached)
        return (id(raw), tuple(sorted(inputs.items())))

    def place_of_key(self, host: str, key: str) -> str:
        """`file:line` of the key whose value carries no tag itself (true, false, null)."""
        if key in self._extra_vars:
            return EXTRA_VARS
        entity = self._manager.hosts.get(host)
        if entity is None:
            return ""
        for layer in self._layers(entity):
            written = next((name for name in layer if name == key), None)
            if written is not None:
                return _place(written)
        return ""

    def place_of_host(self, host: str) -> str:
        """The inventory file that names the host, or the first inventory."""
        owner = self.hosts.get(host)
        written = _place(self._manager.hosts[host].name) if owner is not None else ""
        if not written and owner is not None:
            written = display_path(str(owner.variables.get("inventory_file") or ""))
        return written or (display_path(self.sources[0]) if self.sources else "")

    def _layers(self, entity: Any) -> Iterator[Mapping[str, Any]]:
        """Variables of a host by where they are written, the strongest first."""
        groups = sorted(
            entity.get_groups(), key=lambda g: (g.depth, g.priority, g.name), reverse=True
        )
        yield from self._files("host_vars", entity)
        yield entity.vars
        for group in groups:
            yield from self._files("group_vars", group)
        for group in groups:
            yield group.vars

    def _files(self, kind: str, entity: Any) -> Iterator[Mapping[str, Any]]:
        for source in reversed(self.sources):
            folder = Path(source) if Path(source).is_dir() else Path(source).parent
            base = folder / kind
            if not base.is_dir():
                continue
            for file in reversed(self.loader.find_vars_files(str(base.resolve()), entity.name)):
                data = self.loader.load_from_file(file, cache="all", trusted_as_template=True)
                if isinstance(data, Mapping):
                    yield data


def load_inventory(
    sources: Sequence[str],
    extra_vars: Mapping[str, Any] | None = None,
    vault_password_file: str | None = None,
) -> RawInventory:
    """Read inventories the way `ansible-playbook -i ... -e ...` would.

    Args:
        sources: files, folders, scripts or comma lists, as `-i` takes them.
        extra_vars: what `-e` would set, already parsed (`parse_extra_vars`).
        vault_password_file: as `--vault-password-file`; ansible.cfg and environment count too.

    Raises:
        SiteError: something cannot be read. Doubts are in `RawInventory.problems` instead.
    """
    _start_ansible()
    loader = DataLoader()
    paths = [_absolute(source) for source in sources]
    missing = [_missing_source(source) for source in paths if _is_missing(source)]
    if missing:
        raise SiteError(missing)
    has_secret = _load_vault_secrets(loader, vault_password_file)
    if not has_secret:
        locked = [_locked_file(path) for path in _encrypted_files(paths)]
        if locked:
            raise SiteError(locked)
    try:
        with DeferredWarningContext(variables={}) as context, _every_source_is_tried():
            manager = InventoryManager(loader, paths)
            raw = _read(loader, manager, paths, _tag_extra_vars(extra_vars or {}))
    except AnsibleError as error:
        raise SiteError([_unreadable(error)]) from error
    problems = merge(_warnings(context))
    if any(problem.is_error for problem in problems):
        raise SiteError(problems)
    if not raw.hosts:
        raise SiteError([_empty(paths)])
    raw.problems = tuple(problems)
    return raw


@contextmanager
def _every_source_is_tried() -> Iterator[None]:
    """Have Ansible warn of a source that it cannot read: each becomes a finding, with its reason.

    The repository's ansible.cfg lets playbooks stop at the first, with no reason in the error.
    """
    before = getattr(constants, _STOP_AT_FIRST)
    setattr(constants, _STOP_AT_FIRST, False)
    try:
        yield
    finally:
        setattr(constants, _STOP_AT_FIRST, before)


def inventory_from_task_vars(task_vars: Mapping[str, Any]) -> RawInventory:
    """The same, from the variables that a running play hands to an action plugin.

    Sees every host of the inventory (not only the play's) and what `-e` set. Facts, registered
    results and variables of the play are no part of the description and are not seen.
    """
    hostvars = task_vars["hostvars"]
    manager = hostvars._inventory
    sources = [_absolute(str(source)) for source in manager._sources]
    return _read(hostvars._loader, manager, sources, hostvars._variable_manager.extra_vars)


def _read(
    loader: Any, manager: Any, sources: Sequence[str], extra_vars: dict[str, Any]
) -> RawInventory:
    variable_manager = VariableManager(loader, manager)
    # Facts of earlier runs and files beside a playbook are no part of the description.
    variable_manager._fact_cache = cache_loader.get("ansible.builtin.memory")
    variable_manager.safe_basedir = False
    variable_manager._extra_vars = extra_vars
    return RawInventory(
        loader=loader,
        hostvars=HostVars(manager, variable_manager, loader),
        groups=manager.get_groups_dict(),
        variables={
            name: variable_manager.get_vars(host=host, include_hostvars=False, stage="all")
            for name, host in manager.hosts.items()
        },
        sources=sources,
        manager=manager,
        extra_vars=extra_vars,
    )


def default_sources() -> list[str]:
    """The inventory of ansible.cfg or ANSIBLE_INVENTORY."""
    return [str(source) for source in constants.config.get_config_value("DEFAULT_HOST_LIST")]


def parse_extra_vars(options: Iterable[str]) -> dict[str, Any]:
    """Parse `-e` options: `key=value`, a YAML or JSON mapping, or `@file`."""
    _start_ansible()
    loader = DataLoader()
    values: dict[str, Any] = {}
    for option in options:
        try:
            if option.startswith("@"):
                data = loader.load_from_file(option[1:], trusted_as_template=True)
            elif option[:1] in ("[", "{"):
                data = loader.load(TrustedAsTemplate().tag(option))
            else:
                data = parse_kv(TrustedAsTemplate().tag(option))
        except AnsibleError as error:
            raise UsageError(f"-e {option}: {_first_line(error)}") from error
        if not isinstance(data, Mapping) or "_raw_params" in data:
            raise UsageError(f"-e {option}: found no mapping, expected key=value, YAML or @file")
        values.update(data)
    return values


def is_template(value: Any) -> bool:
    """True if reading the value needs Ansible: Jinja in it, or an inline vault."""
    if isinstance(value, str):
        return any(mark in value for mark in _JINJA)
    if isinstance(value, Mapping):
        return any(is_template(item) for pair in value.items() for item in pair)
    if isinstance(value, (list, tuple)):
        return any(is_template(item) for item in value)
    return isinstance(value, EncryptedString)


def _names_in(value: Any) -> frozenset[str] | None:
    """Variables that a template names, or None if its text does not tell."""
    names: set[str] = set()
    for text in _texts(value):
        try:
            tree = jinja2.Environment(autoescape=True).parse(text)
        except jinja2.TemplateError:
            return None
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name in _LOOKUPS:
                first = call.args[0] if call.args else None
                kind = str(first.value) if isinstance(first, nodes.Const) else ""
                if kind.removeprefix("ansible.builtin.") not in _LOOKUPS_WITHOUT_VARIABLES:
                    return None
        # Loop variables are among them and do no harm: no host has a variable of that name.
        names |= {name.name for name in tree.find_all(nodes.Name)}
    return None if names & _EVERYTHING else frozenset(names - _LOOKUPS)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield str(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def plain(value: Any) -> Any:
    """The value as plain Python, without Ansible's tags, all the way down."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return AnsibleTagHelper.as_native_type(value)


def display_path(path: str) -> str:
    """A path as the operator would type it: relative to here if it is below here."""
    here = str(Path.cwd()) + os.sep
    return path[len(here) :] if path.startswith(here) else path


def vault_problem(*, file: str, key: str, host: str, text: str) -> Problem:
    """The finding for content that cannot be decrypted."""
    return Problem(
        severity="error",
        id="inventory.vault",
        file=file,
        key=key,
        host=host,
        found=f"encrypted content that cannot be opened ({text})",
        expected="the vault password that it was encrypted with",
        fix="give --vault-password-file, or set ANSIBLE_VAULT_PASSWORD_FILE",
    )


def _start_ansible() -> None:
    # Registers the collection finder; a second call only warns, so ask first.
    from ansible.utils.collection_loader._collection_config import (  # noqa: PLC0415 - its import registers
        AnsibleCollectionConfig,
    )

    if AnsibleCollectionConfig.collection_finder is None:
        init_plugin_loader()
    plugin = vars_loader.get("host_group_vars")
    if plugin is not None:
        # The plugin remembers for the life of the process which files exist; a long-lived
        # process (the lab, a test) must see files that were added since.
        module = __import__(type(plugin).__module__, fromlist=["FOUND"])
        module.FOUND.clear()
        module.NAK.clear()


def _absolute(source: str) -> str:
    return source if "," in source else str(Path(source).expanduser().absolute())


def _is_missing(source: str) -> bool:
    return "," not in source and not Path(source).exists()


def _missing_source(source: str) -> Problem:
    return Problem(
        severity="error",
        id="inventory.missing",
        file=display_path(source),
        key="",
        host="",
        found="no such file or folder",
        expected="an Ansible inventory",
        fix="check the path given with -i",
    )


def _load_vault_secrets(loader: Any, password_file: str | None) -> bool:
    files = [password_file] if password_file else []
    try:
        secrets = CLI.setup_vault_secrets(
            loader,
            vault_ids=list(constants.config.get_config_value("DEFAULT_VAULT_IDENTITY_LIST")),
            vault_password_files=files,
            auto_prompt=False,
            initialize_context=False,
        )
    except AnsibleError as error:
        raise UsageError(f"vault password: {_first_line(error)}") from error
    # Inline vault values look here when they are read.
    VaultSecretsContext._current = VaultSecretsContext(secrets)
    return bool(secrets)


def _encrypted_files(sources: Iterable[str]) -> list[Path]:
    """Whole-file vaults that Ansible would read for these sources."""
    found: dict[Path, None] = {}
    for source in sources:
        if "," in source:
            continue
        path = Path(source)
        folder = path if path.is_dir() else path.parent
        candidates = sorted(path.glob("*")) if path.is_dir() else [path]
        for kind in ("group_vars", "host_vars"):
            candidates += sorted((folder / kind).rglob("*"))
        for candidate in candidates:
            if candidate.is_file() and _starts_as_vault(candidate):
                found[candidate] = None
    return list(found)


def _starts_as_vault(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(15) == b"$ANSIBLE_VAULT;"
    except OSError:
        return False  # Ansible reports what it cannot read


def _locked_file(path: Path) -> Problem:
    return vault_problem(
        file=display_path(str(path)), key="", host="", text="no vault password was given"
    )


def _tag_extra_vars(values: Mapping[str, Any]) -> dict[str, Any]:
    origin = Origin(description=EXTRA_VARS)
    return {key: _trust(value, origin) for key, value in values.items()}


def _trust(value: Any, origin: Origin) -> Any:
    if isinstance(value, str):
        return TrustedAsTemplate().tag(value if Origin.get_tag(value) else origin.tag(value))
    if isinstance(value, Mapping):
        return {key: _trust(item, origin) for key, item in value.items()}
    if isinstance(value, list):
        return [_trust(item, origin) for item in value]
    return value


def _place(value: Any) -> str:
    origin = value if isinstance(value, Origin) else None
    if origin is None and value is not None:
        origin = Origin.get_tag(value)
    if origin is None or origin == Origin.UNKNOWN:
        return ""  # of a number in an -e of JSON, Ansible says just that it does not know
    if origin.path is None:
        return str(origin.description or "")
    path = display_path(origin.path)
    return f"{path}:{origin.line_num}" if origin.line_num else path


def _place_of_error(error: BaseException) -> str:
    place = ""
    seen: BaseException | None = error
    while seen is not None:
        place = _place(getattr(seen, "obj", None)) or place
        seen = seen.__cause__ or seen.__context__
    return place


def _caused_by(error: BaseException, *kinds: type[BaseException]) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, kinds):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _unreadable(error: AnsibleError) -> Problem:
    file = _place_of_error(error)
    if _caused_by(error, AnsibleVaultError):
        return vault_problem(file=file, key="", host="", text=_first_line(error))
    return Problem(
        severity="error",
        id="inventory.unreadable",
        file=file,
        key="",
        host="",
        found=_first_line(error),
        expected="a file that Ansible can read",
        fix="correct the syntax or the permissions; `ansible-inventory --list` shows the same",
    )


def _empty(paths: Sequence[str]) -> Problem:
    return Problem(
        severity="error",
        id="inventory.empty",
        file=", ".join(display_path(path) for path in paths),
        key="",
        host="",
        found="no host",
        expected="at least one host in gpu_nodes",
        fix="check the path given with -i",
    )


def _warnings(context: Any) -> list[Problem]:
    """Turn what Ansible would only have warned about into findings."""
    problems: list[Problem] = []
    failures: dict[str, Problem] = {}
    for summary in context.get_warnings():
        texts, places = [], []
        event = summary.event
        while event is not None:
            texts.append(" ".join(event.msg.split()))
            places += _ORIGIN.findall(event.formatted_source_context or "")
            event = event.chain.event if event.chain else None
        # The place with a line, if there is one: the outer ones only name the file.
        file = max(places, key=lambda place: bool(re.search(r":\d+$", place)), default="")
        failed = _FAILED.match(texts[0])
        if failed:
            # Ansible tries one reader after the other; only one of their errors helps.
            failures[failed["plugin"]] = _warning(" ".join(texts[1:]), file, failed=True)
        elif texts[0].startswith("Unable to parse"):
            source = (
                texts[0].removeprefix("Unable to parse ").removesuffix(" as an inventory source")
            )
            problems.append(_likeliest(failures, source) or _warning(texts[0], source, failed=True))
            failures = {}
        elif not texts[0].startswith("No inventory was parsed"):
            problems.append(_warning(" ".join(texts), file, failed=False))
    return problems


def _likeliest(failures: Mapping[str, Problem], source: str) -> Problem | None:
    kinds = {".yml": "yaml", ".yaml": "yaml", ".json": "yaml", ".toml": "toml"}
    wanted = ("script", kinds.get(Path(source).suffix, "ini"), *failures)
    found = next((failures[plugin] for plugin in wanted if plugin in failures), None)
    return replace(found, file=found.file or display_path(source)) if found else None


def _warning(text: str, file: str, *, failed: bool) -> Problem:
    return Problem(
        severity="error" if failed else "warning",
        id="inventory.unreadable" if failed else "inventory.warning",
        file=display_path(file),
        key="",
        host="",
        found=text,
        expected="an inventory that Ansible reads" + ("" if failed else " without a warning"),
        fix="correct the file; `ansible-inventory --list` shows the same",
    )
