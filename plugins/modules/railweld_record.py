#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Writes the record of a role: its inputs and the digests of the files that it manages.

Runs on the node: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: railweld_record
short_description: Record what a role ran with
description:
  - Writes C(/var/lib/railweld/roles/ROLE.json), which railweld_probe reads back on the next run.
    It is one of three things that must agree before a role is skipped; the others are observed.
options:
  role:
    description: The role's name.
    type: str
    required: true
  inputs:
    description: Digest of all that decided what the role did.
    type: str
    required: true
  files:
    description: Files that the role manages.
    type: list
    elements: path
    default: []
  version_set:
    description: The version set in force, for a reader of the file.
    type: str
    required: true
  folder:
    description: Where records are kept.
    type: path
    default: /var/lib/railweld/roles
author:
  - railweld contributors
"""

EXAMPLES = r"""
- name: Record what this role manages
  railweld_record:
    role: chrony
    files: [/etc/chrony/chrony.conf]
"""

RETURN = r"""
record:
  description: What the record says.
  type: dict
  returned: always
"""


def digest(name):
    """Return the SHA-256 of a file, None when it is not there."""
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return None


def write(path, text):
    """Replace a file whole and durably: a power cut leaves the old record or the new one."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    candidate = path.with_name(path.name + ".new")
    with candidate.open("w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    candidate.replace(path)


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "role": {"type": "str", "required": True},
            "inputs": {"type": "str", "required": True},
            "files": {"type": "list", "elements": "path", "default": []},
            "version_set": {"type": "str", "required": True},
            "folder": {"type": "path", "default": "/var/lib/railweld/roles"},
        },
        supports_check_mode=True,
    )
    given = module.params
    record = {
        "role": given["role"],
        "inputs": given["inputs"],
        "version_set": given["version_set"],
        "files": {name: digest(name) for name in sorted(given["files"])},
    }
    path = Path(given["folder"]) / (given["role"] + ".json")
    try:
        before = json.loads(path.read_text())
    except (OSError, ValueError):
        before = None
    changed = before != record
    if changed and not module.check_mode:
        write(path, json.dumps(record, indent=1, sort_keys=True) + "\n")
    module.exit_json(changed=changed, record=record, before=before)


if __name__ == "__main__":
    main()
