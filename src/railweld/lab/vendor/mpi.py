"""Stand-ins of what nccl-tests is built from: MPI and compiler of the distribution, and its source.

apt, make and the Makefile's targets are real; nothing is compiled. The names and versions are those
of Debian 12, sorted just above them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from functools import cache
from pathlib import Path

from railweld.lab.debs import Deb
from railweld.lab.vendor.bundle import SOURCE, program

#: As the role nccl_tests has it in its defaults: the release, and the folder of GitHub's tarballs.
VERSION = "2.19.6"
FOLDER = "nccl-tests-a0b82b2260cf5152b9f8c061bbf7eaf0ba096432"
MPI_HOME = "/usr/lib/x86_64-linux-gnu/openmpi"
MPIRUN = "/usr/bin/mpirun"
GXX = "/usr/bin/g++"
#: The targets, variables and results of the real Makefile. A compiler, headers and, for MPI, its
#: header have to be there, as for the real one.
MAKEFILE = """\
BUILDDIR ?= build
override BUILDDIR := $(abspath $(BUILDDIR))
CUDA_HOME ?= /usr/local/cuda
NVCC ?= $(CUDA_HOME)/bin/nvcc
CXX ?= g++
MPI ?= 0
NAME_SUFFIX ?=
NCCL_H ?= /usr/include/nccl.h
PROGRAM := $(BUILDDIR)/all_reduce_perf$(NAME_SUFFIX)

.PHONY: default src.build
default: src.build
src.build: $(PROGRAM)

$(PROGRAM): all_reduce.pyz $(NCCL_H)
\t$(NVCC) --version >/dev/null
\t$(CXX) --version >/dev/null
\tif [ "$(MPI)" = 1 ]; then test -f "$(MPI_HOME)/include/mpi.h"; fi
\tmkdir -p $(BUILDDIR)
\tcode=$$(sed -n 's/^#define NCCL_VERSION_CODE //p' $(NCCL_H)); \\
\t{ echo '#!/bin/sh'; \\
\t  echo "RAILWELD_LAB_NCCL_HEADERS=$$code exec /usr/bin/python3 \\"\\$$0\\" \\"\\$$@\\""; \\
\t  cat all_reduce.pyz; } >$@
\tchmod 0755 $@
"""


def packages() -> list[Deb]:
    """Packages for the os repository."""
    files = {MPIRUN: program("nccl_tests.mpirun", {})}
    compiler = "#!/bin/sh\necho 'g++ (Debian 12.2.0-14) 12.2.0'\n"
    return [
        Deb(
            name="openmpi-bin",
            version="4.1.4-3+railweld1",
            description="high performance message passing library -- binaries",
            files=files,
            executable=frozenset(files),
        ),
        Deb(
            name="libopenmpi-dev",
            version="4.1.4-3+railweld1",
            description="high performance message passing library -- header files",
            files={
                f"{MPI_HOME}/include/mpi.h": "/* railweld lab: stands in for MPI's header. */\n"
            },
        ),
        Deb(
            name="g++",
            version="4:12.2.0-3+railweld1",
            description="GNU C++ compiler",
            files={GXX: compiler},
            executable=frozenset({GXX}),
        ),
    ]


@cache
def recipe() -> str:
    """Changes when one of the packages does."""
    files = (Path(__file__), SOURCE / "nccl_tests.py", SOURCE / "machine.py")
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@cache
def source() -> bytes:
    """The tarball that the role builds from; the same input gives the same bytes."""
    content = {
        "Makefile": MAKEFILE.encode(),
        "all_reduce.pyz": program("nccl_tests.all_reduce", {"version": VERSION}),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in content.items():
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return gzip.compress(buffer.getvalue(), mtime=0)
