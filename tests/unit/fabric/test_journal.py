"""The journal of pushes: what may be gone back to."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweld.errors import UsageError
from railweld.fabric.journal import backups_before


def test_a_time_that_is_none_says_what_it_may_be_and_that_there_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path))
    with pytest.raises(UsageError, match=r"'yesterday', expected a time .* there is none yet"):
        backups_before("lab", "yesterday")
