"""What the role puts onto the head, from the same code that runs and judges it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

from railweld import names
from railweld.bridge import bundle, client, config, hook
from railweld.errors import RailweldError
from railweld.verify.roles.bridge import PACKAGES


def scripts(bridge: Mapping[str, Any]) -> list[dict[str, str]]:
    """Client and epilog: path and content."""
    return [
        {"path": names.BRIDGE_CLIENT, "content": Path(client.__file__).read_text()},
        {
            "path": names.BRIDGE_EPILOG,
            "content": hook.epilog(list(bridge["config"]["partitions"])),
        },
    ]


def settings(bridge: Mapping[str, Any], more: Mapping[str, Any]) -> str:
    """bridge.json: what follows from the description, and what the site adds."""
    twice = sorted(set(more) & set(bridge["config"]))
    if twice:
        raise AnsibleFilterError(
            f"bridge_settings: found {', '.join(twice)}, expected entries that do not follow from "
            "the description. Fix: remove them"
        )
    content = {**bridge["config"], **more}
    try:
        config.parse(content, "bridge_settings")
    except RailweldError as error:
        raise AnsibleFilterError(str(error)) from error
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def program(_: Any) -> str:
    """The daemon as one file, in base64."""
    return base64.b64encode(bundle.build().content).decode()


def paths(_: Any) -> dict[str, str]:
    """Names that roles share with the daemon."""
    return {
        "client": names.BRIDGE_CLIENT,
        "epilog": names.BRIDGE_EPILOG,
        "config": names.BRIDGE_CONFIG,
        "kubeconfig": names.BRIDGE_KUBECONFIG,
        "token": names.BRIDGE_TOKEN,
        "unit": names.BRIDGE_UNIT,
        "monitor": names.BRIDGE_MONITOR,
        "program": bundle.build().path,
        "packages": ",".join(PACKAGES),
        "command": names.BRIDGE_COMMAND,
    }


class FilterModule:
    """Filters of role bridge."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function, as Ansible asks for them."""
        return {
            "bridge_scripts": scripts,
            "bridge_config": settings,
            "bridge_program": program,
            "bridge_names": paths,
        }
