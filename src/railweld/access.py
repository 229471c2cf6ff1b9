"""How a command reaches a site: what the operator gave about it, handed on as it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from railweld.doctor.redact import redact
from railweld.options import ExtraVars, Inventory, Vault

if TYPE_CHECKING:
    from railweld.site import RawInventory, Site


@dataclass(frozen=True)
class Access:
    """Inventories and variables as Ansible and every railweld command take them.

    Attributes:
        sources: inventories; none for ansible.cfg's.
        extra_vars: as `-e` takes them.
        vault_password_file: as Ansible takes it.
    """

    sources: tuple[str, ...] = ()
    extra_vars: tuple[str, ...] = ()
    vault_password_file: str | None = None

    @property
    def inventory(self) -> tuple[str, ...]:
        """The inventories, ansible.cfg's where none was given."""
        from railweld.site.inventory import default_sources  # noqa: PLC0415 - loads Ansible

        return self.sources or tuple(default_sources())

    @property
    def options(self) -> tuple[str, ...]:
        """The same as words of a command line."""
        words = [word for source in self.inventory for word in ("-i", source)]
        words += [word for each in self.extra_vars for word in ("-e", each)]
        if self.vault_password_file:
            words += ["--vault-password-file", self.vault_password_file]
        return tuple(words)

    def absolute(self) -> Access:
        """The same from any folder: paths are made absolute, lists of hosts stay."""
        return Access(
            tuple(
                str(Path(source).absolute()) if Path(source).exists() else source
                for source in self.inventory
            ),
            tuple(
                f"@{Path(each[1:]).absolute()}" if each.startswith("@") else each
                for each in self.extra_vars
            ),
            self.vault_password_file and str(Path(self.vault_password_file).absolute()),
        )

    def load(self) -> RawInventory:
        """Read the inventory.

        Raises:
            SiteError: it cannot be read.
        """
        from railweld.site import load_inventory, parse_extra_vars  # noqa: PLC0415 - loads Ansible

        return load_inventory(
            self.inventory, parse_extra_vars(self.extra_vars), self.vault_password_file
        )

    def site(self) -> Site:
        """Read and check the description.

        Raises:
            SiteError: everything that is wrong with it.
        """
        from railweld.site.build import require_site  # noqa: PLC0415 - loads Ansible

        return require_site(self.load())


def shown(argv: Sequence[str]) -> str:
    """A command as messages and the journal have it: quoted, without secrets that -e gives it."""
    return shlex.join(
        redact(word) if before == "-e" else word for before, word in pairwise(("", *argv))
    )


def given(
    *,
    inventory: Inventory = None,
    extra_vars: ExtraVars = None,
    vault_password_file: Vault = None,
) -> Access:
    """The options that every command about a site has, for `options.grouped`."""
    return Access(
        tuple(inventory or ()),
        tuple(extra_vars or ()),
        str(vault_password_file) if vault_password_file else None,
    )
