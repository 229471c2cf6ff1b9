"""The module that tries a configuration: what the trial may touch, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from railweld.slurm import conf, model
from tests.loading import load_file
from tests.unit.slurm.conftest import SiteMaker

PATH = Path(__file__).parents[3] / "plugins/modules/railweld_slurm_config.py"


@pytest.fixture(scope="module")
def module() -> Any:
    return load_file(PATH)


def test_a_trial_touches_neither_the_state_nor_the_database(module: Any, site: SiteMaker) -> None:
    text = conf.slurm_conf(model.fact(site()))
    tried = module.trial_conf(text, Path("/trial"))
    assert "StateSaveLocation=/trial/state" in tried
    assert "SlurmctldPidFile=/trial/state/slurmctld.pid" in tried
    assert "AccountingStorageType=accounting_storage/none" in tried
    for line in tried.splitlines():
        assert not line.startswith(("AccountingStorageHost", "SlurmctldLogFile"))
        assert conf.STATE not in line
    # What is tried is the rest, unchanged.
    assert [line for line in text.splitlines() if line.startswith(("NodeName", "Partition"))] == [
        line for line in tried.splitlines() if line.startswith(("NodeName", "Partition"))
    ]


@pytest.mark.parametrize(
    ("said", "started"),
    [
        ("slurmctld: Running as primary controller", True),
        ("slurmctld: fatal: Unable to process configuration file", False),
    ],
)
def test_a_start_is_believed_only_when_slurmctld_says_so(
    module: Any, said: str, started: bool
) -> None:
    program = f"import sys; print({said!r}, flush=True)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        lines: list[str] = []
        assert module.follow(process, lines, 60) is started
        assert lines == [said]


@pytest.mark.parametrize(
    "line",
    [
        'error: _find_node_record: lookup failure for node "gpu4"',
        "build_part_bitmap: invalid node name gpu4 in partition",
    ],
)
def test_mistakes_that_slurmctld_works_around_are_refused_all_the_same(
    module: Any, line: str
) -> None:
    assert module.MISTAKES.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "error: Configured MailProg is invalid",
        "error:  mpi/pmix_v4: init: (null) [0]: pmi/pmix: can not load PMIx library",
        "error: MPI: Cannot create context for mpi/pmix_v4",
        "No memory enforcing mechanism configured.",
        "read_slurm_conf: backup_controller not specified",
        "select/cons_tres: part_data_create_array: select/cons_tres: preparing for 1 partitions",
        "No parameter for mcs plugin, default values set",
        "error: Could not open job state file /x/job_state: No such file or directory",
        "error: NOTE: Trying backup state save file. Jobs may be lost!",
    ],
)
def test_what_every_start_of_debians_build_says_is_no_mistake(module: Any, line: str) -> None:
    assert not module.MISTAKES.search(line)


def test_files_are_read_and_replaced_whole(module: Any, tmp_path: Path) -> None:
    module.write(tmp_path / "slurm/slurm.conf", "a\n")
    (tmp_path / "slurm/plugstack.txt").write_text("not ours")
    assert module.read_folder(tmp_path / "slurm") == {"slurm.conf": "a\n"}
    names = {path.name for path in (tmp_path / "slurm").iterdir()}
    assert names == {"slurm.conf", "plugstack.txt"}
    assert (tmp_path / "slurm/slurm.conf").stat().st_mode & 0o777 == 0o644
