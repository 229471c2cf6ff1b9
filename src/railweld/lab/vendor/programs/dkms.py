"""dkms: the real commands, state folders and messages; a build registers a stand-in module.

A source tree is /usr/src/NAME-VERSION with the real dkms.conf and, beside it, `railweld-lab.json`
that says which modules a build gives. A module built for the running kernel is registered where
the node's modinfo and modprobe look for it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from railweld.lab.vendor.programs.machine import Build, Machine, complain, say, version_numbers

SIGNER = "DKMS module signing key"
ARCHITECTURE = "x86_64"


class DkmsError(Exception):
    """Text and exit code as dkms 3 has them."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def main(argv: list[str], build: Build, machine: Machine) -> int:
    """Run dkms."""
    if argv[:1] == ["--version"]:
        say(f"dkms-{build['version']}")
        return 0
    action = argv[0] if argv else ""
    try:
        options = _options(argv[1:])
        if action == "status":
            return _status(machine, options)
        if action == "autoinstall":
            return _autoinstall(machine, options)
        if action in ("add", "build", "install", "remove", "uninstall", "unbuild"):
            return _one(machine, action, options)
    except DkmsError as error:
        complain(str(error))
        return error.code
    complain(f"Error! Unknown action specified: {action!r}")
    return 1


def _options(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    names = {"-m": "module", "-v": "version", "-k": "kernel", "-a": "arch", "-c": "conf"}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in names:
            options[names[word]] = rest.pop(0) if rest else ""
        elif word.startswith("-"):
            options[word.lstrip("-")] = ""
        else:
            options["module"] = word
    module, slash, version = options.get("module", "").partition("/")
    if slash:
        options.update(module=module, version=version)
    return options


def _tree(machine: Machine) -> Path:
    return machine.path("/var/lib/dkms")


def _kernel(machine: Machine) -> str:
    return machine.read("/run/railweld-lab/kernel") or os.uname().release


def entries(machine: Machine) -> list[tuple[str, str, str, str]]:
    """All of (module, version, kernel or empty, state), sorted."""
    found = []
    for tree in sorted(path for path in _tree(machine).glob("*/*") if _is_added(path)):
        name, version = tree.parent.name, tree.name
        kernels = sorted(path.parent for path in tree.glob(f"*/{ARCHITECTURE}"))
        found += [
            (name, version, folder.name, "installed" if _is_installed(folder) else "built")
            for folder in kernels
        ]
        if not kernels:
            found.append((name, version, "", "added"))
    return found


def _is_added(folder: Path) -> bool:
    return (folder / "source").is_symlink()


def _is_installed(folder: Path) -> bool:
    return (folder / ARCHITECTURE / "installed").exists()


def _status(machine: Machine, options: dict[str, str]) -> int:
    for name, version, kernel, state in entries(machine):
        if options.get("module") not in (None, "", name):
            continue
        if options.get("version") not in (None, "", version):
            continue
        if options.get("kernel") not in (None, "", kernel):
            continue
        middle = f", {kernel}, {ARCHITECTURE}" if kernel else ""
        say(f"{name}/{version}{middle}: {state}")
    return 0


def _autoinstall(machine: Machine, options: dict[str, str]) -> int:
    code = 0
    for name, version in sorted({entry[:2] for entry in entries(machine)}):
        try:
            _one(machine, "install", {**options, "module": name, "version": version})
        except DkmsError as error:
            complain(str(error))
            code = 11
    return code


def _one(machine: Machine, action: str, options: dict[str, str]) -> int:
    name, version = options.get("module", ""), options.get("version", "")
    if not name or not version:
        raise DkmsError("Error! Arguments <module> and <module-version> are not specified.", 1)
    kernel = options.get("kernel") or _kernel(machine)
    folder = _tree(machine) / name / version
    if action == "remove":
        return _remove(machine, name, version)
    if not _is_added(folder):
        _add(machine, name, version)
        if action == "add":
            return 0
    elif action == "add":
        raise DkmsError(f"Error! DKMS tree already contains: {name}-{version}", 3)
    if action in ("uninstall", "unbuild"):
        _unregister(machine, name, version)
        (folder / kernel / ARCHITECTURE / "installed").unlink(missing_ok=True)
        if action == "unbuild":
            shutil.rmtree(folder / kernel, ignore_errors=True)  # it may never have been built
        return 0
    if not (folder / kernel / ARCHITECTURE).exists():
        _build(machine, name, version, kernel)
    if action == "install" and not _is_installed(folder / kernel):
        _install(machine, name, version, kernel)
    return 0


def _add(machine: Machine, name: str, version: str) -> None:
    source = machine.path(f"/usr/src/{name}-{version}")
    if not (source / "dkms.conf").exists():
        raise DkmsError(
            f"Error! Could not find module source directory.\n"
            f"Directory: /usr/src/{name}-{version} does not exist.",
            2,
        )
    folder = _tree(machine) / name / version
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source").symlink_to(f"/usr/src/{name}-{version}")
    say(f"Creating symlink /var/lib/dkms/{name}/{version}/source -> /usr/src/{name}-{version}")


def _modules(machine: Machine, name: str, version: str) -> dict[str, dict[str, Any]]:
    return dict(machine.load(f"/usr/src/{name}-{version}/railweld-lab.json").get("modules", {}))


def _build(machine: Machine, name: str, version: str, kernel: str) -> None:
    if not machine.path(f"/lib/modules/{kernel}/build/Makefile").exists():
        raise DkmsError(
            f"Error! Your kernel headers for kernel {kernel} cannot be found at "
            f"/lib/modules/{kernel}/build or /lib/modules/{kernel}/source.\n"
            f"Please install the linux-headers-{kernel} package or use the --kernelsourcedir "
            "option to tell DKMS where it's located.",
            21,
        )
    folder = _tree(machine) / name / version
    say("Building module:\nCleaning build area...")
    # A real build takes minutes; a fault can have that time, to cut a node off in the middle.
    time.sleep(float(machine.fault("dkms_seconds") or 0))
    if machine.fault("dkms_build_fails"):
        log = folder / "build/make.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(
            f"DKMS make.log for {name}-{version} for kernel {kernel}\nmake: *** Error 2\n"
        )
        raise DkmsError(
            f"Error! Bad return status for module build on kernel: {kernel} ({ARCHITECTURE})\n"
            f"Consult /var/lib/dkms/{name}/{version}/build/make.log for more information.",
            10,
        )
    target = folder / kernel / ARCHITECTURE
    (target / "module").mkdir(parents=True)
    for module in _modules(machine, name, version):
        (target / "module" / f"{module}.ko").write_text(f"stand-in for {module} {version}\n")
        say(f"Signing module /var/lib/dkms/{name}/{version}/build/{module}.ko")


