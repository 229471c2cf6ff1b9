from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from railweld.errors import RailweldError
from railweld.state import one_at_a_time

HOLDER = """
import sys
from railweld.state import one_at_a_time
with one_at_a_time("site", "fabric push"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_until_the_first_has_ended_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RailweldError, match=rf"running already \(process {holder.pid}\)"):
            one_at_a_time("site", "fabric push").__enter__()
        with one_at_a_time("other", "fabric push"), one_at_a_time("site", "something else"):
            pass
        holder.kill()
    with one_at_a_time("site", "fabric push"):
        pass
