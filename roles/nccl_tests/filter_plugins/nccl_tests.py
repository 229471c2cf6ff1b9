"""What the role decides with the same code that `railweld bench` and the checks use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from railweld.bench.build import answer, plan


class FilterModule:
    """Filters of role nccl_tests."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function, as Ansible asks for them."""
        return {"nccl_tests_plan": plan, "nccl_tests_answer": answer}
