"""Admission policies in the API server's own terms: what they match, and that they are bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from railweld.stack.objects import Manifest, make

API: Final = "admissionregistration.k8s.io/v1"


def resource_rule(
    *resources: str, groups: Sequence[str] = ("",), operations: Sequence[str] = ("CREATE",)
) -> dict[str, Any]:
    """Requests that a policy looks at, of version v1."""
    return {
        "apiGroups": list(groups),
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
    }


def validating(
    name: str,
    rules: Sequence[Mapping[str, Any]],
    validations: Sequence[Mapping[str, str]],
    *,
    actions: Sequence[str] = ("Deny",),
    namespaces: Mapping[str, Any] | None = None,
    **more: Any,
) -> list[Manifest]:
    """A policy that fails closed, and its binding.

    Args:
        name: of both.
        rules: what it looks at.
        validations: expressions that have to be true, with what is said otherwise.
        actions: what follows where one is not.
        namespaces: selector of the namespaces that it holds in; None for all.
        **more: further parts of the policy's spec.
    """
    bound = {} if namespaces is None else {"matchResources": {"namespaceSelector": namespaces}}
    return [
        make(
            API,
            "ValidatingAdmissionPolicy",
            name,
            spec={
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": list(rules)},
                **more,
                "validations": list(validations),
            },
        ),
        make(
            API,
            "ValidatingAdmissionPolicyBinding",
            name,
            spec={"policyName": name, "validationActions": list(actions), **bound},
        ),
    ]
