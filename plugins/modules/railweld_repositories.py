#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Sets up signed apt repositories: key with verified fingerprint, source, priority.

Runs on the node: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: railweld_repositories
short_description: Set up signed apt repositories
description:
  - For each repository it fetches the key, compares the fingerprint with the described one, and
    writes key, deb822 source with C(Signed-By), and pin priority. Sources that it wrote earlier and
    that are no longer described go away.
  - A repository that another file already lists is left to that file, since apt refuses two
    different keys for one address.
  - deb822_repository cannot do this on a bare node. It needs python3-debian there, and does not
    compare fingerprints.
options:
  repositories:
    description:
      - Each with C(id), C(url), C(suite), C(components), C(key_url) or C(key_data), and
        C(key_fingerprint).
    type: list
    elements: dict
    required: true
  priority:
    description: Pin priority of these repositories' packages; above the distribution's 500.
    type: int
    default: 600
  timeout:
    description: Seconds to wait for a key.
    type: int
    default: 30
  stage:
    description: Whose repositories these are; those of the other stage are left alone.
    type: str
    choices: [base, cluster, slurm]
    default: base
author:
  - railweld contributors
"""

EXAMPLES = r"""
- name: Set up the vendor's repository
  railweld_repositories:
    repositories: "{{ railweld_host.repositories }}"
"""

RETURN = r"""
adopted:
  description: Repositories that another file of the node already lists.
  type: list
  returned: always
"""

APT = "/etc/apt"
#: Repository to its stage; all others belong to the base stage.
STAGES = {"kubernetes": "cluster", "container_toolkit": "cluster", "slurm": "slurm"}
PREFERENCES = {
    "base": "railweld.pref",
    "cluster": "railweld-cluster.pref",
    "slurm": "railweld-slurm.pref",
}
HEADER = "# Managed by railweld (role package_lock). Changes are overwritten.\n"


class RefusedError(Exception):
    """A repository that must not or cannot be used; the text says found, expected and fix."""


# --- OpenPGP, as much as a fingerprint needs (RFC 4880) ----------------------------------------


def dearmor(data):
    """Return the binary form of a key file, armored or not."""
    if not data.lstrip().startswith(b"-----BEGIN PGP"):
        return data
    blocks = re.findall(
        rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\r\n]+\r?\n)*\r?\n(.*?)"
        rb"-----END PGP PUBLIC KEY BLOCK-----",
        data,
        re.DOTALL,
    )
    binary = b""
    for block in blocks:
        # The line that starts with `=` is the checksum.
        lines = [line for line in block.split() if not line.startswith(b"=")]
        try:
            binary += base64.b64decode(b"".join(lines), validate=True)
        except binascii.Error:
            return b""
    return binary


def packets(data):
    """Yield (tag, body) of OpenPGP packets. Stops at the first byte that starts none."""
    at = 0
    while at < len(data):
        head = data[at]
        at += 1
        if not head & 0x80:
            return
        if head & 0x40:
            tag, first = head & 0x3F, data[at]
            if first < 192:
                length, at = first, at + 1
            elif first < 224:
                length, at = ((first - 192) << 8) + data[at + 1] + 192, at + 2
            elif first == 255:
                length, at = int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
            else:
                return  # partial lengths do not occur in keys
        else:
            tag, kind = (head >> 2) & 0x0F, head & 3
            if kind == 3:
                return
            size = 1 << kind
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        yield tag, data[at : at + length]
        at += length


def fingerprints(data):
    """Return the fingerprints of the primary keys in a binary key file, in capital hex."""
    found = []
    try:
        for tag, body in packets(data):
            if tag == 6 and body[:1] == b"\x04":
                material = b"\x99" + len(body).to_bytes(2, "big") + body
                # A v4 fingerprint is SHA-1 by definition; it names the key, it signs nothing.
                found.append(hashlib.sha1(material).hexdigest().upper())  # noqa: S324 - see above
    except IndexError:
        return found
    return found


def verify_key(repository, data):
    """Return the binary key if it is the described one.

    A key fetched over the network without a described fingerprint is refused: whoever answers
    would be trusted. A key file that the operator gives is trusted as it is.
    """
    name = repository["id"]
    wanted = re.sub(r"[^0-9A-Fa-f]", "", repository.get("key_fingerprint") or "").upper()
    binary = dearmor(data)
    found = fingerprints(binary)
    if not found:
        raise RefusedError(
            f"repository {name}: found no OpenPGP public key in {source_of(repository)}, expected "
            f"one. Fix: correct railweld_mirrors.{name}.key_url or key_file"
        )
    if not wanted and not repository.get("key_data"):
        raise RefusedError(
            f"repository {name}: found no fingerprint for {source_of(repository)}, expected one: a "
            "key from the network is trusted only by its fingerprint. Fix: check that "
            f"{found[0]} is the vendor's and set railweld_mirrors.{name}.key_fingerprint"
        )
    if wanted and found != [wanted]:
        raise RefusedError(
            f"repository {name}: found key {', '.join(found)} at {source_of(repository)}, expected "
            f"{wanted}. Nothing was installed. Fix: if the vendor rotated the key, check the new "
            f"fingerprint on the vendor's site and set railweld_mirrors.{name}.key_fingerprint; "
            "else somebody else answers at that address"
        )
    return binary


def source_of(repository):
    """Where the key came from, in the operator's words."""
    return repository.get("key_url") or repository.get("key_file") or "the key file"


