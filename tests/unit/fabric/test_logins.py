"""Connection data from Ansible's variables, and secrets out of what is written down."""

from __future__ import annotations

import pytest

from railweld.errors import UsageError
from railweld.fabric.logins import login_from_variables
from railweld.fabric.redact import MASK, Redactor


def test_ansible_variables_are_all_that_is_needed() -> None:
    login = login_from_variables(
        "leaf1",
        {
            "ansible_host": "10.0.0.1",
            "ansible_port": 2222,
            "ansible_user": "ops",
            "ansible_password": "pw",
            "railweld_switch_enable_secret": "en",
            "ansible_ssh_private_key_file": "/keys/id",
            "ansible_ssh_common_args": "-o UserKnownHostsFile=/k/known -o ProxyJump=hop@gate:2200",
            "ansible_command_timeout": 90,
        },
    )
    assert (login.host, login.port, login.username) == ("10.0.0.1", 2222, "ops")
    assert (login.password, login.secret, login.key_file) == ("pw", "en", "/keys/id")
    assert login.known_hosts == "/k/known"
    assert login.command_timeout_s == 90
    assert login.check_host_key is True
    assert login.jump is not None
    assert (login.jump.host, login.jump.port, login.jump.username) == ("gate", 2200, "hop")


def test_defaults_check_host_keys_and_use_the_inventory_name() -> None:
    login = login_from_variables("leaf1", {})
    assert (login.host, login.port, login.check_host_key) == ("leaf1", 22, True)


@pytest.mark.parametrize(
    "variables",
    [{"ansible_ssh_common_args": "-o StrictHostKeyChecking=no"},
     {"ansible_host_key_checking": False}, {"ansible_ssh_host_key_checking": "no"}],
)  # fmt: skip
def test_only_the_inventory_can_turn_the_host_key_check_off(variables: dict[str, object]) -> None:
    assert login_from_variables("leaf1", variables).check_host_key is False


def test_a_proxy_command_is_refused_with_the_form_that_works() -> None:
    with pytest.raises(UsageError, match="ProxyJump"):
        login_from_variables("leaf1", {"ansible_ssh_common_args": "-o ProxyCommand=nc"})


def test_secrets_do_not_show_in_a_login() -> None:
    login = login_from_variables("l", {"ansible_password": "hunter2", "ansible_become_pass": "s3"})
    assert "hunter2" not in repr(login)
    assert "s3" not in repr(login)
    assert set(login.secrets()) == {"hunter2", "s3", None}


@pytest.mark.parametrize(
    "line",
    [
        "username admin privilege 15 secret sha512 $6$abcSECRET",
        "enable password sha512 SECRET",
        "   neighbor 10.0.0.1 password 7 SECRET",
        "tacacs-server key 7 SECRET",
        "snmp-server community SECRET ro",
        "   password SECRET",
        "the word SECRET anywhere",
    ],
)
def test_secrets_are_masked_wherever_they_stand(line: str) -> None:
    masked = Redactor(["SECRET"] if "anywhere" in line else [])(line)
    assert "SECRET" not in masked
    assert MASK in masked


def test_ordinary_lines_stay_as_they_are() -> None:
    text = "interface Ethernet1/1\n   mtu 9214\nqos map dscp 26 to traffic-class 3"
    assert Redactor(["pw"])(text) == text
