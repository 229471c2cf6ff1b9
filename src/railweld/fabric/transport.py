"""One SSH connection to one switch: a command goes out, its text comes back, refusals raise.

netmiko opens the connection and the privileged mode. Commands do not go through its
`send_config_set`: that returns rejected lines as success unless told otherwise, cannot see two
refusals that leave the prompt as it was or ask a question, and loses EOS's text when they surface
as a read timeout. `run` reads the channel itself and judges every line of the answer.
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import paramiko
from netmiko import ConnectHandler
from netmiko.base_connection import BaseConnection
from netmiko.exceptions import (
    NetmikoAuthenticationException,
    NetmikoTimeoutException,
    ReadException,
    ReadTimeout,
)

from railweld.errors import RailweldError
from railweld.fabric.redact import Redactor

#: Lines by which EOS says no. Warnings start with `!` and are only reported.
REFUSAL: Final = re.compile(
    r"^(?:% ?\S.*|.*Maximum number of pending sessions has.*|.*Proceed \[y/n\].*|\S+ not found)$",
    re.MULTILINE,
)
#: A question instead of a prompt: nothing of ours is ever confirmed blindly.
_QUESTION: Final = re.compile(r"(?:\[y/n\]|\[confirm\]|\[yes/no\]|[Pp]assword:)[ :?]*\Z")

_TAIL: Final = 600  #: characters that hold a prompt or a question for certain
_QUIET_S: Final = 0.15  #: silence after which an empty answer to a `show` is believed
_KEPT: Final = 4000  #: characters of an answer that the transcript keeps
_ECHO_LINES: Final = 3  #: lines that a repeated echo may make; more is an answer

#: How many times longer than a line a commit or a save may take.
LONG: Final = 4.0


class SwitchError(RailweldError):
    """Something about one switch; the text starts with its name."""

    def __init__(self, switch: str, text: str) -> None:
        super().__init__(f"{switch}: {text}")
        self.switch = switch
        self.text = text


class RefusedError(SwitchError):
    """The switch refused a command."""

    def __init__(self, switch: str, command: str, answer: str) -> None:
        super().__init__(switch, f"refused `{command}`: {answer}{_hint(answer)}")
        self.command = command
        self.answer = answer


class UnreachableError(SwitchError):
    """No connection, or the connection died: the state of the switch is not known."""


class LoginError(SwitchError):
    """The switch is there but does not let us in, or is not the one we know."""


def _hint(answer: str) -> str:
    for pattern, hint in (
        ("initializing", "the forwarding agent may still be starting: try again in a minute"),
        ("pending sessions", "remove sessions nobody needs: show configuration sessions"),
        ("Authorization denied", "the login needs the right to change the configuration"),
        ("not supported on this hardware", "this model or a line before it does not allow it"),
        ("Proceed", "the switch asks for a TCAM change, which needs a maintenance window"),
    ):
        if pattern in answer:
            return f" ({hint})"
    return ""


class Connection(Protocol):
    """What the push and the verification need from a switch."""

    def run(self, command: str, *, patience: float = 1.0) -> str:
        """Send one line and return its answer; raises `RefusedError` or `UnreachableError`.

        `patience` multiplies the time that the login allows for an answer.
        """
        ...

    @property
    def prompt(self) -> str:
        """The prompt after the last command."""
        ...

    @property
    def alive(self) -> bool:
        """False once the connection is known to be gone."""
        ...

    def close(self) -> None:
        """Leave; never fails."""
        ...


Connect = Callable[[str], Connection]
"""Opens a fresh connection to a switch by name."""


class Connections:
    """Fresh connections, and those that are kept for the next look at the same switch.

    Only a connection that has just answered is kept. Verification never takes a kept one: that a
    new login works after the commit is part of what it proves.
    """

    def __init__(self, connect: Connect) -> None:
        self.fresh = connect
        self._kept: dict[str, Connection] = {}

    def keep(self, switch: str, connection: Connection) -> None:
        """Leave a connection open, in privileged mode, for `take`."""
        self._kept[switch] = connection

    def take(self, switch: str) -> Connection:
        """The kept connection if it is still there, else a fresh one."""
        kept = self._kept.pop(switch, None)
        if kept is not None and kept.alive:
            return kept
        return self.fresh(switch)

    def close(self) -> None:
        """Close what nobody took."""
        while self._kept:
            self._kept.popitem()[1].close()


@dataclass(frozen=True)
class Login:
    """How to reach one switch. Values come from Ansible's own connection variables."""

    switch: str
    host: str
    port: int = 22
    username: str = "admin"
    password: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    key_file: str | None = None
    passphrase: str | None = field(default=None, repr=False)
    known_hosts: str | None = None
    check_host_key: bool = True
    jump: Login | None = None
    connect_timeout_s: float = 15.0
    command_timeout_s: float = 30.0

    def secrets(self) -> tuple[str | None, ...]:
        """Everything that no log may show."""
        own = (self.password, self.secret, self.passphrase)
        return (*own, *self.jump.secrets()) if self.jump else own