def fetch_key(repository, timeout):
    """Return the key's bytes from the description or from its address."""
    if repository.get("key_data"):
        return base64.b64decode(repository["key_data"])
    url = repository["key_url"]
    if not url.startswith(("http://", "https://")):
        raise RefusedError(
            f"repository {repository['id']}: found key_url {url}, expected http:// or https://. "
            "Fix: use key_file for a file of the controller"
        )
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:  # noqa: S310 - checked above
            return answer.read()
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise RefusedError(
            f"repository {repository['id']}: found that the node cannot fetch {url} ({reason}), "
            f"expected the repository's key there. see: curl -I {url} on the node. Fix: start the "
            "mirror, open the way to it, or correct the address in railweld_mirrors"
        ) from error


# --- files ---------------------------------------------------------------------------------------


def stanza(repository, keyring):
    """Render the deb822 source. No suite means a flat repository."""
    suite = (repository.get("suite") or "").strip()
    lines = [
        HEADER.rstrip("\n"),
        "Types: deb",
        "URIs: " + repository["url"].rstrip("/") + "/",
        "Suites: " + (suite or "/"),
    ]
    if suite and not suite.endswith("/"):
        lines.append("Components: " + " ".join(repository.get("components") or ["main"]))
    lines.append(f"Signed-By: {keyring}")
    return "\n".join(lines) + "\n"


def preferences(repositories, priority):
    """Render the pin priority: between two repositories with a driver, the described one wins."""
    hosts = sorted({urlsplit(each["url"]).hostname or "" for each in repositories} - {""})
    text = HEADER
    for host in hosts:
        text += f'\nPackage: *\nPin: origin "{host}"\nPin-Priority: {priority}\n'
    return text


def listed_elsewhere(apt):
    """Return `{(url, suite): has its own key}` of sources that railweld did not write."""
    found = {}
    parts = apt / "sources.list.d"
    for path in [apt / "sources.list", *sorted(parts.glob("*.list"))]:
        text = path.read_text(errors="replace") if path.is_file() else ""
        pattern = r"^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)"
        for options, url, suite in re.findall(pattern, text, re.MULTILINE):
            found[(normal(url), suite.rstrip("/"))] = "signed-by" in options.lower()
    for path in sorted(parts.glob("*.sources")):
        if path.name.startswith("railweld-"):
            continue
        for block in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            fields = {
                name.lower(): value.strip()
                for name, value in re.findall(r"^([A-Za-z-]+):(.*)$", block, re.MULTILINE)
            }
            for url in fields.get("uris", "").split():
                for suite in fields.get("suites", "").split():
                    found[(normal(url), suite.rstrip("/"))] = bool(fields.get("signed-by"))
    return found


