"""Loads the modules that run on a node the way Ansible does: by file, with their own helpers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import ansible.module_utils
import pytest

ROOT = Path(__file__).parents[3]


def load(kind: str, name: str) -> ModuleType:
    """Import plugins/KIND/NAME.py."""
    helpers = str(ROOT / "plugins" / "module_utils")
    if helpers not in ansible.module_utils.__path__:
        ansible.module_utils.__path__.append(helpers)
    label = f"railweld_plugins_{kind}_{name}"
    if label not in sys.modules:
        spec = importlib.util.spec_from_file_location(label, ROOT / "plugins" / kind / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[label] = module
        spec.loader.exec_module(module)
    return sys.modules[label]


@pytest.fixture
def plugin() -> Callable[[str, str], ModuleType]:
    """Import a plugin by kind and name."""
    return load


@pytest.fixture
def repository_root() -> Path:
    """The project's folder."""
    return ROOT