class EosConnection:
    """netmiko's Arista driver behind `Connection`."""

    def __init__(self, login: Login, *, transcript: Callable[[str], None] | None = None) -> None:
        self.login = login
        self._transcript = transcript
        self._redact = Redactor(login.secrets())
        self._jump: paramiko.SSHClient | None = None
        try:
            self._channel = self._open()
            self._prompt = self._stable_prompt()
        except BaseException:
            self.close()
            raise
        self._base = self._prompt.rstrip("#> ")
        # EOS shows the whole host name, then the mode in brackets.
        self._done = re.compile(rf"(?:^|\n){re.escape(self._base)}(?:\([^\n()]*\))*[#>] ?\Z")

    # -- opening ---------------------------------------------------------------------------

    def _open(self) -> BaseConnection:
        login = self.login
        key_file = login.key_file
        if key_file is not None and not Path(key_file).is_file():
            if login.password is None:
                raise LoginError(
                    login.switch,
                    f"found no key file {key_file}, expected the key of {login.username}; correct "
                    "ansible_ssh_private_key_file or set ansible_password",
                )
            key_file = None
        options: dict[str, Any] = {
            "device_type": "arista_eos",
            "host": login.host,
            "port": login.port,
            "username": login.username,
            "password": login.password or "",
            "secret": login.secret or "",
            "use_keys": key_file is not None,
            "key_file": key_file,
            "passphrase": login.passphrase,
            "allow_agent": login.password is None and key_file is None,
            "ssh_strict": login.check_host_key,
            "system_host_keys": login.check_host_key and login.known_hosts is None,
            "alt_host_keys": login.check_host_key and login.known_hosts is not None,
            "alt_key_file": login.known_hosts or "",
            "conn_timeout": login.connect_timeout_s,
            "auth_timeout": login.connect_timeout_s,
            "banner_timeout": login.connect_timeout_s,
            "keepalive": 30,
        }
        if login.known_hosts is not None and not Path(login.known_hosts).is_file():
            raise LoginError(
                login.switch,
                f"found no known-hosts file {login.known_hosts}, expected the switch's host key "
                f"in it; read the key from the console and add it",
            )
        try:
            if login.jump is not None:
                options["sock"] = self._through(login.jump)
            channel = ConnectHandler(**options)
            if not channel.check_enable_mode():
                channel.enable()
            if not channel.check_enable_mode():
                channel.disconnect()
                raise LoginError(
                    login.switch,
                    f"found {login.username} in unprivileged mode, expected privileged; set "
                    "railweld_switch_enable_secret or give the login privilege 15",
                )
        except NetmikoAuthenticationException as error:
            raise LoginError(
                login.switch,
                f"refused the login of {login.username} at {login.host}:{login.port}; check "
                "ansible_user and its key or password",
            ) from error
        except ReadTimeout as error:
            raise LoginError(
                login.switch,
                "found no steady prompt after the login, expected one that ends in # or >; a "
                "clock in `prompt` or a banner that ends like a prompt does this",
            ) from error
        except (
            NetmikoTimeoutException, ReadException, paramiko.SSHException, OSError, EOFError,
            ValueError,
        ) as error:  # fmt: skip
            raise self._login_failure(error) from error
        return channel

    def _login_failure(self, error: Exception) -> SwitchError:
        text = self._redact(" ".join(str(error).split()))
        place = f"{self.login.host}:{self.login.port}"
        if "not found in known_hosts" in text or "Host key" in text or "host key" in text:
            return LoginError(
                self.login.switch,
                f"host key of {place} is not the known one ({text}); compare it on the console, "
                f"then put it into {self.login.known_hosts or '~/.ssh/known_hosts'}",
            )
        if "enable" in text.lower():
            return LoginError(self.login.switch, f"enable failed at {place}: {text}")
        return UnreachableError(
            self.login.switch,
            f"no answer at {place} ({text[:200]}); check ansible_host, routing and SSH on the "
            "switch",
        )

    def _through(self, jump: Login) -> paramiko.Channel:
        client = paramiko.SSHClient()
        if jump.known_hosts:
            client.load_host_keys(jump.known_hosts)
        else:
            client.load_system_host_keys()
        client.set_missing_host_key_policy(
            paramiko.RejectPolicy() if jump.check_host_key else paramiko.AutoAddPolicy()
        )
        self._jump = client
        client.connect(
            jump.host,
            port=jump.port,
            username=jump.username,
            password=jump.password,
            key_filename=jump.key_file,
            passphrase=jump.passphrase,
            timeout=jump.connect_timeout_s,
            allow_agent=jump.password is None and jump.key_file is None,
            look_for_keys=False,
        )
        transport = client.get_transport()
        if transport is None:
            raise UnreachableError(self.login.switch, f"jump host {jump.host} closed")
        return transport.open_channel(
            "direct-tcpip", (self.login.host, self.login.port), ("127.0.0.1", 0)
        )

    def _stable_prompt(self) -> str:
        """The prompt, refused when it changes by itself (a clock in it hides the end of output)."""
        first = self._read_prompt()
        second = self._read_prompt()
        clock = re.search(r"\d{1,2}:\d{2}:\d{2}", first)
        if first != second or clock:
            raise SwitchError(
                self.login.switch,
                f"found a prompt that changes by itself ({first!r}, {second!r}), expected a fixed "
                "one; remove the time from `prompt`",
            )
        return first

    def _read_prompt(self) -> str:
        self._write("")
        text = self._read(re.compile(r"(?:^|\n)(\S[^\n]*[#>]) ?\Z"), 10.0, "(prompt)")
        return text.strip().splitlines()[-1].strip()

    # -- talking ---------------------------------------------------------------------------

    @property
    def prompt(self) -> str:
        """The prompt after the last command."""
        return self._prompt

    def run(self, command: str, *, patience: float = 1.0) -> str:
        """Send one line and return its answer without echo and prompt."""
        self._write(command)
        text = self._read(self._done, patience * self.login.command_timeout_s, command)
        asked = _QUESTION.search(text)
        if asked:
            self._note(command, text)
            self._answer_no()
            raise RefusedError(self.login.switch, command, _last_lines(text))
        body, self._prompt = _split(text, command, self._base)
        self._note(command, body)
        # A banner or a description in a `show` may start with "%"; a refused `show` is one line.
        refused = REFUSAL.findall(
            body.strip().partition("\n")[0] if command.startswith("show ") else body
        )
        if refused:
            raise RefusedError(self.login.switch, command, "; ".join(_unique(refused)))
        return body

    def _answer_no(self) -> None:
        """Decline the question, so that the session can be left in order."""
        self._write("n")
        self._read(self._done, self.login.command_timeout_s, "n")

    def _write(self, text: str) -> None:
        try:
            self._channel.write_channel(text + "\n")
        except (OSError, EOFError, paramiko.SSHException, NetmikoTimeoutException) as error:
            raise self._lost(text) from error

    def _read(self, done: re.Pattern[str], timeout: float, command: str) -> str:
        """Read until a prompt or a question ends the text.

        A prompt directly after the echo of a `show` may belong to a repeated echo, so an empty
        answer is only believed after the channel stayed quiet for a moment.
        """
        text, deadline = "", time.monotonic() + timeout
        while True:
            try:
                # Not the driver's own read, which cleans every piece up with thirty patterns.
                new = str(self._channel.channel.read_channel())
            except (OSError, EOFError, paramiko.SSHException, ReadException) as error:
                raise self._lost(command) from error
            text += new
            # Only the end decides; a long answer is not searched again with every piece.
            tail = self._clean(text[-_TAIL:])
            ended = bool(done.search(tail) or _QUESTION.search(tail))
            doubtful = command.startswith("show ") and text.count("\n") <= _ECHO_LINES
            if ended and not doubtful:
                return self._clean(text)
            left = deadline - time.monotonic()
            if left <= 0:
                raise UnreachableError(
                    self.login.switch,
                    f"no end of the answer to `{command}` within {timeout:g} s; last read: "
                    f"{self._redact(_last_lines(tail)) or 'nothing'}",
                )
            more = self._wait(_QUIET_S if ended else min(left, 1.0))
            if ended and not more:
                return self._clean(text)
            if not new and self._is_closed():
                raise self._lost(command)

    def _clean(self, text: str) -> str:
        """The text as netmiko hands it on: one kind of line end, no terminal codes."""
        if "\x1b" in text:
            text = self._channel.strip_ansi_escape_codes(text)
        return self._channel.normalize_linefeeds(text)

    def _wait(self, seconds: float) -> bool:
        """Sleep until there is something to read; False when nothing came."""
        channel = self._channel.remote_conn
        if not isinstance(channel, paramiko.Channel):
            time.sleep(min(seconds, 0.01))
            return True
        waiting = select.poll()
        waiting.register(channel.fileno(), select.POLLIN)
        return bool(waiting.poll(seconds * 1000))

    @property
    def alive(self) -> bool:
        """False once the connection is known to be gone."""
        if self._is_closed():
            return False
        # Not the driver's own test, which types a null byte into the switch's command line.
        client = self._channel.remote_conn_pre
        transport = client.get_transport() if client is not None else None
        return transport is not None and transport.is_active()

    def _is_closed(self) -> bool:
        channel = self._channel.remote_conn
        return channel is None or bool(getattr(channel, "closed", False))

    def _lost(self, command: str) -> UnreachableError:
        return UnreachableError(
            self.login.switch, f"the connection was lost at `{self._redact(command)}`"
        )

    def _note(self, command: str, body: str) -> None:
        """Keep what was said; of a long answer (counters, configurations) only how long it was."""
        if self._transcript is None:
            return
        if len(body) > _KEPT:
            body = f"({body.count(chr(10)) + 1} lines)"
        self._transcript(self._redact(f"{self._prompt} {command}\n{body}".rstrip()))

    def close(self) -> None:
        """Close without a word: `exit` in a configuration mode would not leave anyway."""
        channel = getattr(self, "_channel", None)
        for thing in (getattr(channel, "remote_conn_pre", None), self._jump):
            if thing is not None:
                try:
                    thing.close()
                except (OSError, EOFError, paramiko.SSHException):
                    continue


def _split(text: str, command: str, base: str) -> tuple[str, str]:
    """Body and prompt; echoes (also repeated ones, with a prompt before them) are left out."""
    lines = [line.rstrip("\r") for line in text.replace("\r\n", "\n").split("\n")]
    prompt = lines.pop().strip()
    command, first = command.strip(), 0
    while first < len(lines) and _is_echo(lines[first].strip(), command, base):
        first += 1
    return "\n".join(lines[first:]).strip("\n"), prompt


def _is_echo(line: str, command: str, base: str) -> bool:
    """True for the command as it was typed, behind a prompt or not, and for an empty line."""
    if line in ("", command):
        return True
    before = line.removesuffix(command)
    return (
        line.endswith(command) and re.fullmatch(rf"{re.escape(base)}\S*[#>] ?", before) is not None
    )


def _last_lines(text: str) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-3:] if line.strip())


def _unique(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(text.strip() for text in texts))
