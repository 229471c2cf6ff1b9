# SPDX-License-Identifier: Apache-2.0
"""Hands every task's answer of every host to the program that started Ansible."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

from railweld.nodes import ANSWERS_FILE

DOCUMENTATION = r"""
name: railweld_answers
type: stdout
short_description: One JSON line per host and task, for railweld.nodes
description:
  - Used by C(railweld verify), C(bench) and C(doctor), which ask nodes something and judge the
    answers themselves. Prints nothing.
"""


class CallbackModule(CallbackBase):
    """Appends `{"host": ..., "task": ..., "status": ..., "result": ...}` to the caller's file."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "railweld_answers"

    def _write(self, status: str, result: Any) -> None:
        line = json.dumps(
            {
                "host": result.host.get_name(),
                "task": result.task.get_name(),
                "status": status,
                "result": result.result,
            },
            default=str,
        )
        with Path(os.environ[ANSWERS_FILE]).open("a") as stream:
            stream.write(line + "\n")

    def v2_runner_on_ok(self, result: Any) -> None:
        """The task answered."""
        self._write("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: ARG002 - Ansible's signature
        """The task failed on the host."""
        self._write("failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """The host could not be reached."""
        self._write("unreachable", result)
