"""How role maintenance asks Kubernetes who cordoned a node."""

from __future__ import annotations

import json
from pathlib import Path

from tests.labs import REPOSITORY, command

PLAY = """\
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.include_vars: {variables}
    - ansible.builtin.copy:
        content: "{{{{ __maintenance_kubectl_state | to_json }}}}"
        dest: {result}
        mode: "0600"
"""


def test_dots_of_the_mark_are_escaped_once(tmp_path: Path) -> None:
    """Escaped twice they name no annotation, and every node that the role cordoned stays so."""
    result = tmp_path / "argv.json"
    play = tmp_path / "play.yml"
    variables = REPOSITORY / "roles/maintenance/vars/main.yml"
    play.write_text(PLAY.format(variables=variables, result=result))
    command(["ansible-playbook", "-i", "localhost,", "-c", "local", str(play)])
    argv = json.loads(result.read_text())
    path = r"{.spec.unschedulable}|{.metadata.annotations.railweld\.io/maintenance}"
    assert argv[-1] == f"jsonpath={path}"
