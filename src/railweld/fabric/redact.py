"""Secrets out of everything that is written down."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MASK: Final = "<hidden>"

#: EOS lines whose last part is a secret or its hash.
_LINES: Final = (
    re.compile(r"(?im)^(.*\b(?:secret|password) (?:\S+ )?)\S+$"),
    re.compile(r"(?im)^(.*\b(?:key|shared-secret|auth-key|passphrase) (?:[0-9]\S? )?)\S+$"),
    re.compile(r"(?im)^(\s*snmp-server community )\S+"),
    re.compile(r"(?im)^(\s*snmp-server user .*? (?:auth|priv) \S+ )\S+"),
)


class Redactor:
    """Masks known secrets wherever they stand, and EOS lines that hold one."""

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        # The longest first, so that a secret within a secret leaves no tail.
        self._secrets = sorted({s for s in secrets if s}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        for pattern in _LINES:
            text = pattern.sub(lambda found: f"{found[1]}{MASK}", text)
        return text
