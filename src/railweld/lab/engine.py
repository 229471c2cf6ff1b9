"""The lab's Pulumi and kubectl, built from source, and a stand-in of Pulumi's language host.

On a real site nothing here is used: the official CLI brings its language host and fetches the
provider.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from pathlib import Path
from typing import Final

from railweld.lab import tools
from railweld.lab.process import Report
from railweld.names import KUBECONFIG
from railweld.state import cache_dir, site_state_dir

_LANGUAGE_HOST: Final = "pulumi-language-python"
#: Nothing is fetched, and `destroy` looks whether it is the right cluster, as `up` does.
SETTINGS: Final = {
    "PULUMI_SKIP_UPDATE_CHECK": "true",
    "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    "PULUMI_RUN_PROGRAM": "true",
}


def folders(report: Report | None = None) -> list[Path]:
    """Return what belongs on PATH; builds what the cache has not got.

    Raises:
        LabError: no usable Go, or a build failed.
    """
    return [
        tools.ensure("pulumi", report),
        tools.ensure("pulumi-resource-kubernetes", report),
        language_host(),
    ]


def kubectl(report: Report | None = None) -> Path:
    """Return a folder with kubectl alone: kubelet and kubeadm are the nodes' own."""
    program = tools.ensure("kubernetes", report) / "kubectl"
    folder = cache_dir("tools", "kubectl", program.parent.name)
    link = folder / program.name
    if not link.is_symlink():
        link.symlink_to(program)
    return folder


def settings(site: str) -> dict[str, str]:
    """Environment of engine and kubectl on a terminal: nothing is asked.

    The passphrase is made on the first call and kept beside the site's state, mode 0600.
    """
    passphrase = site_state_dir(site) / "pulumi.passphrase"
    if not passphrase.exists():
        partial = passphrase.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(secrets.token_urlsafe(32), encoding="ascii")
        partial.replace(passphrase)
    return {
        "KUBECONFIG": str(site_state_dir(site) / KUBECONFIG),
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase),
        **SETTINGS,
    }


def language_host() -> Path:
    """Return the folder of the program that the engine looks for; it runs with this Python."""
    text = (
        f"#!/usr/bin/env -S {sys.executable} -P\n"
        "from railweld.lab.language_host import main\n\nmain()\n"
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = cache_dir("tools", _LANGUAGE_HOST, digest)
    program = folder / _LANGUAGE_HOST
    if not program.is_file():
        partial = folder / f"{_LANGUAGE_HOST}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.chmod(0o755)
        partial.replace(program)
    return folder
