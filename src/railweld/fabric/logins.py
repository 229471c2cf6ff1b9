"""Connection data of switches from Ansible's own variables: users write them once."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from railweld.errors import UsageError
from railweld.fabric.transport import Login


def login_from_variables(name: str, variables: Mapping[str, Any]) -> Login:
    """Read `ansible_host`, `ansible_user`, key, password, SSH arguments and the enable secret."""

    def first(*keys: str) -> Any:
        return next((variables[key] for key in keys if variables.get(key) is not None), None)

    options = _ssh_options(
        " ".join(
            str(variables.get(key) or "")
            for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")
        )
    )
    checking = first("ansible_ssh_host_key_checking", "ansible_host_key_checking")
    strict = options.get("stricthostkeychecking", "").lower() not in {"no", "off", "accept-new"}
    known_hosts = options.get("userknownhostsfile")
    key_file = first("ansible_ssh_private_key_file", "ansible_private_key_file")
    jump = options.get("proxyjump")
    login = Login(
        switch=name,
        host=str(first("ansible_host", "ansible_ssh_host") or name),
        port=int(first("ansible_port", "ansible_ssh_port") or 22),
        username=str(first("ansible_user", "ansible_ssh_user") or os.environ.get("USER", "admin")),
        password=_secret(first("ansible_password", "ansible_ssh_password", "ansible_ssh_pass")),
        secret=_secret(
            first("railweld_switch_enable_secret", "ansible_become_password", "ansible_become_pass")
        ),
        key_file=str(Path(key_file).expanduser()) if key_file else None,
        passphrase=_secret(
            first("ansible_ssh_private_key_passphrase", "ansible_private_key_passphrase")
        ),
        known_hosts=str(Path(known_hosts).expanduser()) if known_hosts else None,
        check_host_key=strict and not _is_false(checking),
        connect_timeout_s=float(first("ansible_connect_timeout", "ansible_timeout") or 15),
        command_timeout_s=float(first("ansible_command_timeout") or 30),
    )
    if not jump:
        return login
    return Login(**{**login.__dict__, "jump": _jump(jump, login)})


def _ssh_options(arguments: str) -> dict[str, str]:
    """`-o Key=value`, `-o "Key value"` and `-J host` of OpenSSH arguments, keys in lower case."""
    words, options = shlex.split(arguments), {}
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else ""
        if word == "-J":
            options["proxyjump"] = following
        elif word == "-o" or word.startswith("-o"):
            text = following if word == "-o" else word[2:]
            key, _, value = text.replace("=", " ", 1).partition(" ")
            if key.lower() == "proxycommand":
                raise UsageError(
                    "ssh arguments: found ProxyCommand, expected ProxyJump, which is the form of "
                    "a jump host that switches are reached through; write -o ProxyJump=user@host"
                )
            options.setdefault(key.lower(), value.strip())
    return options


def _jump(text: str, login: Login) -> Login:
    user, _, place = text.rpartition("@")
    host, _, port = place.partition(":")
    return Login(
        switch=login.switch,
        host=host,
        port=int(port or 22),
        username=user or login.username,
        password=login.password,
        key_file=login.key_file,
        passphrase=login.passphrase,
        known_hosts=login.known_hosts,
        check_host_key=login.check_host_key,
    )


def _secret(value: Any) -> str | None:
    if value is None:
        return None
    reveal = getattr(value, "get_secret_value", None)
    return str(reveal() if reveal else value)


def _is_false(value: Any) -> bool:
    return value is not None and str(value).lower() in {"false", "no", "0", "off"}
