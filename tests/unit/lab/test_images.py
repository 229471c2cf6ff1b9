"""Image archives: what an engine finds in them, and what is read back from any."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from railweld.lab.images import Image, archive_refs, members_of_packages, write_archive
from railweld.lab.process import LabError


def layer_of(path: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path) as archive:
        manifest = json.load(archive.extractfile("manifest.json"))
        layer = archive.extractfile(manifest[0]["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=io.BytesIO(layer.read())) as inner:
            return {entry.name: entry for entry in inner.getmembers()}


def test_archive_has_program_name_and_layer(tmp_path: Path) -> None:
    program = tmp_path / "hello"
    program.write_bytes(b"\x7fELF")
    image = Image(
        ref="registry.k8s.io/hello:v1",
        programs={"/usr/local/bin/hello": program},
        texts={"/etc/hello.conf": "a\n"},
        entrypoint=("/usr/local/bin/hello",),
    )
    path = tmp_path / "hello.tar"
    write_archive(image, path)
    entries = layer_of(path)
    assert archive_refs(path) == ["registry.k8s.io/hello:v1"]
    assert entries["usr/local/bin/hello"].mode == 0o755
    assert entries["etc/hello.conf"].mode == 0o644
    assert entries["usr/local"].isdir()


def test_link_leads_where_it_is_told(tmp_path: Path) -> None:
    image = Image(ref="a:1", texts={"/usr/sbin/multi": ""}, links={"/usr/sbin/tool": "multi"})
    write_archive(image, tmp_path / "a.tar")
    entries = layer_of(tmp_path / "a.tar")
    assert entries["usr/sbin/tool"].issym()
    assert entries["usr/sbin/tool"].linkname == "multi"


def test_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    image = Image(ref="a:1", texts={"/a": "x"})
    for name in ("one.tar", "two.tar"):
        write_archive(image, tmp_path / name)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_names_are_read_from_an_oci_layout(tmp_path: Path) -> None:
    index = {
        "manifests": [
            {"annotations": {"io.containerd.image.name": "docker.io/library/a:1"}},
            {"annotations": {"org.opencontainers.image.ref.name": "b:2"}},
            {},
        ]
    }
    path = tmp_path / "oci.tar"
    with tarfile.open(path, "w") as archive:
        content = json.dumps(index).encode()
        entry = tarfile.TarInfo("index.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    assert archive_refs(path) == ["b:2", "docker.io/library/a:1"]


def test_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.tar"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("index.json")
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    with pytest.raises(LabError, match=r"expected an image archive"):
        archive_refs(path)


def test_package_files_come_with_what_their_links_lead_to(tmp_path: Path) -> None:
    path = tmp_path / "root.tar"

    def add(archive: tarfile.TarFile, name: str, content: bytes = b"", link: str = "") -> None:
        entry = tarfile.TarInfo(name)
        if link:
            entry.type, entry.linkname = tarfile.SYMTYPE, link
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))

    listing = b"/.\n/sbin/tool\n/usr/share/doc/tool\n/usr/share/doc/tool/copyright\n"
    with tarfile.open(path, "w") as archive:
        add(archive, "./sbin", link="usr/sbin")
        add(archive, "./usr/sbin/tool", link="/etc/alternatives/tool")
        add(archive, "./etc/alternatives/tool", link="/usr/sbin/tool-nft")
        add(archive, "./usr/sbin/tool-nft", link="multi")
        add(archive, "./usr/sbin/multi", b"program")
        add(archive, "./usr/share/doc/tool/copyright", b"text")
        add(archive, "./var/lib/dpkg/info/tool:amd64.list", listing)
    found = {entry.name: data for entry, data in members_of_packages(path, ["tool"])}
    assert set(found) == {
        "sbin",
        "usr/sbin/tool",
        "etc/alternatives/tool",
        "usr/sbin/tool-nft",
        "usr/sbin/multi",
    }
    assert found["usr/sbin/multi"] == b"program"