def _install(machine: Machine, name: str, version: str, kernel: str) -> None:
    for module, facts in _modules(machine, name, version).items():
        place = machine.path(f"/lib/modules/{kernel}/updates/dkms/{module}.ko")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"stand-in for {module} {version}\n")
        say(f"\n{module}.ko:\nRunning module version sanity check.")
        say(f" - Installing to /lib/modules/{kernel}/updates/dkms/")
        if kernel == _kernel(machine):
            _register(machine, f"{name}/{version}", kernel, module, facts)
    (_tree(machine) / name / version / kernel / ARCHITECTURE / "installed").touch()
    say("depmod...")


def _register(
    machine: Machine, owner: str, kernel: str, module: str, facts: dict[str, Any]
) -> None:
    text = f"{module} {owner} {kernel} {facts.get('flavour')}"
    record = {
        "version": facts.get("version", owner.partition("/")[2]),
        "flavour": facts.get("flavour", "open"),
        "license": facts.get("license", "GPL"),
        "signer": SIGNER,
        "kernel": kernel,
        "dkms": owner,
        "srcversion": hashlib.sha256(text.encode()).hexdigest()[:23].upper(),
    }
    if facts.get("needs_rdma_core"):
        # Symbols of the RDMA core that is there at build time, OFED's or the kernel's own.
        core = machine.load(machine.module_file("ib_core"))
        record["built_with_rdma_core"] = core.get("version", "inbox")
        # Only OFED's core has the peer memory interface that this module registers with.
        record["peer_memory"] = bool(core)
    machine.store(machine.module_file(module), record)


def _unregister(machine: Machine, name: str, version: str) -> None:
    for module in _modules(machine, name, version):
        record = machine.module_file(module)
        if machine.load(record).get("dkms") == f"{name}/{version}":
            machine.path(record).unlink(missing_ok=True)
        for place in machine.path("/lib/modules").glob(f"*/updates/dkms/{module}.ko"):
            if place.read_text() == f"stand-in for {module} {version}\n":
                place.unlink()


def _remove(machine: Machine, name: str, version: str) -> int:
    folder = _tree(machine) / name / version
    if not folder.exists():
        raise DkmsError(
            f"Error! There are no instances of module: {name}\n{version} located in the DKMS tree.",
            3,
        )
    _unregister(machine, name, version)
    shutil.rmtree(folder)
    if not any(folder.parent.iterdir()):
        folder.parent.rmdir()
    say(f"Module {name}-{version} completely removed from DKMS tree.")
    return 0


def postinst(argv: list[str], _build: Build, machine: Machine) -> int:
    """/usr/lib/dkms/common.postinst NAME VERSION: what a -dkms package runs when configured.

    As the real one does: without headers it skips the build, says so and ends well, so the
    package counts as installed. A build that fails ends with its exit code.
    """
    name, version = argv[0], argv[1]
    say(f"Loading new {name}-{version} DKMS files...")
    if (_tree(machine) / name / version).exists():
        _remove(machine, name, version)
    code = main(["add", "-m", name, "-v", version], {}, machine)
    if code != 0:
        return code
    kernels = {path.name for path in machine.path("/lib/modules").glob("*") if path.is_dir()}
    running = _kernel(machine)
    newest = max(kernels | {running}, key=version_numbers)
    for kernel in dict.fromkeys((running, newest)):
        if not machine.path(f"/lib/modules/{kernel}/build/Makefile").exists():
            say(
                f"Module build for kernel {kernel} was skipped since the\n"
                "kernel headers for this kernel do not seem to be installed."
            )
            continue
        say(f"Building for {kernel}")
        code = main(["install", "-m", name, "-v", version, "-k", kernel], {}, machine)
        if code != 0:
            return code
    return 0