def normal(url):
    """One spelling of an address."""
    return url.rstrip("/").lower()


def unchanged(path, content):
    """True when the file has exactly this content."""
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def write(path, content):
    """Replace a file whole, readable by apt's unprivileged downloader."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    candidate = path.with_name("." + path.name + ".new")
    candidate.write_bytes(content)
    candidate.chmod(0o644)
    with candidate.open("rb") as handle:
        os.fsync(handle.fileno())
    candidate.replace(path)


def desired_files(repositories, priority, timeout, apt, key_for, *, stage="base"):
    """Return (files, adopted): what has to be there, and what other files already list."""
    files, adopted, ours = {}, [], []
    elsewhere = listed_elsewhere(apt)
    for repository in repositories:
        suite = (repository.get("suite") or "").rstrip("/")
        place = (normal(repository["url"]), suite)
        if place in elsewhere:
            adopted.append(repository["id"])
            ours.append(repository)
            continue
        if not repository.get("key_url") and not repository.get("key_data"):
            raise RefusedError(
                f"repository {repository['id']}: found no key, expected one: only signed "
                f"repositories are used. Fix: set railweld_mirrors.{repository['id']}.key_url with "
                "key_fingerprint, or key_file"
            )
        keyring = apt / "keyrings" / f"railweld-{repository['id']}.gpg"
        key = verify_key(repository, key_for(repository, timeout))
        files[keyring] = key
        source = apt / "sources.list.d" / f"railweld-{repository['id']}.sources"
        files[source] = stanza(repository, keyring).encode()
        ours.append(repository)
    if ours:
        path = apt / "preferences.d" / PREFERENCES[stage]
        files[path] = preferences(ours, priority).encode()
    return files, adopted


def stale_files(files, apt, stage="base"):
    """Files that an earlier description left, of this stage alone."""
    patterns = ("keyrings/railweld-*.gpg", "sources.list.d/railweld-*")
    found = {path for pattern in patterns for path in apt.glob(pattern)}
    own = {path for path in found if stage_of(path) == stage}
    own |= set(apt.glob("preferences.d/" + PREFERENCES[stage]))
    return sorted(own - set(files))


def stage_of(path):
    """Stage of a key or source file, by the repository in its name."""
    repository = path.stem[len("railweld-") :]
    return STAGES.get(repository, "base")


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "repositories": {"type": "list", "elements": "dict", "required": True},
            "priority": {"type": "int", "default": 600},
            "timeout": {"type": "int", "default": 30},
            "stage": {"type": "str", "choices": ["base", "cluster", "slurm"], "default": "base"},
        },
        supports_check_mode=True,
    )
    given = module.params
    apt = Path(APT)
    try:
        files, adopted = desired_files(
            given["repositories"],
            given["priority"],
            given["timeout"],
            apt,
            fetch_key,
            stage=given["stage"],
        )
    except RefusedError as error:
        module.fail_json(changed=False, msg=str(error))
    wanted = {path: content for path, content in files.items() if not unchanged(path, content)}
    stale = stale_files(files, apt, given["stage"])
    diff = [
        {
            "before_header": str(path),
            "after_header": str(path),
            "before": shown(path, path.read_bytes() if path.is_file() else b""),
            "after": shown(path, wanted.get(path, b"")),
        }
        for path in [*wanted, *stale]
    ]
    if not module.check_mode:
        for path, content in wanted.items():
            write(path, content)
        for path in stale:
            path.unlink()
    module.exit_json(changed=bool(wanted or stale), adopted=adopted, diff=diff)


def shown(path, content):
    """A file's content for --diff; keys by fingerprint."""
    if path.suffix == ".gpg":
        return "".join(f"key {each}\n" for each in fingerprints(content))
    return content.decode(errors="replace")


if __name__ == "__main__":
    main()
