#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Writes a file of bytes that nobody may see: never in a log, a diff or a command line.

Runs on the node: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import base64
import os
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: railweld_secret_file
short_description: Write a secret file
description:
  - Replaces the file whole and durably, with owner and mode set before it appears under its name.
options:
  path:
    description: The file.
    type: path
    required: true
  content:
    description: Its bytes in base64.
    type: str
    required: true
  owner:
    description: Owner.
    type: str
    required: true
  group:
    description: Group.
    type: str
    required: true
  mode:
    description: Mode.
    type: raw
    required: true
author:
  - railweld contributors
"""

EXAMPLES = r"""
- name: Write the key
  railweld_secret_file:
    path: /etc/munge/munge.key
    content: "{{ railweld_munge_key }}"
    owner: munge
    group: munge
    mode: "0400"
  no_log: true
"""

RETURN = r"""
replaced:
  description: True when the content changed, not only owner or mode.
  type: bool
  returned: always
"""


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "content": {"type": "str", "required": True, "no_log": True},
            "owner": {"type": "str", "required": True},
            "group": {"type": "str", "required": True},
            "mode": {"type": "raw", "required": True},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    wanted = base64.b64decode(module.params["content"])
    try:
        replaced = path.read_bytes() != wanted
    except FileNotFoundError:
        replaced = True
    attributes = module.load_file_common_arguments(
        {**module.params, "dest": str(path)}, path=str(path)
    )
    if replaced and not module.check_mode:
        handle, name = tempfile.mkstemp(dir=str(path.parent))
        try:
            os.write(handle, wanted)
            os.fsync(handle)
            os.close(handle)
            module.set_fs_attributes_if_different({**attributes, "path": name}, changed=False)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink()
            raise
    changed = replaced
    if path.exists():
        changed = module.set_fs_attributes_if_different(attributes, changed)
    module.exit_json(changed=changed, replaced=replaced)


if __name__ == "__main__":
    main()
