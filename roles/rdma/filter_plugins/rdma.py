"""Filters of role rdma: the functions that the role's checks use too, so both agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from railweld.verify.context import Context
from railweld.verify.roles import rdma


class FilterModule:
    """Names as the role's tasks and templates call them."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters."""
        return {
            "rdma_boot_modules": lambda railweld, host: rdma.boot_modules(
                railweld["site"], host["kernel"]
            ),
            "rdma_kernel_parameters": lambda host, arch: rdma.kernel_parameters(
                host["kernel"], arch
            ),
            "rdma_exact_packages": lambda node, railweld, host: rdma.exact_packages(
                Context(railweld["site"], host, node)
            ),
            "rdma_packages_in_place": lambda node, railweld, host: rdma.packages_in_place(
                Context(railweld["site"], host, node)
            ),
            "rdma_roce_config": lambda railweld, host: rdma.roce_config(railweld["site"], host),
        }
