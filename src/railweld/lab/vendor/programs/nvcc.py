"""nvcc: answers --version, compiles nothing."""

from __future__ import annotations

from railweld.lab.vendor.programs.machine import Build, Machine, complain, say

#: What the real compilers of these toolkits print behind the version.
BUILDS = {
    "12.1.105": ("2005-2023", "Mon_Apr__3_17:16:06_PDT_2023", "32688072_0"),
    "13.0.88": ("2005-2025", "Wed_Aug_20_01:58:59_PM_PDT_2025", "36424714_0"),
}


def main(argv: list[str], build: Build, _machine: Machine) -> int:
    """Run nvcc."""
    if argv[:1] not in (["--version"], ["-V"]):
        complain("nvcc fatal   : railweld lab stand-in: only --version is answered")
        return 1
    years, built, compiler = BUILDS.get(
        build["nvcc"], ("2005-2025", "Mon_Jan__1_00:00:00_PDT_2024", "00000000_0")
    )
    say("nvcc: NVIDIA (R) Cuda compiler driver")
    say(f"Copyright (c) {years} NVIDIA Corporation")
    say(f"Built on {built}")
    say(f"Cuda compilation tools, release {build['release']}, V{build['nvcc']}")
    say(f"Build cuda_{build['release']}.r{build['release']}/compiler.{compiler}")
    return 0
