"""Renews the daemon's token: short-lived, so that a copy of it is worth little for long.

The account may ask for tokens of its own, and for nobody else's. A token lives for a week and is
renewed at half of that; only a daemon that was off for longer needs deploy-slurm.yml again.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from railweld import names
from railweld.bridge.kube import KubeRefusedError, KubeUnknownError
from railweld.errors import RailweldError

if TYPE_CHECKING:
    from railweld.bridge.kube import Kube

_log = logging.getLogger(__name__)

LIFETIME_SECONDS: Final = 7 * 24 * 3600
#: Renewed when this part of its life is left.
RENEW_AT: Final = 0.5
#: When this part is left, renewal has failed: operators are told, the playbook issues another.
ALARM_AT: Final = 0.25
#: Between two looks; a token that could not be renewed is tried again then.
PAUSE_SECONDS: Final = 300.0
PATH: Final = (
    f"/api/v1/namespaces/{names.NAMESPACE_SYSTEM}/serviceaccounts/"
    f"{names.SERVICE_ACCOUNT_BRIDGE}/token"
)
#: What is sent there.
REQUEST: Final = {
    "apiVersion": "authentication.k8s.io/v1",
    "kind": "TokenRequest",
    "spec": {"expirationSeconds": LIFETIME_SECONDS},
}


def claims(token: str) -> tuple[float, float] | None:
    """When a token was issued and when it ends; None for one that does not say."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = parts[1] + "=" * (-len(parts[1]) % 4)
        said = json.loads(base64.urlsafe_b64decode(payload))
        return float(said["iat"]), float(said["exp"])
    except (ValueError, KeyError, TypeError):
        return None


def left(token: str, now: float) -> float | None:
    """What part of a token's life is left; None for one that does not end."""
    found = claims(token)
    if found is None or found[1] <= found[0]:
        return None
    return max(found[1] - now, 0.0) / (found[1] - found[0])


class Renewal:
    """Keeps the token in a file fresh."""

    def __init__(self, kube: Kube, path: Path) -> None:
        self._kube = kube
        self._path = path
        #: Why the last attempt failed; empty after one that did not.
        self.trouble = ""

    def _token(self) -> str:
        """The token in the file; empty where there is none."""
        try:
            return self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def part_left(self) -> float | None:
        """Of the life of the token in the file; None where there is none that ends."""
        return left(self._token(), time.time())

    def seconds_left(self) -> float | None:
        """Until the token ends."""
        found = claims(self._token())
        return None if found is None else found[1] - time.time()

    def problem(self) -> str:
        """For operators: empty unless the token is about to end."""
        part = self.part_left()
        if part is None or part > ALARM_AT:
            return ""
        why = f" ({self.trouble})" if self.trouble else ""
        return f"the token has {part:.0%} of its life left and was not renewed{why}"

    async def run(self) -> None:
        """Renew for ever."""
        while True:
            await self.look()
            await asyncio.sleep(PAUSE_SECONDS)

    async def look(self) -> bool:
        """Renew the token if it is time; tell whether it was."""
        part = self.part_left()
        if part is None or part > RENEW_AT:
            return False
        try:
            answer = await self._kube.request("POST", PATH, REQUEST)
            write(self._path, str(answer["status"]["token"]))
            self._kube.renewed()
        except (
            KubeUnknownError, KubeRefusedError, RailweldError, OSError, KeyError, TypeError,
        ) as error:  # fmt: skip
            self.trouble = str(error)
            _log.warning("token not renewed", extra={"error": self.trouble})
            return False
        self.trouble = ""
        _log.info("token renewed", extra={"seconds": self.seconds_left()})
        return True


def write(path: Path, token: str) -> None:
    """Replace the file whole; nobody else may read it at any moment."""
    candidate = path.with_name(f"{path.name}.new")
    descriptor = os.open(candidate, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, token.encode("ascii"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    candidate.replace(path)
