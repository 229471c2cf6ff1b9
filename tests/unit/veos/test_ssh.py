"""Over a socket: netmiko as it is used for real, and raw SSH for what netmiko hides."""

from __future__ import annotations

import asyncio
import json

import asyncssh
import pytest
from netmiko.exceptions import (
    ConfigInvalidException,
    NetmikoAuthenticationException,
    ReadTimeout,
)

from railweld.lab.veos import ManualClock, Neighbour, User, VirtualSwitch

STRICT = r"(?:^%.*|^.*Maximum number of pending sessions has.*|^.*Proceed \[y/n\].*)$"
PROMPT = r"#\s*$"
LINES = [
    "qos profile ROCE", "qos trust dscp", "priority-flow-control on",
    "priority-flow-control priority 3 no-drop", "uc-tx-queue 3", "no priority",
    "bandwidth percent 80", "exit", "exit", "interface Ethernet1/1", "service-profile ROCE", "exit",
]  # fmt: skip


def load(connection, name="roce-1", lines=LINES):
    return connection.send_config_set(
        lines,
        config_mode_command=f"configure session {name}",
        exit_config_mode=False,
        error_pattern=STRICT,
    )


@pytest.fixture
def switch(serve, clock):
    return serve(
        VirtualSwitch(
            clock=clock, enable_secret="s3", neighbours=[Neighbour("Ethernet1/1", "gpu1", "rail1")]
        )
    )


@pytest.mark.parametrize("version", ["4.30.5M", "4.35.1F"])
def test_netmiko_pushes_confirms_and_saves(serve, connect, version):
    clock = ManualClock()
    switch = serve(VirtualSwitch(clock=clock, version=version, enable_secret="s3"))
    first = connect(switch, secret="s3")
    assert first.find_prompt() == "leaf1#"
    load(first)
    assert "+   service-profile ROCE" in first.send_command(
        "show session-config diffs", expect_string=PROMPT
    )
    first.send_command("commit timer 00:05:00", expect_string=PROMPT)
    assert switch.device.timer_left == 300
    second = connect(switch, secret="s3")
    assert "ROCE" in second.send_command("show qos profile summary")
    second.send_command("configure session roce-1 commit")
    assert "Copy completed successfully." in second.save_config()
    clock.advance(3600)
    assert switch.saved
    assert "   service-profile ROCE" in switch.running_lines


def test_netmiko_raises_on_a_refused_line_and_finds_its_way_out(switch, connect):
    connection = connect(switch, secret="s3")
    with pytest.raises(ConfigInvalidException, match="% Invalid input"):
        load(connection, lines=[*LINES, "priority-flow-control pfc enable"])
    connection.exit_config_mode()
    assert switch.device.pending_sessions == ["roce-1"]
    connection.send_command("configure session roce-1 abort")
    assert switch.device.pending_sessions == []


def test_netmiko_sees_the_limit_and_the_question_as_timeouts(switch, connect):
    connection = connect(switch, secret="s3", read_timeout_override=1)
    switch.fault("session-limit")
    with pytest.raises((ReadTimeout, ValueError)):
        load(connection)
    switch.device.sessions.clear()
    connection = connect(switch, secret="s3")
    switch.fault("confirm", match="^qos trust")
    with pytest.raises((ReadTimeout, ConfigInvalidException)):
        connection.send_config_set(
            LINES, config_mode_command="configure session roce-1", error_pattern=STRICT,
            read_timeout=1, exit_config_mode=False,
        )  # fmt: skip


def test_netmiko_reads_long_output_without_pages(switch, connect):
    connection = connect(switch, secret="s3")
    text = connection.send_command("show running-config")
    assert "--More--" not in text
    assert text.rstrip().endswith("end")
    assert json.loads(connection.send_command("show version | json"))["version"] == "4.30.5M"


def test_netmiko_survives_odd_banners_names_and_duplicated_echo(serve, connect):
    switch = serve(
        VirtualSwitch(
            hostname="leaf1-with-a-name-of-24c",
            motd="### Authorised use only > see #noc ###",
            login_banner="Property of example.org\n",
        )
    )
    connection = connect(switch)
    load(connection)
    connection.send_command("abort", expect_string=PROMPT)
    switch.fault("supervisor")
    assert "leaf1-with-a-name-of-24c(s1)#" in connection.find_prompt()
    switch.clear_faults()
    switch.fault("duplicate-echo", match="show hostname")
    assert "Hostname: leaf1" in connection.send_command("show hostname", expect_string=PROMPT)


