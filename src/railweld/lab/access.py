"""Secrets of a lab: its SSH key, the host keys of its nodes, the key of its munge.

Host key checking stays on in the lab.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path

from railweld.files import write_atomically
from railweld.lab.process import run
from railweld.lab.vendor import mpi
from railweld.state import site_state_dir

FINGERPRINT_FILE = "mirror.fingerprint"


def lab_state_dir(site: str) -> Path:
    """`<state>/<site>/lab`, mode 0700."""
    path = site_state_dir(site) / "lab"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def ssh_key(site: str) -> Path:
    """The lab's private key; made once and kept, so that `down` and `up` need no new inventory."""
    path = lab_state_dir(site) / "ssh_key"
    if not path.exists() or not path.with_suffix(".pub").exists():
        for old in (path, path.with_suffix(".pub")):
            old.unlink(missing_ok=True)
        run(
            [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                f"railweld-lab-{site}",
                "-f",
                str(path),
            ]
        )
    return path


def munge_key(site: str) -> Path:
    """What railweld_munge_key is in the lab, in base64; made once and kept."""
    path = lab_state_dir(site) / "munge.key"
    if not path.exists():
        write_atomically(path, base64.b64encode(secrets.token_bytes(128)).decode() + "\n")
    return path


def write_nccl_tests(site: str) -> None:
    """Put the stand-in for nccl-tests' source, and its checksum, where the inventory names them."""
    folder, content = lab_state_dir(site), mpi.source()
    (folder / "nccl-tests.tar.gz").write_bytes(content)
    write_atomically(folder / "nccl-tests.sha256", f"{hashlib.sha256(content).hexdigest()}\n")


def known_hosts(site: str) -> Path:
    """The file that holds the nodes' host keys."""
    return lab_state_dir(site) / "known_hosts"


def write_known_hosts(site: str, keys: Mapping[str, tuple[str, str]], more: str = "") -> None:
    """Write name and address with the public host key of every node, in one step.

    Args:
        site: the lab.
        keys: node name to (address, public key). The keys were read inside the nodes, not over
            the network, so that nobody in between could have answered.
        more: further lines of such a file, of what is no node.
    """
    lines = [
        f"{name},{address} {' '.join(key.split()[:2])}"
        for name, (address, key) in sorted(keys.items())
    ]
    write_atomically(known_hosts(site), "".join(f"{line}\n" for line in lines) + more)
