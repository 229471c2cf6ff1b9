#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Reads, tries, writes and records Slurm's configuration on a host.

Slurm 22.05 has no test mode. A candidate is tried by a slurmctld of its own: the candidate's files,
a state folder that is thrown away, and a network namespace in which it reaches nobody. What it says
while it starts is what the real one would say.

Runs on the node: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: railweld_slurm_config
short_description: Slurm's configuration files, tried before they are written
description:
  - C(read) returns what the daemons were last told and what the files say.
  - C(jobs) returns the jobs of some nodes or of a partition.
  - C(present) tries the files with a slurmctld that talks to nobody, then replaces what differs.
  - C(applied) records that the daemons were told to use these files.
options:
  state:
    description: See above.
    type: str
    choices: [read, jobs, present, applied]
    required: true
  files:
    description: Name to content.
    type: dict
    default: {}
  try_controller:
    description: Try the files with a slurmctld.
    type: bool
    default: false
  try_nodes:
    description: Node to the number of GPUs that Slurm must read from the files for it.
    type: dict
    default: {}
  empty_files:
    description: Empty files that have to exist, such as those that stand for GPUs.
    type: list
    elements: path
    default: []
  nodes:
    description: Nodes whose jobs are asked for; empty means all.
    type: list
    elements: str
    default: []
  partition:
    description: Partition whose jobs are asked for.
    type: str
    default: ""
  folder:
    description: Where Slurm reads its files.
    type: path
    default: /etc/slurm
  work:
    description: Where candidates are tried and what was applied is kept.
    type: path
    default: /var/lib/railweld/slurm
  timeout:
    description: Seconds that a start for trial may take.
    type: int
    default: 60
author:
  - railweld contributors
"""

EXAMPLES = r"""
- name: Write slurm.conf after Slurm has read it
  railweld_slurm_config:
    state: present
    files: {slurm.conf: "..."}
    try_controller: true
"""

RETURN = r"""
applied:
  description: Name to content of what the daemons were last told.
  type: dict
  returned: state is read
files:
  description: Name to content of the files.
  type: dict
  returned: state is read
jobs:
  description: Jobs that run or wait to end there, one line each.
  type: list
  returned: state is jobs
replaced:
  description: Names of the files that were replaced.
  type: list
  returned: state is present
"""

#: What slurmctld prints when it has read everything and would begin to work.
STARTED = re.compile(r"Running as primary controller")
#: Mistakes that slurmctld works around instead of stopping: a partition with a node missing runs.
MISTAKES = re.compile(
    r"lookup failure for node|invalid node name|Invalid [A-Z]\w+Parameters|Ignoring |"
    r"Duplicate|ignored|unable to parse|Reserved partition",
)
#: Parameters that the trial replaces: it must neither touch the real state nor reach anybody.
REPLACED = (
    "AccountingStorageBackupHost",
    "AccountingStorageEnforce",
    "AccountingStorageHost",
    "AccountingStorageTRES",
    "AccountingStorageType",
    "JobCompType",
    "SlurmctldLogFile",
    "SlurmctldPidFile",
    "StateSaveLocation",
)


class RefusedError(Exception):
    """The candidate is not written; the text says why."""


def read_folder(folder):
    """Name to content of Slurm's files in a folder."""
    found = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.suffix in (".conf", ".lua") and path.is_file():
                found[path.name] = path.read_text(errors="replace")
    return found


def trial_conf(text, trial):
    """The candidate's slurm.conf with everything replaced that would touch the real cluster."""
    kept = [line for line in text.splitlines() if line.partition("=")[0].strip() not in REPLACED]
    return "\n".join(
        [
            *kept,
            "AccountingStorageType=accounting_storage/none",
            "SlurmctldPidFile=%s/slurmctld.pid" % (trial / "state"),
            "StateSaveLocation=%s" % (trial / "state"),
            "",
        ]
    )


def try_controller(trial, timeout):
    """Start slurmctld on the files in a folder; raise RefusedError unless it comes up."""
    # -s would change to the state folder; without it a core file would land there too.
    argv = ["unshare", "--net", "slurmctld", "-D", "-c", "-f", str(trial / "slurm.conf")]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Plugins look for their own files beside the one that this names.
        env={**os.environ, "SLURM_CONF": str(trial / "slurm.conf")},
    )
    lines = []
    try:
        started = follow(process, lines, timeout)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    said = [clean(line) for line in lines if "error:" in line or "fatal:" in line]
    if not started:
        raise RefusedError("; ".join(said[-4:]) or "slurmctld ended or hung without a reason")
    wrong = [clean(line) for line in lines if MISTAKES.search(line)]
    if wrong:
        raise RefusedError("; ".join(wrong[:4]))


def follow(process, lines, timeout):
    """Collect output until slurmctld is up (True), has ended or took too long (False)."""
    end = time.monotonic() + timeout
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < end:
            if not selector.select(end - time.monotonic()):
                return False
            block = os.read(process.stdout.fileno(), 65536)
            if not block:
                return False
            rest += block
            *complete, rest = rest.split(b"\n")
            for line in complete:
                lines.append(line.decode(errors="replace"))
                if STARTED.search(lines[-1]):
                    return True
    return False