def test_netmiko_is_cut_off_and_the_commit_undoes_itself(switch, connect, clock):
    before = switch.running_lines
    connection = connect(switch, secret="s3")
    load(connection)
    switch.fault("disconnect", match="commit timer", when="after")
    with pytest.raises((OSError, EOFError, ReadTimeout)):
        connection.send_command("commit timer 00:05:00", expect_string=PROMPT, read_timeout=1)
    assert switch.device.timer_left == 300
    assert switch.running_lines != before
    clock.advance(300)
    assert switch.running_lines == before


def test_a_wrong_password_is_refused(switch, connect):
    with pytest.raises(NetmikoAuthenticationException):
        connect(switch, password="wrong")


# ------------------------------------------------------------------ raw SSH


def options(switch: VirtualSwitch, **more: object) -> dict[str, object]:
    known = asyncssh.import_known_hosts(switch.known_hosts_line())
    return {
        "host": switch.address, "port": switch.port, "known_hosts": known, "username": "admin",
        "config": None, "agent_path": None, **more,
    }  # fmt: skip


async def until(process: asyncssh.SSHClientProcess[str], end: str) -> str:
    text = ""
    async with asyncio.timeout(20):
        while not text.endswith(end):
            piece = await process.stdout.read(4096)
            if not piece:
                break
            text += piece
    return text


def test_raw_client_logs_in_with_a_key_and_a_checked_host_key():
    async def scenario() -> str:
        key = asyncssh.generate_private_key("ssh-ed25519")
        public = key.export_public_key().decode()
        users = {"admin": User(keys=(public,), privileged=True)}
        async with (
            VirtualSwitch(users=users) as switch,
            asyncssh.connect(**options(switch, client_keys=[key])) as connection,
        ):
            result = await connection.run("show hostname")
            return str(result.stdout)

    assert "Hostname: leaf1" in asyncio.run(scenario())


def test_raw_client_sees_echo_pages_and_prompts():
    async def scenario() -> dict[str, str]:
        seen: dict[str, str] = {}
        async with (
            VirtualSwitch(users={"admin": User(password="x", privileged=True)}) as switch,
            asyncssh.connect(**options(switch, password="x", client_keys=None)) as connection,
        ):
            process = await connection.create_process(term_type="vt100")
            seen["login"] = await until(process, "#")
            process.stdin.write("show run")
            seen["typed"] = await until(process, "show run")
            process.stdin.write("\r")
            seen["page"] = await until(process, "--More-- ")
            process.stdin.write(" ")
            seen["next"] = await until(process, "--More-- ")
            process.stdin.write("q")
            seen["quit"] = await until(process, "leaf1#")
            process.stdin.write("show hostnamx\x7fe\r\n")
            seen["rubout"] = await until(process, "leaf1#")
            process.stdin.write("exit\n")
            seen["exit"] = await until(process, "never")
        return seen

    seen = asyncio.run(scenario())
    assert seen["login"] == "leaf1#"
    assert seen["typed"] == "show run"
    assert len(seen["page"].splitlines()) == 25
    assert "interface Ethernet" in seen["next"]
    assert "end" not in seen["quit"].split()
    assert "Hostname: leaf1" in seen["rubout"]


def test_raw_client_hangs_until_it_leaves_and_the_session_stays():
    async def scenario() -> list[str]:
        async with VirtualSwitch(users={"admin": User(password="x", privileged=True)}) as switch:
            async with asyncssh.connect(**options(switch, password="x")) as connection:
                process = await connection.create_process(term_type="vt100")
                await until(process, "#")
                process.stdin.write("configure session roce-1\n")
                await until(process, ")#")
                switch.fault("hang", match="^show")
                process.stdin.write("show version\n")
                assert (await until(process, "show version\r\n")).endswith("show version\r\n")
            return switch.device.pending_sessions

    assert asyncio.run(scenario()) == ["roce-1"]


def test_reload_drops_every_connection():
    async def scenario() -> int:
        users = {"admin": User(password="x", privileged=True)}
        async with VirtualSwitch(users=users) as switch:
            first = await asyncssh.connect(**options(switch, password="x"))
            second = await asyncssh.connect(**options(switch, password="x"))
            process = await first.create_process(term_type="vt100")
            await until(process, "#")
            process.stdin.write("reload now\n")
            async with asyncio.timeout(20):
                await first.wait_closed()
                await second.wait_closed()
            return len(switch.connections)

    assert asyncio.run(scenario()) == 0


def test_every_line_is_on_record_in_order(switch, connect):
    connection = connect(switch, secret="s3")
    connection.send_command("show version")
    lines = [line for _, line in switch.received]
    assert lines.index("terminal width 511") < lines.index("show version")
