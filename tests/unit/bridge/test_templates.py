"""What no pod of a job has, whichever site, partition and way to its node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railweld.bridge import render
from railweld.site import load_site
from railweld.stack.graph import stack_for
from tests.unit.bridge.facts import FACTS

INVENTORIES = Path(__file__).parents[3] / "inventories"
#: How pods come to their nodes, as arguments of `render.job`.
WAYS = {
    "admission": {"gated": False},
    "patch": {"gated": True},
    "affinity": {"gated": False, "ranked": True},
}
#: Sites whose templates differ: as they are, and in a network of the pods' own.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "network": {"railweld_network_mode": "macvlan"},
    "storage": {
        "railweld_cache_device": "/dev/nvme1n1",
        "railweld_job_volumes": [{"name": "data", "mount": "/data", "host_path": "/srv/data"}],
    },
}
REQUEST = render.Request(
    script=b"#!/bin/sh\n",
    arguments=(),
    directory="/data",
    umask=0o22,
    apart=False,
    environment={},
    mode="spmd",
    reason="",
    image=None,
)


def words(content: Any) -> Iterator[tuple[str, Any]]:
    """Every key and its value, however deep."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield key, value
            yield from words(value)
    elif isinstance(content, list):
        for each in content:
            yield from words(each)


def forbidden(spec: dict[str, Any]) -> list[str]:
    """What of a pod would get around the scheduler, slow it, or reach the node."""
    found = [key for key, _ in words(spec) if key in ("nodeName", "podAntiAffinity", "podAffinity")]
    found += [
        f"{key}: {value}"
        for key, value in words(spec)
        if (key in ("privileged", "hostPID", "hostIPC", "allowPrivilegeEscalation") and value)
        or (key == "runAsUser" and value == 0)
    ]
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("inventory", sorted(each.name for each in INVENTORIES.iterdir()))
def test_no_template_and_no_job_has_what_a_pod_must_not_have(inventory: str, variant: str) -> None:
    stack = stack_for(load_site([str(INVENTORIES / inventory)], VARIANTS[variant]))
    templates = [each for each in stack.manifests() if each["kind"] == "PodTemplate"]
    assert templates
    for template in templates:
        assert forbidden(template["template"]["spec"]) == []
        for way, options in WAYS.items():
            made = render.job(
                FACTS,
                REQUEST,
                template,
                namespace="railweld-jobs",
                hub="head1:6830",
                agent="railweld-agent-x",
                kill_wait=60,
                **options,
            )
            assert forbidden(made["spec"]["template"]["spec"]) == [], way


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ({"nodeName": "gpu1"}, "nodeName"),
        ({"affinity": {"podAntiAffinity": {}}}, "podAntiAffinity"),
        ({"containers": [{"securityContext": {"privileged": True}}]}, "privileged: True"),
        ({"hostPID": True}, "hostPID: True"),
    ],
)
def test_what_is_planted_is_found(planted: dict[str, Any], said: str) -> None:
    clean = {"containers": [{"env": [{"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}]}
    assert forbidden(json.loads(json.dumps(clean))) == []
    assert said in forbidden({**clean, **planted})