def clean(line):
    """A line of slurmctld without its name and time."""
    return re.sub(r"^(slurmctld|slurmd):\s*|\[[^\]]*\]\s*", "", line).strip()


def try_node(trial, node, count):
    """Let slurmd read the files for one node; raise RefusedError when it counts other GPUs."""
    argv = ["slurmd", "-G", "-N", node, "-f", str(trial / "slurm.conf")]
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=60,
    )
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        said = [clean(line) for line in text.splitlines() if "error:" in line or "fatal:" in line]
        raise RefusedError("for node {}: {}".format(node, "; ".join(said[-4:])))
    counts = re.findall(r"Gres Name=gpu\b.*?\bCount=(\d+)", text)
    found = sum(int(each) for each in counts)
    if found != count:
        raise RefusedError(
            f"for node {node}: slurmd counts {found} GPUs (gres gpu), the description has {count}"
        )


def attempt(given, work):
    """Try the candidate in a folder of its own, which is gone afterwards."""
    work.mkdir(mode=0o755, parents=True, exist_ok=True)
    trial = Path(tempfile.mkdtemp(prefix="trial-", dir=str(work)))
    try:
        trial.chmod(0o755)
        (trial / "state").mkdir(mode=0o700)
        for name, text in given["files"].items():
            (trial / name).write_text(text)
        text = given["files"].get("slurm.conf", "")
        (trial / "slurm.conf").write_text(trial_conf(text, trial))
        match = re.search(r"^SlurmUser=(\S+)", text, re.MULTILINE)
        shutil.chown(str(trial / "state"), user=match.group(1) if match else "root")
        if given["try_controller"]:
            try_controller(trial, given["timeout"])
        for node, count in sorted(given["try_nodes"].items()):
            try_node(trial, node, int(count))
    finally:
        # ignore_errors: a trial's leftover in /tmp must not hide what the trial found.
        shutil.rmtree(str(trial), ignore_errors=True)


def write(path, text):
    """Replace a file whole and durably."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    candidate = path.with_name("." + path.name + ".new")
    with candidate.open("w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    candidate.chmod(0o644)
    candidate.replace(path)


def jobs(given):
    """Jobs on nodes or in a partition; None when slurmctld does not answer."""
    argv = ["timeout", "20", "squeue", "--noheader", "--format", "%A %u %T %P %N"]
    if given["nodes"]:
        argv.append("--nodelist=" + ",".join(given["nodes"]))
    if given["partition"]:
        argv.append("--partition=" + given["partition"])
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        return None, done.stderr.decode(errors="replace").strip()
    return done.stdout.decode(errors="replace").splitlines(), ""


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["read", "jobs", "present", "applied"],
                "required": True,
            },
            "files": {"type": "dict", "default": {}},
            "try_controller": {"type": "bool", "default": False},
            "try_nodes": {"type": "dict", "default": {}},
            "empty_files": {"type": "list", "elements": "path", "default": []},
            "nodes": {"type": "list", "elements": "str", "default": []},
            "partition": {"type": "str", "default": ""},
            "folder": {"type": "path", "default": "/etc/slurm"},
            "work": {"type": "path", "default": "/var/lib/railweld/slurm"},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    given = module.params
    folder, work = Path(given["folder"]), Path(given["work"])
    applied = work / "applied"
    if given["state"] == "read":
        module.exit_json(changed=False, files=read_folder(folder), applied=read_folder(applied))
    if given["state"] == "jobs":
        found, error = jobs(given)
        module.exit_json(changed=False, jobs=found, error=error)
    target = applied if given["state"] == "applied" else folder
    now = read_folder(target)
    replaced = sorted(name for name, text in given["files"].items() if now.get(name) != text)
    stray = sorted(set(now) - set(given["files"])) if given["state"] == "applied" else []
    missing = [name for name in given["empty_files"] if not Path(name).exists()]
    if not module.check_mode:
        for name in missing:
            Path(name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            Path(name).touch(mode=0o644)
    if given["state"] == "present" and replaced and (given["try_controller"] or given["try_nodes"]):
        try:
            attempt(given, work)
        except RefusedError as error:
            module.fail_json(msg=str(error), changed=False, replaced=[])
    if not module.check_mode:
        for name in replaced:
            write(target / name, given["files"][name])
        for name in stray:
            # The daemons were told to do without it; a file that someone else changed stays.
            if (folder / name).is_file() and (folder / name).read_text() == now[name]:
                (folder / name).unlink()
            (target / name).unlink()
    diff = (
        [
            {
                "before": now.get(name, ""),
                "after": given["files"][name],
                "before_header": name,
                "after_header": name,
            }
            for name in replaced
        ]
        if given["state"] == "present"
        else []
    )
    module.exit_json(changed=bool(replaced or stray or missing), replaced=replaced, diff=diff)


if __name__ == "__main__":
    main()
