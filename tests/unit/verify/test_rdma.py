"""RDMA: each precondition that is missing is named, each observation that differs fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from railweld.record import Check, Status
from railweld.verify.context import Context
from railweld.verify.roles import rdma, rdma_host

SITE: dict[str, Any] = {
    "name": "lab",
    "transport": "roce",
    "rdma_stack": "inbox",
    "gpudirect": "dmabuf",
    "lossless": {"priority": 3, "dscp": 26, "queue": 3, "traffic_class_byte": 104},
    "cnp": {"dscp": 48, "priority": 6},
    "host_mtu": 9000,
    "memlock_kib": 8192,
}
RAILS = ("mlx5_0", "rail1"), ("mlx5_1", "rail2")
PINS = {"rdma-core": "44.0-2", "perftest": "4.5+0.17-2"}


def host() -> dict[str, Any]:
    return {
        "name": "gpu1",
        "vendor_repository": "debian12",
        "gpu": {"count": 8, "model": "A100-SXM4-80GB"},
        "driver": {"version": "515.86.01", "modules": "open"},
        "packages": {
            "rdma": [{"name": name, "version": version} for name, version in PINS.items()],
            "doca": [{"name": "doca-ofed", "version": "2.9.0"}],
        },
        "hcas": [
            {
                "name": hca,
                "netdev": netdev,
                "rail": number,
                "rate_gbps": 100,
                "switch": "leaf1",
                "port": f"Ethernet{number}/1",
            }
            for number, (hca, netdev) in enumerate(RAILS, 1)
        ],
        "kernel": {
            "parameters": [],
            "iommu": "pt",
            "acs": "keep",
            "modules": ["ib_uverbs", "mlx5_ib", "rdma-ucm"],
        },
    }


def node() -> dict[str, Any]:
    return {
        "os": {"arch": "x86_64"},
        "kernel": {"running": "6.1.0-18-amd64", "p2pdma": True, "cmdline": ["quiet", "iommu=pt"]},
        "modules": ["ib_uverbs", "mlx5_ib", "rdma_ucm"],
        "driver": {"loaded": "515.86.01", "on_disk": "515.86.01", "kernel_flavour": "open"},
        "cuda": {"release": "12.1"},
        "nccl": {"version": "2.14.3"},
        "pci": {"hcas": 2},
        "packages": {
            name: {"version": version, "status": "ii", "hold": True}
            for name, version in PINS.items()
        },
        "limits": {"memlock": 8192},
        "hcas": [
            {
                "name": hca,
                "netdev": netdev,
                "state": "ACTIVE",
                "phys_state": "LinkUp",
                "rate_gbps": 100,
                "link_layer": "Ethernet",
                "fw_version": "20.35.1012",
                "board_id": "MT_0000000223",
                "tos": "104",
            }
            for hca, netdev in RAILS
        ],
        "net": {netdev: {"mtu": 9000} for _, netdev in RAILS},
        "rdma": {
            "ofed": None,
            "configfs": True,
            "stale_modules": [],
            "acs_enabled": [],
            "memory_peers": [],
            "roce": {
                netdev: {
                    "trust": "dscp",
                    "dscp_prio": {"26": 3, "48": 6},
                    "pfc": [False, False, False, True, False, False, False, False],
                    "cnp_dscp": "48",
                }
                for _, netdev in RAILS
            },
        },
    }


def context(**changes: Any) -> Context:
    """A converged node; changes are dotted paths with dots written as double underscores."""
    tree = {"site": dict(SITE), "host": host(), "node": node()}
    for path, value in changes.items():
        *parents, last = path.split("__")
        here: Any = tree
        for key in parents:
            here = here[int(key)] if isinstance(here, list) else here[key]
        here[int(last) if isinstance(here, list) else last] = value
    return Context(**tree)


def peermem(**changes: Any) -> Context:
    """A converged node of a peermem site."""
    return context(
        **{
            "site__rdma_stack": "doca",
            "site__gpudirect": "peermem",
            "node__rdma__ofed": "OFED-internal-24.10-0.7.0",
            "node__rdma__memory_peers": ["nvidia-peermem"],
            "node__modules": ["ib_uverbs", "mlx5_ib", "rdma_ucm", "nvidia_peermem"],
            "node__packages": {"doca-ofed": {"version": "2.9.0", "status": "ii", "hold": True}},
            **changes,
        }
    )


def bad(checks: Iterable[Check]) -> dict[str, str]:
    return {check.id: check.sentence() for check in checks if check.is_bad}


def test_converged_node_passes_everything() -> None:
    for ctx in (context(), peermem()):
        assert bad(rdma_host.guard(ctx)) == {}
        assert bad(rdma.checks(ctx)) == {}


def test_host_without_adapters_asks_for_nothing() -> None:
    ctx = context(host__hcas=[], node__hcas=[])
    assert list(rdma_host.guard(ctx)) == []
    assert list(rdma.checks(ctx)) == []


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"node__pci": {"hcas": 1}}, "rdma.adapters_on_bus", "1 adapters"),
        ({"host__packages": {"rdma": []}}, "rdma.packages_known", "stack inbox"),
        ({"node__kernel__running": "5.4.0-42"}, "rdma.dmabuf_kernel", "5.4.0-42"),
        ({"node__kernel__p2pdma": False}, "rdma.dmabuf_p2pdma", "not set"),
        ({"node__kernel__p2pdma": None}, "rdma.dmabuf_p2pdma", "no readable configuration"),
        (
            {"host__packages__rdma": [{"name": "rdma-core", "version": "39.0-1"}]},
            "rdma.dmabuf_rdma_core_pin",
            "39.0-1",
        ),
    ],
)
def test_guard_names_what_is_missing_for_dmabuf(
    change: dict[str, Any], check: str, words: str
) -> None:
    for guard in (rdma.guard, rdma_host.guard):
        found = bad(guard(context(**change)))
        assert list(found) == [check]
        assert words in found[check]
        assert "Fix: " in found[check]


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"node__driver__loaded": None}, "rdma.driver_running", "loaded driver none"),
        ({"node__driver__loaded": "470.1"}, "rdma.driver_running", "470.1"),
        ({"node__driver__kernel_flavour": "proprietary"}, "rdma.dmabuf_open_modules", "propriet"),
        ({"node__cuda__release": "11.6"}, "rdma.dmabuf_cuda", "11.6"),
        ({"node__cuda__release": None}, "rdma.dmabuf_cuda", "absent"),
    ],
)
def test_host_side_names_the_predecessor_that_is_missing(
    change: dict[str, Any], check: str, words: str
) -> None:
    """Packages come before the reboot that loads the driver, also when a run is repeated."""
    ctx = context(**change)
    assert bad(rdma.guard(ctx)) == {}
    found = bad(rdma_host.guard(ctx))
    assert list(found) == [check]
    assert words in found[check]


def test_host_side_of_a_node_without_gpus_asks_for_no_driver() -> None:
    ctx = context(host__gpu=None, node__driver={}, node__cuda={})
    assert bad(rdma_host.guard(ctx)) == {}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"site__rdma_stack": "inbox", "node__rdma__ofed": "x"}, "rdma.peermem_stack"),
        ({"node__rdma__ofed": None}, "rdma.ofed_before_driver"),
    ],
)
def test_guard_names_what_is_missing_for_peermem(change: dict[str, Any], check: str) -> None:
    assert check in bad(rdma.guard(peermem(**change)))


def test_peermem_on_an_empty_node_installs_ofed_first() -> None:
    ctx = peermem(node__rdma__ofed=None, node__driver={}, node__packages={})
    assert bad(rdma.guard(ctx)) == {}


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"node__modules": ["mlx5_ib"]}, "rdma.modules", "ib_uverbs, rdma_ucm"),
        ({"node__kernel__cmdline": ["quiet"]}, "rdma.kernel_parameters", "iommu=pt"),
        ({"node__limits__memlock": 64}, "rdma.memlock", "64 KiB"),
        (
            {"node__rdma__stale_modules": ["mlx5_core"]},
            "rdma.loaded_modules_are_installed_ones",
            "mlx5_core",
        ),
        ({"node__hcas": []}, "rdma.adapter_present", "no RDMA device"),
        ({"node__hcas__0__link_layer": "InfiniBand"}, "rdma.link_layer", "LINK_TYPE_P1=2"),
        ({"node__hcas__0__state": "DOWN"}, "rdma.link", "leaf1 Ethernet1/1"),
        ({"node__hcas__1__phys_state": "Polling"}, "rdma.link", "ACTIVE/Polling"),
        ({"node__hcas__0__rate_gbps": 25}, "rdma.rate", "25 Gb/s"),
        ({"node__hcas__0__netdev": "rail2"}, "rdma.netdev", "rail2"),
        ({"node__hcas__0__fw_version": "20.28.1"}, "rdma.firmware", "20.28.1 on mlx5_0"),
        ({"node__hcas__0__fw_version": None}, "rdma.firmware", "no version from mlx5_0"),
        ({"node__hcas__0__tos": None}, "rdma.default_tos", "expected 104"),
        ({"node__rdma__roce__rail1__trust": "pcp"}, "rdma.trust", "pcp"),
        ({"node__rdma__roce__rail1__dscp_prio": {"26": 0}}, "rdma.dscp_priority", "priority 0"),
        ({"node__rdma__roce__rail1__pfc": [True] * 8}, "rdma.pfc", "priority 3 and no other"),
        ({"node__rdma__roce__rail1__pfc": None}, "rdma.pfc", "no priority"),
        ({"node__rdma__roce__rail1__cnp_dscp": "0"}, "rdma.cnp_dscp", "expected 48"),
        ({"node__net__rail1__mtu": 1500}, "rdma.mtu", "1500"),
        ({"node__packages__perftest__hold": False}, "rdma.held", "perftest"),
        ({"node__packages__perftest__version": "9"}, "rdma.package.perftest", "perftest 9"),
        ({"node__packages__rdma-core__version": "39.0-1"}, "rdma.dmabuf_rdma_core", "39.0-1"),
        ({"node__packages__perftest__status": "iU"}, "rdma.package.perftest", "iU"),
    ],
)
def test_what_differs_fails_and_says_so(change: dict[str, Any], check: str, words: str) -> None:
    found = bad(rdma.checks(context(**change)))
    assert check in found
    assert words in found[check]


def test_ofed_of_another_version_fails() -> None:
    doca = {"version": "2.9.1", "ofed": "OFED-internal-24.10-1.1.4"}
    assert "OFED-internal-24.10-1.1.4" in bad(rdma.checks(peermem(host__doca=doca)))["rdma.ofed"]


UNPINNED = [{"name": "rdma-core", "version": ""}, {"name": "perftest", "version": ""}]


def test_unpinned_package_may_have_the_distributions_version() -> None:
    ctx = context(host__packages__rdma=UNPINNED)
    assert bad(rdma.guard(ctx)) == {}
    assert bad(rdma.checks(ctx)) == {}
    missing = context(host__packages__rdma=UNPINNED, node__packages={})
    assert "the version of the distribution" in bad(rdma.checks(missing))["rdma.package.rdma-core"]


def test_unpinned_package_takes_what_is_installed_then_what_apt_offers() -> None:
    ctx = context(host__packages__rdma=UNPINNED)
    del ctx.node["packages"]["perftest"]
    assert rdma.exact_packages(ctx)[1] == {"name": "perftest", "version": ""}
    ctx.node["apt"] = {
        "candidates": {"perftest": {"candidate": "4.5"}, "rdma-core": {"candidate": "9"}}
    }
    assert rdma.exact_packages(ctx) == [
        {"name": "rdma-core", "version": "44.0-2"},
        {"name": "perftest", "version": "4.5"},
    ]


def test_a_rail_that_nobody_configured_fails_in_all_roce_settings() -> None:
    found = bad(rdma.checks(context(node__rdma__roce={})))
    assert {"rdma.trust", "rdma.dscp_priority", "rdma.pfc", "rdma.cnp_dscp"} <= set(found)


def test_kernel_without_configfs_is_one_warning() -> None:
    ctx = context(node__rdma__configfs=False)
    for hca in ctx.node["hcas"]:
        hca["tos"] = None
    assert bad(rdma.checks(ctx)) == {}
    warnings = [check.id for check in rdma.checks(ctx) if check.status is Status.WARN]
    assert warnings == ["rdma.default_tos"]


def test_exactly_one_priority_is_lossless() -> None:
    two = [False, False, False, True, True, False, False, False]
    found = bad(rdma.checks(context(node__rdma__roce__rail2__pfc=two)))
    assert list(found) == ["rdma.pfc"]
    assert "gpu1/rail2" in found["rdma.pfc"]
    assert "found priority 3, priority 4, expected" in found["rdma.pfc"]


def test_acs_is_judged_only_where_the_site_wants_it_off() -> None:
    on = {"node__rdma__acs_enabled": ["0000:40:01.1"]}
    assert bad(rdma.checks(context(**on))) == {}
    found = bad(rdma.checks(context(**on, host__kernel__acs="off")))
    assert "0000:40:01.1" in found["rdma.acs_off"]
    assert bad(rdma.checks(context(node__rdma__acs_enabled=None, host__kernel__acs="off")))


@pytest.mark.parametrize(
    ("values", "check", "words"),
    [
        ({"lid": "0x0"}, "rdma.subnet_manager", "LID none, subnet manager at 1"),
        ({"sm_lid": "0x0"}, "rdma.subnet_manager", "LID 5, subnet manager at none"),
        ({"pkeys": ["0x7fff", "0x0000"]}, "rdma.partition", "found 0x7fff"),
        ({"pkeys": []}, "rdma.partition", "no partition key"),
    ],
)
def test_an_infiniband_port_needs_a_subnet_manager_and_a_partition(
    values: dict[str, Any], check: str, words: str
) -> None:
    ctx = context(site__transport="infiniband", node__rdma__roce={}, node__net={})
    good = {"link_layer": "InfiniBand", "lid": "0x5", "sm_lid": "0x1", "pkeys": ["0xffff"]}
    for hca in ctx.node["hcas"]:
        hca.update(good)
    assert not {"rdma.subnet_manager", "rdma.partition"} & set(bad(rdma.checks(ctx)))
    ctx.node["hcas"][0].update(values)
    assert words in bad(rdma.checks(ctx))[check]


def test_infiniband_site_judges_the_link_layer_and_no_roce_setting() -> None:
    ctx = context(site__transport="infiniband", node__rdma__roce={}, node__net={})
    assert set(bad(rdma.checks(ctx))) == {"rdma.link_layer"}
    subnet = {"lid": "0x5", "sm_lid": "0x1", "pkeys": ["0xffff"]}
    for number in range(2):
        ctx.node["hcas"][number].update(link_layer="InfiniBand", netdev=None, **subnet)
    assert bad(rdma.checks(ctx)) == {}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"node__modules": ["ib_uverbs", "mlx5_ib", "rdma_ucm"]}, "rdma.peermem_module"),
        ({"node__rdma__memory_peers": []}, "rdma.peermem_registered"),
        ({"node__rdma__ofed": None}, "rdma.ofed"),
    ],
)
def test_peermem_is_more_than_a_module_name(change: dict[str, Any], check: str) -> None:
    assert check in bad(rdma.checks(peermem(**change)))


def test_newer_nccl_does_not_look_at_memory_peers() -> None:
    ctx = peermem(node__rdma__memory_peers=[], node__nccl={"version": "2.28.9"})
    assert bad(rdma.checks(ctx)) == {}


@pytest.mark.parametrize(
    ("iommu", "arch", "words"),
    [
        ("pt", "x86_64", ["iommu=pt"]),
        ("off", "x86_64", ["intel_iommu=off", "amd_iommu=off"]),
        ("keep", "x86_64", []),
        ("pt", "aarch64", ["iommu.passthrough=1"]),
    ],
)
def test_kernel_parameters_follow_the_architecture(iommu: str, arch: str, words: list[str]) -> None:
    kernel = {"iommu": iommu, "parameters": ["hugepages=8", "iommu=pt"]}
    expected = list(dict.fromkeys([*words, "hugepages=8", "iommu=pt"]))
    assert rdma.kernel_parameters(kernel, arch) == expected


def test_peermem_module_is_loaded_at_boot_only_in_that_mode() -> None:
    kernel = {"modules": ["rdma-ucm", "rdma_ucm"]}
    assert rdma.boot_modules({"gpudirect": "dmabuf"}, kernel) == ["rdma_ucm"]
    assert rdma.boot_modules({"gpudirect": "peermem"}, kernel) == ["rdma_ucm", "nvidia_peermem"]


def test_roce_settings_come_from_the_site() -> None:
    config = rdma.roce_config(SITE, host())
    assert (config["tos"], config["dscp"], config["priority"], config["mtu"]) == (104, 26, 3, 9000)
    assert config["devices"][0] == {"hca": "mlx5_0", "netdev": "rail1", "port": 1}


@pytest.mark.parametrize(
    ("deb", "upstream"),
    [("44.0-2", "44.0"), ("1:41.0-1ubuntu2", "41.0"), ("2307mlnx47-1", "2307mlnx47")],
)
def test_upstream_part_of_a_debian_version(deb: str, upstream: str) -> None:
    assert rdma.upstream_version(deb) == upstream
