"""What it takes to build nccl-tests on a node: the commands, and what was built last time.

The role `nccl_tests` runs this; nothing here touches a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from railweld.bench.launch import MPI_TEST, PROGRAMS, TEST
from railweld.bench.results import parse
from railweld.gpus import architecture
from railweld.names import NCCL_TESTS, NCCL_TESTS_STAMP
from railweld.verify.roles.nccl_tests import built

#: Of the role's work, gone when it is through.
SOURCE: Final = f"{NCCL_TESTS}/src"
#: Enough to see that every GPU takes part, NCCL loads and sums are right; a second of work.
_ASK: Final = ("-b", "8", "-e", "1M", "-f", "2", "-n", "5", "-w", "1", "-c", "1")


@dataclass(frozen=True, kw_only=True)
class Build:
    """A build on one node.

    Attributes:
        commit: of nccl-tests.
        archive: SHA-256 of the tarball that the source comes from; empty where it is cloned.
        cuda: release of the described toolkit, whose compiler is used.
        nvcc: version of that compiler, as seen on the node.
        nccl: version of the library and headers, as seen on the node.
        model: the node's GPUs, as described.
        gpus: how many take part when the program is asked.
        mpi_home: where MPI is; empty: build without it.
        jobs: compilers at the same time.
    """

    commit: str
    archive: str
    cuda: str
    nvcc: str
    nccl: str
    model: str
    gpus: int
    mpi_home: str
    jobs: int

    @classmethod
    def of(
        cls, node: Mapping[str, Any], host: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Build:
        """From the observation, the description, and `commit`, `archive`, `mpi_home`, `jobs`."""
        gpu = host.get("gpu") or {}
        return cls(
            cuda=str(host["cuda"]["release"]),
            nvcc=str((node.get("cuda") or {}).get("nvcc") or ""),
            nccl=str((node.get("nccl") or {}).get("version") or ""),
            model=str(gpu.get("model") or ""),
            gpus=1 if gpu.get("mig") else int(gpu.get("count") or 1),
            commit=str(settings["commit"]),
            archive=str(settings["archive"]),
            mpi_home=str(settings["mpi_home"]),
            jobs=int(settings["jobs"]),
        )

    @property
    def stamp(self) -> dict[str, str]:
        """What decides about the programs; kept beside them."""
        return {
            "commit": self.commit,
            "archive": self.archive,
            "nvcc": self.nvcc,
            "nccl": self.nccl,
            "architecture": architecture(self.model) or "",
            "mpi_home": self.mpi_home,
        }

    @property
    def folders(self) -> list[str]:
        """Where the commands leave programs: each kind has objects of its own."""
        return [f"{SOURCE}/plain", *([f"{SOURCE}/mpi"] if self.mpi_home else [])]

    @property
    def commands(self) -> list[list[str]]:
        """The builds, one per folder."""
        common = ["make", "-C", SOURCE, f"-j{self.jobs}", "src.build"]
        common += [f"CUDA_HOME=/usr/local/cuda-{self.cuda}"]
        # Without it the Makefile builds for every architecture that the toolkit knows: minutes.
        if which := architecture(self.model):
            common += [f"NVCC_GENCODE=-gencode=arch=compute_{which},code=sm_{which}"]
        mpi = ["MPI=1", "NAME_SUFFIX=_mpi", f"MPI_HOME={self.mpi_home}"]
        return [
            [*common, f"BUILDDIR={folder}", *([] if number == 0 else mpi)]
            for number, folder in enumerate(self.folders)
        ]

    @property
    def questions(self) -> list[list[str]]:
        """The built programs, as they are asked before they are installed."""
        plain = [f"{self.folders[0]}/{TEST}", *_ASK, "-g", str(self.gpus)]
        if not self.mpi_home:
            return [plain]
        mpi = ["mpirun", "--allow-run-as-root", "-np", "1", f"{self.folders[1]}/{MPI_TEST}"]
        return [plain, [*mpi, *_ASK, "-g", "1"]]

    @property
    def programs(self) -> list[str]:
        """What `railweld bench` starts."""
        return [f"{PROGRAMS}/{TEST}", *([f"{PROGRAMS}/{MPI_TEST}"] if self.mpi_home else [])]


def plan(
    node: Mapping[str, Any], host: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """All that the role needs to know about a node, as plain values."""
    build = Build.of(node, host, settings)
    drifted = ((node.get("records") or {}).get("nccl_tests") or {}).get("drifted") or []
    return {
        "is_built": built(node) == build.stamp and not drifted,
        "home": NCCL_TESTS,
        "bin": PROGRAMS,
        "source": SOURCE,
        "stamp_file": NCCL_TESTS_STAMP,
        "stamp": build.stamp,
        "folders": build.folders,
        "commands": build.commands,
        "questions": build.questions,
        "programs": build.programs,
    }


def answer(text: str) -> dict[str, Any]:
    """What a program said when it was asked: `complete`, `wrong`, `gpus` and `nccl`."""
    result = parse(text)
    return {
        "complete": result.complete,
        "wrong": result.wrong,
        "gpus": len(result.ranks),
        "nccl": result.nccl,
    }
