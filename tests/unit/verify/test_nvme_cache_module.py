"""Proof that a disk is empty: what is read, and what counts as data.

Loop devices need root; the role's molecule scenarios format and refuse real ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loading import load_file

LIBRARY = Path(__file__).parents[3] / "roles/nvme_cache/library/nvme_cache_filesystem.py"

MODULE = load_file(LIBRARY)


@given(st.integers(min_value=1, max_value=32 * 2**40))
def test_both_edges_are_read_whole_and_nothing_past_the_end(size: int) -> None:
    read = list(MODULE.places(size))
    assert read[0] == (0, min(MODULE.EDGE, size))
    assert sum(read[-1]) == size
    assert all(length > 0 and offset + length <= size for offset, length in read)
    if size > 2 * MODULE.EDGE:
        assert read[-1] == (size - MODULE.EDGE, MODULE.EDGE)
    assert len(read) <= MODULE.SAMPLES + 3


@pytest.mark.parametrize("offset", [0, 510, 4 << 20, (40 << 20) - 1])
def test_single_byte_at_the_edges_is_found(tmp_path: Path, offset: int) -> None:
    disk = tmp_path / "disk"
    with disk.open("wb") as handle:
        handle.truncate(40 << 20)
        handle.seek(offset)
        handle.write(b"\x01")
    with disk.open("rb", buffering=0) as handle:
        assert MODULE.first_data(handle, 40 << 20) == offset


def test_disk_of_zeros_is_empty(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with disk.open("wb") as handle:
        handle.truncate(64 << 20)
    with disk.open("rb", buffering=0) as handle:
        assert MODULE.first_data(handle, 64 << 20) is None


def test_file_and_missing_device_are_refused(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"")
    for name, reason in (("disk", "not a block device"), ("gone", "no such device")):
        with pytest.raises(MODULE.RefusedError, match=reason):
            MODULE.ensure(str(tmp_path / name), "ext4", "no-such-uuid", "x", dry_run=False)
