"""The namespaces of the stack and of the jobs, with their Pod Security levels."""

from __future__ import annotations

from dataclasses import dataclass

from railweld import names
from railweld.stack.objects import Manifest, make


@dataclass(frozen=True, kw_only=True)
class NamespacesArgs:
    """Both namespaces are `privileged` for the Pod Security admission, for different reasons."""

    system: str = names.NAMESPACE_SYSTEM
    jobs: str = names.NAMESPACE_JOBS


def render(args: NamespacesArgs) -> list[Manifest]:
    """Two namespaces."""
    level = "pod-security.kubernetes.io"
    return [
        make(
            "v1",
            "Namespace",
            args.system,
            labels={f"{level}/enforce": "privileged"},
            annotations={
                "railweld.io/reason": "device plugins and the clock guard use paths and the "
                "network of their nodes"
            },
        ),
        make(
            "v1",
            "Namespace",
            args.jobs,
            labels={
                f"{level}/enforce": "privileged",
                f"{level}/audit": "baseline",
                names.LABEL_BRIDGE: "true",
            },
            annotations={
                "railweld.io/reason": "jobs lock memory and see their node's cache and network; "
                "the policies railweld-job-* refuse everything else that is privileged"
            },
        ),
    ]
