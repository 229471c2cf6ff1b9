"""Builds small Debian packages and signed flat apt repositories."""

from __future__ import annotations

import fnmatch
import gzip
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from railweld.lab.process import LabError, run
from railweld.state import cache_dir, held

KEY_NAME = "railweld lab mirror"
#: Build date of everything in the lab, so that the same input gives the same bytes.
EPOCH = "1700000000"


@dataclass(frozen=True, kw_only=True)
class Deb:
    """A package to build: control fields, files by absolute path, maintainer scripts by name."""

    name: str
    version: str
    description: str
    architecture: str = "amd64"
    fields: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    executable: frozenset[str] = frozenset()
    scripts: Mapping[str, str] = field(default_factory=dict)


def build_deb(deb: Deb, folder: Path) -> Path:
    """Write `NAME_VERSION_ARCH.deb` into a folder and return its path."""
    target = folder / f"{deb.name}_{deb.version.replace(':', '%3a')}_{deb.architecture}.deb"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        control = root / "DEBIAN"
        control.mkdir(mode=0o755)
        lines = {
            "Package": deb.name,
            "Version": deb.version,
            "Architecture": deb.architecture,
            "Maintainer": "railweld lab <lab@railweld.invalid>",
            "Section": "misc",
            "Priority": "optional",
            **deb.fields,
            "Description": deb.description,
        }
        (control / "control").write_text("".join(f"{k}: {v}\n" for k, v in lines.items()))
        for script, text in deb.scripts.items():
            (control / script).write_text(text)
            (control / script).chmod(0o755)
        for path, content in deb.files.items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
            file.chmod(0o755 if path in deb.executable else 0o644)
        for path, destination in deb.links.items():
            link = root / path.lstrip("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(destination)
        run(
            ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(target)],
            environment={"SOURCE_DATE_EPOCH": EPOCH},
        )
    return target


@dataclass(frozen=True)
class SigningKey:
    """The lab's own key: one per cache, made on first use, worth nothing outside."""

    home: Path
    fingerprint: str

    def export(self) -> str:
        """The public key, ASCII-armoured."""
        return self._gpg("--armor", "--export", self.fingerprint)

    def sign(self, folder: Path) -> None:
        """Sign `Release` in both ways that apt reads."""
        release = folder / "Release"
        common = ["--local-user", self.fingerprint, "--digest-algo", "SHA512", "--yes"]
        self._gpg(*common, "--clearsign", "--output", str(folder / "InRelease"), str(release))
        self._gpg(
            *common,
            "--armor",
            "--detach-sign",
            "--output",
            str(folder / "Release.gpg"),
            str(release),
        )

    def _gpg(self, *arguments: str) -> str:
        with _gnupg(self.home) as gpg:
            return run([*gpg, *arguments]).stdout


def signing_key() -> SigningKey:
    """Return the cache's signing key; make it if there is none."""
    home = cache_dir("lab", "gnupg")
    home.chmod(0o700)
    with _gnupg(home) as gpg:
        fingerprint = _fingerprint(gpg)
        if fingerprint is None:
            new = ["--quick-gen-key", KEY_NAME, "ed25519", "sign", "never"]
            run([*gpg, "--passphrase", "", *new])
            fingerprint = _fingerprint(gpg)
    if fingerprint is None:
        raise LabError(
            f"{home}: found no key after gpg --quick-gen-key; remove the folder and retry"
        )
    return SigningKey(home, fingerprint)


@contextmanager
def _gnupg(home: Path) -> Iterator[list[str]]:
    """The gpg command for this folder, one process at a time, and no agent left behind.

    All labs share the folder's agent. Ended by one while another lists keys, the other finds none.
    """
    with held(home.with_suffix(".lock")):
        try:
            yield ["gpg", "--homedir", str(home), "--batch"]
        finally:
            run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


def _fingerprint(gpg: Sequence[str]) -> str | None:
    listing = run([*gpg, "--with-colons", "--list-secret-keys"]).stdout
    return next(
        (line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:")), None
    )


def index_repository(folder: Path, key: SigningKey, *, label: str) -> None:
    """Write and sign the indexes of a flat repository whose packages lie in `folder`.

    Args:
        folder: the packages; the indexes go beside them.
        key: signs.
        label: origin, label and codename in Release.
    """
    text = run(["apt-ftparchive", "packages", "."], cwd=folder).stdout
    write_index(folder, key, packages=text, label=label)


def write_index(
    folder: Path, key: SigningKey, *, packages: str, label: str, date: str | None = None
) -> None:
    """Write Packages, Release and their signatures into a folder.

    Args:
        folder: where they go.
        key: signs.
        packages: the text of Packages.
        label: label and codename in Release.
        date: Date in Release, default: now. apt keeps what it has when a new one is older.
    """
    (folder / "Packages").write_text(packages)
    with gzip.GzipFile(folder / "Packages.gz", "wb", mtime=0) as file:
        file.write(packages.encode())
    for old in ("Release", "InRelease", "Release.gpg"):
        (folder / old).unlink(missing_ok=True)
    options = {
        "Origin": "railweld-lab",
        "Label": f"railweld-lab-{label}",
        "Suite": "stable",
        "Codename": label,
        "Architectures": "amd64 all",
        "Description": f"railweld lab mirror: {label}",
    }
    argv = ["apt-ftparchive"]
    for name, value in options.items():
        argv += ["-o", f"APT::FTPArchive::Release::{name}={value}"]
    release = run([*argv, "release", "."], cwd=folder).stdout
    if date is not None:
        release = re.sub(r"^Date: .*$", f"Date: {date}", release, flags=re.MULTILINE)
    (folder / "Release").write_text(release)
    key.sign(folder)
    run(["gpgconf", "--homedir", str(key.home), "--kill", "all"], check=False)


def hide_packages(packages: str, hide: Sequence[str]) -> str:
    """Drop stanzas from the text of a Packages file.

    Args:
        packages: the text.
        hide: `NAME` or `NAME=VERSION`, with shell wildcards.
    """
    kept = []
    for stanza in packages.split("\n\n"):
        name = re.search(r"^Package: (\S+)", stanza, re.MULTILINE)
        version = re.search(r"^Version: (\S+)", stanza, re.MULTILINE)
        full = f"{name[1] if name else ''}={version[1] if version else ''}"
        if not any(
            fnmatch.fnmatchcase(full, word if "=" in word else f"{word}=*") for word in hide
        ):
            kept.append(stanza)
    return "\n\n".join(kept)
