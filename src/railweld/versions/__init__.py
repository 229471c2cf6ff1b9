"""Version sets and their compatibility rules: exact packages per vendor repository."""

from railweld.versions.model import Component, Package, Repo, SetFile
from railweld.versions.resolve import (
    Change,
    Resolved,
    VersionsError,
    VersionSet,
    available_sets,
    load_rules,
    load_set,
    versions_directory,
)
from railweld.versions.rules import FACTS, Rule, RuleResult

__all__ = [
    "FACTS",
    "Change",
    "Component",
    "Package",
    "Repo",
    "Resolved",
    "Rule",
    "RuleResult",
    "SetFile",
    "VersionSet",
    "VersionsError",
    "available_sets",
    "load_rules",
    "load_set",
    "versions_directory",
]
