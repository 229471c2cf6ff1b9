"""Reaching a switch: host keys, passwords, keys, the enable secret, a jump host."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from railweld.fabric.transport import (
    EosConnection,
    Login,
    LoginError,
    RefusedError,
    UnreachableError,
)
from railweld.lab.veos import User, VirtualSwitch, serving


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., tuple[VirtualSwitch, Login]]]:
    with ExitStack() as stack:

        def start(**options: object) -> tuple[VirtualSwitch, Login]:
            switch = VirtualSwitch(**options)
            stack.enter_context(serving(switch))
            known = tmp_path / "known_hosts"
            known.write_text(switch.known_hosts_line())
            return switch, Login(
                switch="leaf1", host="127.0.0.1", port=switch.port, username="admin",
                password="admin", known_hosts=str(known), command_timeout_s=10,
            )  # fmt: skip

        yield start


def test_a_switch_whose_host_key_is_unknown_is_refused(
    make: Callable[..., tuple[VirtualSwitch, Login]], tmp_path: Path
) -> None:
    _, login = make()
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(LoginError, match="host key"):
        EosConnection(replace(login, known_hosts=str(empty)))


def test_a_switch_with_another_host_key_is_refused(
    make: Callable[..., tuple[VirtualSwitch, Login]], tmp_path: Path
) -> None:
    _, login = make()
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    wrong = tmp_path / "wrong"
    wrong.write_text(f"[127.0.0.1]:{login.port} {other}\n")
    with pytest.raises(LoginError, match="host key"):
        EosConnection(replace(login, known_hosts=str(wrong)))


def test_a_missing_known_hosts_file_is_named(
    make: Callable[..., tuple[VirtualSwitch, Login]],
) -> None:
    _, login = make()
    with pytest.raises(LoginError, match="found no known-hosts file /nowhere"):
        EosConnection(replace(login, known_hosts="/nowhere"))


def test_a_wrong_password_is_named_without_showing_it(
    make: Callable[..., tuple[VirtualSwitch, Login]],
) -> None:
    _, login = make()
    with pytest.raises(LoginError, match="refused the login of admin") as caught:
        EosConnection(replace(login, password="hunter2"))
    assert "hunter2" not in str(caught.value)


def test_a_closed_port_is_unreachable(make: Callable[..., tuple[VirtualSwitch, Login]]) -> None:
    _, login = make()
    with pytest.raises(UnreachableError, match="no answer"):
        EosConnection(replace(login, port=9, connect_timeout_s=1))


def test_a_key_file_logs_in(
    make: Callable[..., tuple[VirtualSwitch, Login]], tmp_path: Path
) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    path = tmp_path / "id"
    path.write_bytes(key.export_private_key())
    path.chmod(0o600)
    public = key.export_public_key().decode()
    _, login = make(users={"ops": User(keys=(public,), privileged=True)})
    connection = EosConnection(replace(login, username="ops", password=None, key_file=str(path)))
    assert "modelName" in connection.run("show version | json")
    connection.close()
    with pytest.raises(LoginError, match="found no key file"):
        EosConnection(replace(login, username="ops", password=None, key_file="/nowhere"))


def test_the_enable_secret_is_used_and_a_wrong_one_is_named(
    make: Callable[..., tuple[VirtualSwitch, Login]],
) -> None:
    _, login = make(enable_secret="s3cret")
    said: list[str] = []
    connection = EosConnection(replace(login, secret="s3cret"), transcript=said.append)
    assert connection.prompt.endswith("#")
    connection.run("show version | json")
    connection.close()
    assert "s3cret" not in "".join(said)
    with pytest.raises(LoginError):
        EosConnection(replace(login, secret="wrong", connect_timeout_s=3))


def test_a_refusal_carries_the_whole_text_of_the_switch(
    make: Callable[..., tuple[VirtualSwitch, Login]],
) -> None:
    _, login = make()
    connection = EosConnection(login)
    with pytest.raises(RefusedError, match=r"refused `show nonsense`: % Invalid input"):
        connection.run("show nonsense")
    assert "modelName" in connection.run("show version | json")
    connection.close()


class _Relay(asyncssh.SSHServer):
    """A jump host: lets `hop` in and forwards where it is asked to."""

    asked: list[tuple[str, int]]

    def begin_auth(self, username: str) -> bool:
        return username == "hop"

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == ("hop", "over")

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        del orig_host, orig_port
        self.asked.append((dest_host, dest_port))
        return True


@contextmanager
def jump_host(asked: list[tuple[str, int]]) -> Iterator[tuple[int, str]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    key = asyncssh.generate_private_key("ssh-ed25519")

    def relay() -> _Relay:
        server = _Relay()
        server.asked = asked
        return server

    async def start() -> asyncssh.SSHAcceptor:
        return await asyncssh.create_server(relay, "127.0.0.1", 0, server_host_keys=[key])

    acceptor = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    port = int(acceptor.get_port())
    yield port, f"[127.0.0.1]:{port} {key.export_public_key().decode().strip()}\n"
    loop.call_soon_threadsafe(acceptor.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


def test_a_jump_host_is_gone_through_and_its_key_is_checked(
    make: Callable[..., tuple[VirtualSwitch, Login]], tmp_path: Path
) -> None:
    _, login = make()
    asked: list[tuple[str, int]] = []
    with jump_host(asked) as (port, line):
        known = tmp_path / "both"
        known.write_text(Path(str(login.known_hosts)).read_text() + line)
        hop = replace(login, port=port, username="hop", password="over", known_hosts=str(known))
        connection = EosConnection(replace(login, known_hosts=str(known), jump=hop))
        assert "modelName" in connection.run("show version | json")
        connection.close()
        assert asked == [("127.0.0.1", login.port)]
        stranger = replace(hop, known_hosts=login.known_hosts)
        with pytest.raises(LoginError, match="host key"):
            EosConnection(replace(login, known_hosts=str(known), jump=stranger))
