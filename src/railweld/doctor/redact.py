"""Takes secrets out of evidence. Logs are pasted into tickets."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "<hidden>"

_NAME: Final = (
    r"[\w.-]*(?:password|passwd|passphrase|pwd|secret|token(?!s\b)|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|auth[_-]?key|shared[_-]?key|credentials?|client-key-data)[\w.-]*"
)
#: (expression, replacement). The order matters: whole values first, then names with a value.
_RULES: Final = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*"), f"-----BEGIN PRIVATE KEY----- {MASK}"),
    # Authorization: Bearer x, "Proxy-Authorization": "Basic x", X-Auth-Token: x, Cookie: x
    (
        re.compile(
            r"(?i)(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:(\w+)\s+)?[^\s\"',;]+"
        ),
        rf"\1\2 {MASK}",
    ),
    (re.compile(r"(?i)(\b(?:set-)?cookie\s*:\s*).+"), rf"\1{MASK}"),
    (re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}"), rf"\1{MASK}"),
    # A user's password in an address.
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@"), rf"\1:{MASK}@"),
    # Well-known shapes, wherever they stand.
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), MASK),
    (
        re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|dop_v1_)[\w-]{16,}"),
        MASK,
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), MASK),
    (re.compile(r"\bMUNGE:[\w+/=]+:?"), f"MUNGE:{MASK}"),
    (re.compile(r"(?i)(snmp-server community )\S+"), rf"\1{MASK}"),
    # kubeadm's bootstrap tokens.
    (re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b"), MASK),
    # --password x, --token=x
    (re.compile(rf"(?i)(--{_NAME})(\s+|=)(?!-)(\"[^\"]*\"|'[^']*'|\S+)"), rf"\1\2{MASK}"),
    # name: "value with spaces", name=value, "name": value
    (
        re.compile(rf"(?i)(\b{_NAME}[\"']?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s\"',;&)\]}}]+)"),
        rf"\1{MASK}",
    ),
)
#: Nothing that the rules look for is in a line without one of these; most lines have none.
_WORTH_A_LOOK: Final = re.compile(
    r"(?i)-----BEGIN|authorization|cookie|bearer|://|eyJ|gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox|dop_v1_"
    r"|AKIA|ASIA|MUNGE:|pass|pwd|secret|token|key|credential|community|[a-z0-9]{6}\.[a-z0-9]{16}"
)


def redact(text: str) -> str:
    """The text without passwords, tokens, authorization headers and private keys."""
    if not _WORTH_A_LOOK.search(text):
        return text
    for expression, replacement in _RULES:
        text = expression.sub(replacement, text)
    return text
