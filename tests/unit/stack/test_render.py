"""What follows from a description: objects by add-on, versions, images, networks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweld.errors import RailweldError
from railweld.site import Site
from railweld.stack import bridge, metrics, nfd, policies, quota, rdma_plugin
from railweld.stack.clock_guard import ClockGuardArgs
from railweld.stack.graph import job_host_paths, stack_for
from railweld.stack.images import Reference, images_for
from railweld.stack.objects import Manifest, checksum, in_order, is_owned, key
from railweld.stack.rules import Context, judge_all

Sites = Callable[..., Site]
NEW = {"version_overrides": {"kubernetes": "1.36.3"}}


def objects(site: Site, kind: str) -> dict[str, Manifest]:
    return {
        each["metadata"]["name"]: each
        for each in stack_for(site).manifests()
        if each["kind"] == kind
    }


def test_every_object_carries_the_labels_of_its_owner(site: Sites) -> None:
    manifests = stack_for(site("lab")).manifests()
    assert all(is_owned(each, "lab") for each in manifests)
    assert not any(is_owned(each, "berlin") for each in manifests)


def test_no_two_objects_are_the_same_one(site: Sites) -> None:
    manifests = stack_for(site(**NEW, prometheus="operator", network_mode="macvlan")).manifests()
    assert len({key(each) for each in manifests}) == len(manifests)


@pytest.mark.parametrize("name", ["lab", "example-a100"])
def test_the_stack_keeps_its_own_rules(site: Sites, name: str) -> None:
    chosen = site(name, **(NEW if name != "lab" else {}))
    context = Context(
        nccl="2.14.3",
        transport="roce",
        rdma_resource="rdma/hca",
        host_paths=job_host_paths(chosen),
    )
    assert judge_all(stack_for(chosen).manifests(), context) == []


@pytest.mark.parametrize(
    ("version", "policies_there", "pin_there"),
    [
        ("1.26.0", False, False),
        ("1.30.1", True, False),
        ("1.35.9", True, False),
        ("1.36.3", True, True),
    ],
)
def test_older_kubernetes_gets_what_it_knows_and_the_rest_is_named(
    site: Sites,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    policies_there: bool,
    pin_there: bool,
) -> None:
    chosen = site()
    kubernetes = chosen.versions.component("kubernetes").model_copy(update={"version": version})
    given = chosen.versions.component
    monkeypatch.setattr(
        chosen.versions,
        "component",
        lambda name: kubernetes if name == "kubernetes" else given(name),
    )
    stack = stack_for(chosen)
    kinds = {each["kind"] for each in stack.manifests()}
    assert ("ValidatingAdmissionPolicy" in kinds) is policies_there
    assert ("MutatingAdmissionPolicy" in kinds) is pin_there
    assert (
        any("no ValidatingAdmissionPolicy" in each for each in stack.warnings) is not policies_there
    )
    assert any("no MutatingAdmissionPolicy" in each for each in stack.warnings) is not pin_there


def test_the_rdma_plugin_takes_the_described_nics_only(site: Sites) -> None:
    config = json.loads(objects(site(), "ConfigMap")["rdma-devices"]["data"]["config.json"])
    assert config["configList"] == [
        {
            "resourcePrefix": "rdma",
            "resourceName": "hca",
            "rdmaHcaMax": 4,
            "selectors": {
                "vendors": ["15b3"],
                "drivers": ["mlx5_core"],
                "linkTypes": ["ether"],
                "ifNames": ["ens1f0np0", "ens2f0np0", "ens3f0np0", "ens4f0np0"],
            },
        }
    ]


@pytest.mark.parametrize("name", ["rdma.nvidia.com/hca", "rdma/hca", "nvidia.com/mlnx_rdma"])
def test_one_constant_names_the_resource_everywhere(site: Sites, name: str) -> None:
    stack = stack_for(site(**NEW, rdma_resource=name))
    text = json.dumps(stack.manifests())
    prefix, _, short = name.partition("/")
    assert f'\\"resourcePrefix\\": \\"{prefix}\\"' in text
    assert f'\\"resourceName\\": \\"{short}\\"' in text
    assert f"requests.{name}" in text
    limits = objects(site(**NEW, rdma_resource=name), "PodTemplate")["gpu"]["template"]["spec"]
    assert limits["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8", name: "1"}


def test_a_resource_that_the_plugin_dies_of_is_refused(site: Sites) -> None:
    with pytest.raises(RailweldError, match="letters, digits and underscores"):
        stack_for(site(rdma_resource="rdma/hca-100g"))


@given(
    shares=st.integers(1, 1000),
    transport=st.sampled_from(["roce", "infiniband"]),
    name=st.from_regex(r"[a-zA-Z0-9_]{1,20}", fullmatch=True),
    netdevs=st.lists(st.sampled_from(["ens1", "ens2", "ib0"]), unique=True).map(tuple),
)
def test_every_config_of_the_plugin_is_one_that_it_takes(
    shares: int, transport: Any, name: str, netdevs: tuple[str, ...]
) -> None:
    args = rdma_plugin.RdmaPluginArgs(
        image="r.example.com/p:1",
        resource=f"rdma/{name}",
        shares=shares,
        transport=transport,
        netdevs=netdevs,
    )
    manifests = rdma_plugin.render(args)
    context = Context(nccl="2.28.9", transport=transport, rdma_resource=f"rdma/{name}")
    assert judge_all(manifests, context) == []
    selectors = rdma_plugin.config(args)["configList"][0]["selectors"]
    assert selectors["linkTypes"] == (["ether"] if transport == "roce" else ["infiniband"])
    assert ("ifNames" in selectors) is (transport == "roce" and bool(netdevs))


def test_a_changed_config_restarts_its_reader() -> None:
    def annotation(shares: int) -> str:
        args = rdma_plugin.RdmaPluginArgs(
            image="r.example.com/p:1", resource="rdma/hca", shares=shares, transport="roce"
        )
        daemon_set = rdma_plugin.render(args)[1]
        annotations: dict[str, str] = daemon_set["spec"]["template"]["metadata"]["annotations"]
        return annotations["railweld.io/config"]

    assert annotation(4) == annotation(4)
    assert annotation(4) != annotation(8)


def test_the_profile_is_the_sites_with_reasons(site: Sites) -> None:
    profile = objects(site(), "ConfigMap")["nccl-profile"]
    assert profile["data"]["NCCL_IB_TC"] == "104"
    reasons = profile["metadata"]["annotations"]
    for name in profile["data"]:
        assert reasons[f"nccl.railweld.io/{name}"]
    assert "railweld.io/gid-index" in reasons


def test_quota_is_the_sites_size_and_can_be_less(site: Sites) -> None:
    hard = objects(site(), "ResourceQuota")["railweld-jobs"]["spec"]["hard"]
    assert hard == {"requests.nvidia.com/gpu": "128", "requests.rdma/hca": "64"}
    hard = objects(site(job_gpu_quota=8), "ResourceQuota")["railweld-jobs"]["spec"]["hard"]
    assert hard["requests.nvidia.com/gpu"] == "8"


def test_no_limit_range_and_no_system_priority(site: Sites) -> None:
    assert objects(site(), "LimitRange") == {}
    for name, each in objects(site(), "PriorityClass").items():
        assert each["value"] <= 1_000_000_000
        assert not name.startswith("system-")


def test_the_template_has_cache_scratch_and_the_sites_volumes(site: Sites) -> None:
    volumes = [
        {"name": "data", "mount": "/data", "host_path": "/mnt/lustre"},
        {"name": "models", "mount": "/models", "claim": "models", "read_only": True},
    ]
    template = objects(site(job_volumes=volumes), "PodTemplate")["gpu"]["template"]["spec"]
    mounts = {each["mountPath"]: each for each in template["containers"][0]["volumeMounts"]}
    assert set(mounts) == {"/dev/shm", "/local/cache", "/local/scratch", "/data", "/models"}
    assert mounts["/models"]["readOnly"] is True
    paths = {v["name"]: v["hostPath"] for v in template["volumes"] if "hostPath" in v}
    # Directory, not DirectoryOrCreate: a node without its disk must not fill its root.
    assert paths["cache"] == {"path": "/local/cache", "type": "Directory"}
    args = stack_for(site(**NEW, job_volumes=volumes)).policies
    assert args is not None
    # Of the scratch folder only where jobs have theirs, and of that each its own.
    jobs = "/local/scratch/.railweld/jobs"
    assert args.host_paths == ("/local/cache", jobs, "/mnt/lustre")
    assert paths["scratch"] == {"path": jobs, "type": "Directory"}
    assert mounts["/local/scratch"]["subPathExpr"] == "$(RAILWELD_JOB)"


def test_a_volume_has_one_source() -> None:
    with pytest.raises(ValueError, match="neither of host_path and claim"):
        bridge.Volume(name="x", mount="/x")
    with pytest.raises(ValueError, match="both of host_path and claim"):
        bridge.Volume(name="x", mount="/x", host_path="/x", claim="x")


def test_images_of_a_newer_cuda_start_where_cuda_compat_carries_them(site: Sites) -> None:
    container = objects(site(), "PodTemplate")["gpu"]["template"]["spec"]["containers"][0]
    assert container["env"] == [{"name": "NVIDIA_DISABLE_REQUIRE", "value": "true"}]


def test_jobs_get_an_interface_per_rail_in_the_other_network_modes(site: Sites) -> None:
    chosen = site(**NEW, network_mode="macvlan")
    attachments = objects(chosen, "NetworkAttachmentDefinition")
    assert sorted(attachments) == ["rail1", "rail2", "rail3", "rail4"]
    config = json.loads(attachments["rail1"]["spec"]["config"])
    assert config["type"] == "macvlan"
    assert config["master"] == "ens1f0np0"
    assert config["mtu"] == 9000
    assert config["ipam"]["range"] == "10.21.1.0/24"
    # Addresses of the hosts are not given to pods.
    assert "10.21.1.1/32" in config["ipam"]["exclude"]
    template = objects(chosen, "PodTemplate")["gpu"]["template"]
    assert "hostNetwork" not in template["spec"]
    assert (
        template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]
        == "rail1,rail2,rail3,rail4"
    )
    sriov = objects(site(**NEW, network_mode="sriov"), "NetworkAttachmentDefinition")["rail2"]
    assert sriov["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"] == "nvidia.com/rail2"


def test_a_network_mode_that_is_not_made_is_refused(site: Sites) -> None:
    with pytest.raises(RailweldError, match="expected host, macvlan or sriov"):
        stack_for(site(network_mode="dra"))


def test_a_time_server_without_sources_may_serve_its_own_clock(site: Sites) -> None:
    arguments = objects(site("lab"), "DaemonSet")["clock-guard"]["spec"]["template"]["spec"][
        "containers"
    ][0]["args"]
    assert "--local-clock-nodes=head1" in arguments
    assert "--max-offset=0.1s" in arguments
    stack = stack_for(site())
    assert stack.clock_guard is not None
    assert stack.clock_guard.local_clock_nodes == ()


def test_the_guard_is_restarted_for_being_dead_only(site: Sites) -> None:
    guard = objects(site("lab"), "DaemonSet")["clock-guard"]["spec"]["template"]["spec"]
    container = guard["containers"][0]
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    with pytest.raises(ValueError, match="more than 0"):
        ClockGuardArgs(image="r.example.com/g:1", max_offset_ms=0)


def agent(site: Site, name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Pod, container, and mount path by what of the node or of a ConfigMap is mounted there."""
    pod = objects(site, "DaemonSet")[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    sources = {
        volume["name"]: volume.get("hostPath", {}).get("path") or volume["configMap"]["name"]
        for volume in pod.get("volumes", ())
    }
    mounts = container.get("volumeMounts", ())
    return pod, container, {sources[each["name"]]: each["mountPath"] for each in mounts}


def test_the_rdma_plugin_finds_kubelet_devices_and_its_configuration(site: Sites) -> None:
    pod, _, mounts = agent(site("lab"), "rdma-shared-device-plugin")
    # The HCAs' network devices are in the host's namespace only.
    assert pod["hostNetwork"] is True
    assert mounts == {
        "/var/lib/kubelet/device-plugins": "/var/lib/kubelet/device-plugins",
        # Without it a restarted kubelet and the plugin wait for each other.
        "/var/lib/kubelet/plugins_registry": "/var/lib/kubelet/plugins_registry",
        "/dev": "/dev",
        "rdma-devices": "/k8s-rdma-shared-dev-plugin",
    }
    assert pod["nodeSelector"]["rdma.nvidia.com/available"] == "true"


def test_the_gpu_plugin_fails_visibly_where_there_is_no_driver(site: Sites) -> None:
    pod, container, mounts = agent(site("lab"), "nvidia-device-plugin")
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["FAIL_ON_INIT_ERROR"] == "true"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert mounts == {"/var/lib/kubelet/device-plugins": "/var/lib/kubelet/device-plugins"}
    # It would crash on nodes without GPUs.
    assert pod["nodeSelector"]["nvidia.com/gpu.present"] == "true"
    runtime = objects(site("lab"), "RuntimeClass")["nvidia"]
    assert runtime["handler"] == pod["runtimeClassName"] == "nvidia"


def test_the_exporter_knows_pods_and_may_profile(site: Sites) -> None:
    pod, container, mounts = agent(site("lab"), "dcgm-exporter")
    environment = {each["name"]: each["value"] for each in container["env"]}
    folder = mounts["dcgm-exporter-counters"]
    assert environment["DCGM_EXPORTER_COLLECTORS"] == f"{folder}/counters.csv"
    assert mounts["/var/lib/kubelet/pod-resources"] == "/var/lib/kubelet/pod-resources"
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    assert pod["nodeSelector"]["nvidia.com/gpu.present"] == "true"
    fields = objects(site("lab"), "ConfigMap")["dcgm-exporter-counters"]["data"]["counters.csv"]
    # The last Xid, and what the exporter's own list leaves out.
    for field in ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_PROF_SM_ACTIVE"):
        assert f"\n{field}, gauge, " in fields


def test_only_the_rdma_plugin_is_privileged(site: Sites) -> None:
    privileged = {
        name
        for name, each in objects(site("lab", stack_without=[]), "DaemonSet").items()
        for container in each["spec"]["template"]["spec"]["containers"]
        if container.get("securityContext", {}).get("privileged")
    }
    assert privileged == {"rdma-shared-device-plugin"}


def test_agents_tolerate_every_taint_and_jobs_the_gpus_only(site: Sites) -> None:
    for each in objects(site("lab"), "DaemonSet").values():
        assert each["spec"]["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]
    job = objects(site("lab"), "PodTemplate")["gpu"]["template"]["spec"]
    assert job["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]


def test_devices_by_cdi_need_no_runtime_class_in_jobs(site: Sites) -> None:
    job = objects(site(gpu_runtime="cdi"), "PodTemplate")["gpu"]["template"]["spec"]
    assert "runtimeClassName" not in job
    plugin = objects(site(gpu_runtime="cdi"), "DaemonSet")["nvidia-device-plugin"]
    environment = plugin["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "DEVICE_LIST_STRATEGY", "value": "cdi-cri"} in environment
    job = objects(site(gpu_runtime="runtime"), "PodTemplate")["gpu"]["template"]["spec"]
    assert job["runtimeClassName"] == "nvidia"


def test_nfd_labels_what_it_finds_and_not_what_is_described(site: Sites) -> None:
    labels = {label for label, _, _ in nfd.RULES}
    assert all(label.startswith("railweld.io/found-") for label in labels)
    rule = objects(site(), "NodeFeatureRule")["railweld"]
    assert {name for each in rule["spec"]["rules"] for name in each["labels"]} == labels


def test_alerts_follow_from_the_site(site: Sites) -> None:
    args = stack_for(site()).metrics
    assert args is not None
    found = {each["alert"]: each for each in metrics.rules(args)["groups"][0]["rules"]}
    assert 'resource="rdma_hca"' in found["RailweldRdmaNotAllocatable"]["expr"]
    assert found["RailweldHcaMissing"]["expr"].endswith("< 4")
    assert "prio3" in found["RailweldPauseStorm"]["expr"]
    assert all(each["annotations"]["fix"] for each in found.values())


def test_own_registry_and_single_images(site: Sites) -> None:
    digest = "sha256:" + "a" * 64
    images = images_for(
        site(
            image_registry="registry.example.com:5000/mirror",
            image_overrides={"dcgm_exporter": f"other.example.com/dcgm:4@{digest}"},
        )
    )
    plugin, _, pinned = images["device_plugin"].partition("@")
    assert plugin == "registry.example.com:5000/mirror/nvidia/k8s-device-plugin:v0.14.5"
    # What is mirrored keeps its digest.
    assert pinned.startswith("sha256:")
    assert images["dcgm_exporter"] == f"other.example.com/dcgm:4@{digest}"


def test_an_override_that_names_no_build_is_refused(site: Sites) -> None:
    with pytest.raises(RailweldError, match=r"image_overrides.nfd: .*the tag latest"):
        images_for(site(image_overrides={"nfd": "registry.example.com/nfd:latest"}))


@pytest.mark.parametrize("version_set", ["a100-2023", "current"])
def test_images_have_a_tag_and_a_digest(site: Sites, version_set: str) -> None:
    """Except for those of which nobody could say the digest, which the warning names."""
    chosen = site(version_set=version_set)
    loose = set()
    for name, text in images_for(chosen).items():
        reference = Reference.parse(text)
        assert reference.tag
        if not reference.digest:
            loose.add(name)
    assert loose <= {"clock_guard", "rdma_device_plugin", "dcgm_exporter"}


def test_images_that_come_from_files_go_by_their_tags(site: Sites) -> None:
    chosen = site("lab", stack_without=[])
    assert not any("@" in image for image in images_for(chosen).values())
    assert not any("digest" in each for each in stack_for(chosen).warnings)


def test_images_without_a_digest_are_named(site: Sites) -> None:
    assert any("images without a digest" in each for each in stack_for(site()).warnings)
    digest = "sha256:" + "b" * 64
    pinned = {
        name: f"registry.example.com/{name}:1@{digest}"
        for name in ("nfd", "device_plugin", "rdma_device_plugin", "dcgm_exporter", "cuda_test")
    }
    assert not any("digest" in each for each in stack_for(site(image_overrides=pinned)).warnings)


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag"),
    [
        ("nginx:1", "docker.io", "nginx", "1"),
        ("mellanox/x:2", "docker.io", "mellanox/x", "2"),
        ("localhost/x:2", "localhost", "x", "2"),
        ("r.example.com:5000/a/b:3", "r.example.com:5000", "a/b", "3"),
    ],
)
def test_references_are_split_as_runtimes_do(
    text: str, registry: str, repository: str, tag: str
) -> None:
    found = Reference.parse(text)
    assert (found.registry, found.repository, found.tag) == (registry, repository, tag)


@given(
    registry=st.sampled_from(["r.example.com", "r.example.com:5000", "localhost"]),
    path=st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,2}", fullmatch=True),
    tag=st.from_regex(r"v[0-9]{1,3}", fullmatch=True),
    digest=st.sampled_from(["", "sha256:" + "c" * 64]),
)
def test_a_reference_survives_being_read(registry: str, path: str, tag: str, digest: str) -> None:
    text = f"{registry}/{path}:{tag}" + (f"@{digest}" if digest else "")
    assert str(Reference.parse(text)) == text
    moved = Reference.parse(str(Reference.parse(text).through("mirror.example.com/all")))
    assert (moved.registry, moved.repository) == ("mirror.example.com", f"all/{path}")


@pytest.mark.parametrize("text", ["nginx", "r.example.com:5000/x", "x:latest", "x@md5:1"])
def test_references_that_name_no_build_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Reference.parse(text)


def test_namespaces_and_definitions_come_first(site: Sites) -> None:
    for addon in stack_for(site("lab", stack_without=[])).addons():
        ordered = [each["kind"] for each in in_order(addon.manifests)]
        if "CustomResourceDefinition" in ordered:
            last = len(ordered) - 1 - ordered[::-1].index("CustomResourceDefinition")
            assert set(ordered[: last + 1]) == {"CustomResourceDefinition"}


def test_checksum_is_of_the_content() -> None:
    assert checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1})
    assert checksum({"a": 1}) != checksum({"a": 2})


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="expected >= 0"):
        quota.QuotaArgs(gpus=-1)
    with pytest.raises(ValueError, match="a folder below /"):
        policies.PoliciesArgs(
            rdma_resource="rdma/hca", nccl="2.28.9", transport="roce", host_paths=("/",)
        )
