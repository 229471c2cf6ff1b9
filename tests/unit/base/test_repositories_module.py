from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

#: A public-key packet of version 4 in the old format, and one of another key in the new format.
BODY = b"\x04\x60\x00\x00\x00\x01" + b"\x00\x10\xab\xcd" + b"\x00\x03\x07"
OTHER = b"\x04\x61\x00\x00\x00\x01" + b"\x00\x10\xab\xce" + b"\x00\x03\x07"


def packet(body: bytes, *, new: bool = False) -> bytes:
    head = bytes([0xC0 | 6, len(body)]) if new else bytes([0x80 | 6 << 2 | 0, len(body)])
    return head + body


def fingerprint(body: bytes) -> str:
    material = b"\x99" + len(body).to_bytes(2, "big") + body
    return hashlib.new("sha1", material, usedforsecurity=False).hexdigest().upper()


def armored(data: bytes) -> bytes:
    text = base64.b64encode(data)
    return (
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: a mirror\n\n"
        + text[:20]
        + b"\n"
        + text[20:]
        + b"\n=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n"
    )


KEY = packet(BODY)


@pytest.fixture
def module(plugin: Callable[[str, str], ModuleType]) -> ModuleType:
    return plugin("modules", "railweld_repositories")


def repository(**changes: Any) -> dict[str, Any]:
    return {
        "id": "cuda",
        "url": "http://10.0.0.1/cuda",
        "suite": "",
        "components": [],
        "key_url": "http://10.0.0.1/key.asc",
        "key_fingerprint": fingerprint(BODY),
        **changes,
    }


@pytest.mark.parametrize("data", [KEY, packet(BODY, new=True), armored(KEY)])
def test_the_described_key_is_accepted_in_every_form(module: ModuleType, data: bytes) -> None:
    binary = module.verify_key(repository(), data)
    assert module.fingerprints(binary) == [fingerprint(BODY)]


@pytest.mark.parametrize("spelling", [str.lower, " ".join])
def test_the_fingerprint_may_be_written_as_gpg_prints_it(
    module: ModuleType, spelling: Callable[[str], str]
) -> None:
    wanted = repository(key_fingerprint=spelling(fingerprint(BODY)))
    assert module.verify_key(wanted, KEY) == KEY


def test_another_key_at_the_address_is_refused_with_both_fingerprints(module: ModuleType) -> None:
    with pytest.raises(module.RefusedError) as error:
        module.verify_key(repository(), packet(OTHER))
    assert f"found key {fingerprint(OTHER)}" in str(error.value)
    assert f"expected {fingerprint(BODY)}" in str(error.value)


def test_a_second_key_beside_the_described_one_is_refused(module: ModuleType) -> None:
    with pytest.raises(module.RefusedError):
        module.verify_key(repository(), KEY + packet(OTHER))


def test_a_key_from_the_network_without_a_fingerprint_is_refused(module: ModuleType) -> None:
    with pytest.raises(module.RefusedError, match="trusted only by its fingerprint"):
        module.verify_key(repository(key_fingerprint=None), KEY)


def test_a_key_file_of_the_operator_needs_no_fingerprint(module: ModuleType) -> None:
    given = repository(key_url=None, key_fingerprint=None, key_data="x", key_file="a.asc")
    assert module.verify_key(given, KEY) == KEY


@pytest.mark.parametrize("data", [b"", b"<html>not found</html>", b"\x99", armored(b"")])
def test_an_answer_that_is_no_key_is_refused(module: ModuleType, data: bytes) -> None:
    with pytest.raises(module.RefusedError, match="found no OpenPGP public key"):
        module.verify_key(repository(), data)


def desired(module: ModuleType, apt: Path, *repositories: dict[str, Any]) -> Any:
    return module.desired_files(list(repositories), 600, 5, apt, lambda *_: KEY)


def test_a_flat_mirror_becomes_a_signed_source_with_priority(
    module: ModuleType, tmp_path: Path
) -> None:
    files, adopted = desired(module, tmp_path, repository())
    source = files[tmp_path / "sources.list.d/railweld-cuda.sources"].decode()
    assert source == (
        "# Managed by railweld (role package_lock). Changes are overwritten.\n"
        "Types: deb\nURIs: http://10.0.0.1/cuda/\nSuites: /\n"
        f"Signed-By: {tmp_path}/keyrings/railweld-cuda.gpg\n"
    )
    assert files[tmp_path / "keyrings/railweld-cuda.gpg"] == KEY
    pin = files[tmp_path / "preferences.d/railweld.pref"].decode()
    assert 'Pin: origin "10.0.0.1"\nPin-Priority: 600' in pin
    assert adopted == []


def test_a_suite_brings_its_components(module: ModuleType, tmp_path: Path) -> None:
    files, _ = desired(module, tmp_path, repository(suite="jammy", components=["main", "x"]))
    source = files[tmp_path / "sources.list.d/railweld-cuda.sources"].decode()
    assert "Suites: jammy\nComponents: main x\n" in source


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.list", "deb [signed-by=/k.gpg] http://10.0.0.1/cuda /\n"),
        ("a.sources", "Types: deb\nURIs: http://10.0.0.1/cuda/\nSuites: /\nSigned-By: /k.gpg\n"),
    ],
)
def test_an_address_that_another_file_lists_is_left_to_it(
    module: ModuleType, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / name).write_text(text)
    files, adopted = desired(module, tmp_path, repository())
    assert adopted == ["cuda"]
    assert list(files) == [tmp_path / "preferences.d/railweld.pref"]


def test_an_unsigned_repository_is_refused(module: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(module.RefusedError, match="only signed repositories are used"):
        desired(module, tmp_path, repository(key_url=None))


def test_a_key_that_cannot_be_fetched_names_address_and_fix(module: ModuleType) -> None:
    with pytest.raises(module.RefusedError) as error:
        module.fetch_key(repository(key_url="http://127.0.0.1:1/key.asc"), 2)
    assert "cannot fetch http://127.0.0.1:1/key.asc" in str(error.value)
    assert "start the mirror" in str(error.value)


def test_a_key_address_of_another_scheme_is_refused(module: ModuleType) -> None:
    with pytest.raises(module.RefusedError, match="expected http"):
        module.fetch_key(repository(key_url="file:///etc/shadow"), 2)


def test_sources_of_an_earlier_description_go_away(module: ModuleType, tmp_path: Path) -> None:
    for name in ("sources.list.d/railweld-doca.sources", "sources.list.d/debian.sources"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    files, _ = desired(module, tmp_path, repository())
    assert module.stale_files(files, tmp_path) == [
        tmp_path / "sources.list.d/railweld-doca.sources"
    ]
