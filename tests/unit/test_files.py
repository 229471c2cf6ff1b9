"""Files that commands are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweld.errors import UsageError
from railweld.files import require_writable, write_atomically, write_result


def test_a_place_that_cannot_be_written_is_refused_and_a_file_is_replaced_whole(
    tmp_path: Path,
) -> None:
    for bad in (tmp_path, tmp_path / "missing" / "site.html"):
        with pytest.raises(UsageError, match=r"--output .*expected a file in a writable folder"):
            require_writable(bad, "--output")
    target = tmp_path / "site.html"
    require_writable(target, "--output")
    write_result(target, "one")
    write_result(target, "two")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("site.html", "two")]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "kubeconfig"
    write_atomically(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(target, "new \ud800")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kubeconfig", "old")]
    assert target.stat().st_mode & 0o777 == 0o600
