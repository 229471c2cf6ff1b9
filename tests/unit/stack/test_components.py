"""The Pulumi program makes exactly what `stack render` prints; judged by recording mocks."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

import pulumi_kubernetes as k8s
import pytest

import pulumi
from railweld.site import Site
from railweld.stack.graph import Stack, stack_for
from railweld.stack.objects import Key, key


class Recorder(pulumi.runtime.Mocks):
    """Keeps what the program asks the engine for."""

    def __init__(self) -> None:
        self.resources: list[pulumi.runtime.MockResourceArgs] = []

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        self.resources.append(args)
        return f"{args.name}-id", dict(args.inputs)

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"unexpected call of {args.token}")

    @property
    def objects(self) -> dict[Key, pulumi.runtime.MockResourceArgs]:
        return {
            key(each.inputs): each
            for each in self.resources
            if each.typ.startswith("kubernetes:") and "apiVersion" in each.inputs
        }


_DEPLOYED: dict[str, Recorder] = {}


def deploy(stack: Stack) -> Recorder:
    """Run the composition as the engine would, offline; once per stack."""
    token = repr(stack)
    if token not in _DEPLOYED:
        _DEPLOYED[token] = _deploy(stack)
    return _DEPLOYED[token]


def _deploy(stack: Stack) -> Recorder:
    recorder = Recorder()
    # The SDK takes the thread's event loop, which any asyncio.run() before this one took away.
    asyncio.set_event_loop(asyncio.new_event_loop())
    pulumi.runtime.set_mocks(recorder, project="railweld", stack=stack.site)

    @pulumi.runtime.test
    def work() -> None:
        program = importlib.import_module("program")
        program.compose(stack, k8s.Provider("cluster", kubeconfig="/nowhere"))

    work()
    return recorder


def plain(value: Any) -> Any:
    """Integers come back as floats."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("lab", {}),
        ("example-a100", {}),
        (
            "example-a100",
            {"network_mode": "macvlan", "version_overrides": {"kubernetes": "1.36.3"}},
        ),
        ("example-a100", {"prometheus": "operator", "stack_without": ["nfd", "bridge"]}),
    ],
)
def test_program_and_render_make_the_same_objects(
    site: Callable[..., Site], name: str, variables: dict[str, Any]
) -> None:
    stack = stack_for(site(name, **variables))
    made = {}
    for identity, args in deploy(stack).objects.items():
        manifest = plain(dict(args.inputs))
        annotations = manifest["metadata"].get("annotations", {})
        assert annotations.pop("pulumi.com/patchForce") == "true"
        annotations.pop("pulumi.com/skipAwait", None)
        if not annotations:
            manifest["metadata"].pop("annotations", None)
        made[identity] = manifest
    assert made == {key(each): plain(each) for each in stack.manifests()}


def test_no_object_uses_a_default_provider(site: Callable[..., Site]) -> None:
    recorder = deploy(stack_for(site("lab", stack_without=[])))
    assert all(each.provider for each in recorder.objects.values())


def test_only_agents_of_nodes_are_not_waited_for(site: Callable[..., Site]) -> None:
    recorder = deploy(stack_for(site("lab", stack_without=[])))
    skipped = {
        identity.kind
        for identity, args in recorder.objects.items()
        if "pulumi.com/skipAwait" in args.inputs["metadata"]["annotations"]
    }
    assert skipped == {"DaemonSet", "Deployment"}


def test_nothing_is_made_per_node(site: Callable[..., Site]) -> None:
    few = deploy(stack_for(site("lab", stack_without=[]))).resources
    many = deploy(
        stack_for(site("example-a100", version_overrides={"kubernetes": "1.36.3"}))
    ).resources
    assert len(few) == len(many)


def test_the_operator_takes_the_plugins_place(site: Callable[..., Site]) -> None:
    stack = stack_for(site("example-a100", gpu_stack="operator", charts={"gpu_operator": "/c.tgz"}))
    recorder = deploy(stack)
    releases = [e for e in recorder.resources if e.typ == "kubernetes:helm.sh/v3:Release"]
    assert len(releases) == 1
    inputs = releases[0].inputs
    assert inputs["chart"] == "/c.tgz"
    assert inputs["values"]["driver"] == {"enabled": False}
    assert not any(identity.name == "nvidia-device-plugin" for identity in recorder.objects)


@pytest.mark.parametrize(
    ("module", "made"),
    [
        ("namespaces", "Namespaces"),
        ("nccl_profile", "NcclProfile"),
        ("quota", "Quota"),
        ("policies", "Policies"),
        ("nfd", "NodeFeatureDiscovery"),
        ("gpu_plugin", "GpuPlugin"),
        ("rdma_plugin", "RdmaPlugin"),
        ("clock_guard", "ClockGuard"),
        ("metrics", "Metrics"),
        ("bridge", "Bridge"),
    ],
)
def test_each_component_is_the_parent_of_its_objects(
    site: Callable[..., Site], module: str, made: str
) -> None:
    recorder = deploy(stack_for(site("lab", stack_without=[])))
    components = [each for each in recorder.resources if each.typ == f"railweld:stack:{made}"]
    name = module.replace("_", "-")
    assert [each.name for each in components] == [name]
    rendered = next(a for a in stack_for(site("lab", stack_without=[])).addons() if a.name == name)
    children = {
        identity for identity, each in recorder.objects.items() if each.name.startswith(f"{name}/")
    }
    assert children == {key(each) for each in rendered.manifests}
