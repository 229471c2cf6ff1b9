"""Every trap of a site description: refused or explained with file, key, found, expected, fix."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_right_site_has_no_errors(draft: Any) -> None:
    assert [p.sentence() for p in draft.check() if p.is_error] == []


def test_all_problems_are_reported_at_once(draft: Any) -> None:
    draft.group_vars["all"]["railweld_lossless_priority"] = 9
    draft.group_vars["all"]["railweld_host_mtu"] = 9500
    draft.group_vars["gpu_nodes"]["railweld_gpu_cuont"] = 8
    draft.hosts["gpu_nodes"]["gpu2"] = "10.0.0.11"
    errors = {problem.id for problem in draft.check() if problem.is_error}
    assert errors == {
        "variable.type",
        "mtu.host_above_switch",
        "variable.unknown",
        "address.duplicate",
    }


def test_every_error_names_file_key_found_expected_and_fix(draft: Any) -> None:
    draft.group_vars["all"]["railweld_lossless_priority"] = 9
    problem = draft.only_error()
    assert problem.file == draft.line("group_vars/all.yml", "lossless_priority")
    assert problem.key == "railweld_lossless_priority"
    assert problem.found == "9"
    assert problem.expected == "less than or equal to 7"
    assert "docs/reference/site.md" in problem.fix


def test_a_wrong_group_value_is_one_finding_for_all_its_hosts(draft: Any) -> None:
    draft.group_vars["gpu_nodes"]["railweld_gpu_count"] = "eight"
    problem = draft.only_error()
    assert problem.hosts == ("gpu1", "gpu2")
    assert problem.found == "text 'eight'"


# --- the cluster's own networks ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "taken"),
    [
        ("pod_cidr", "10.0.0.0/24", "head1 (10.0.0.10)"),
        ("service_cidr", "10.0.0.0/28", "gpu1 (10.0.0.11)"),
        ("pod_cidr", "10.10.0.0/16", "the rail network 10.10.1.0/24"),
        ("pod_cidr", "10.96.8.0/21", "railweld_service_cidr"),
    ],
)
def test_cluster_network_that_somebody_uses_is_refused(
    draft: Any, field: str, value: str, taken: str
) -> None:
    draft.group_vars["all"][f"railweld_{field}"] = value
    said = [each for each in draft.check() if each.id == "cluster.network_taken"]
    assert any(taken in each.found and each.key == f"railweld_{field}" for each in said)
    assert all(each.is_error for each in said)


def test_networks_beside_each_other_are_fine(draft: Any) -> None:
    draft.group_vars["all"]["railweld_pod_cidr"] = "10.0.1.0/24"
    draft.hosts["gpu_nodes"] = {"gpu1": "10.0.0.11"}
    del draft.hosts["control_plane"]
    assert not [each for each in draft.check() if each.id.startswith("cluster.")]


def test_pod_network_with_fewer_parts_than_nodes_is_refused(draft: Any) -> None:
    draft.group_vars["all"]["railweld_pod_cidr"] = "10.244.0.0/23"
    problem = draft.only_error()
    assert problem.id == "cluster.pod_cidr_small"
    assert "enough for 2 nodes" in problem.found
    assert "the 3 nodes" in problem.expected
    draft.group_vars["all"]["railweld_pod_cidr"] = "10.244.0.0/22"
    assert not [each for each in draft.check() if each.is_error]


# --- groups and names --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "group"), [("gpu1", "leaves"), ("gpu2", "control_plane"), ("head1", "spines")]
)
def test_host_in_two_exclusive_groups_is_refused(draft: Any, host: str, group: str) -> None:
    draft.hosts.setdefault(group, {})[host] = None
    problems = [p for p in draft.check() if p.id == "group.exclusive"]
    assert problems[0].host == host
    assert f"{host} in " in problems[0].found
    assert group in problems[0].found
    assert problems[0].fix == f"remove {host} from one of them"
    assert problems[0].file.startswith(str(draft.folder / "hosts.yml"))


def test_misspelt_group_is_named(draft: Any) -> None:
    draft.hosts["gpu_node"] = {"gpu3": "10.0.0.13"}
    problem = next(p for p in draft.check() if p.id == "group.unknown")
    assert problem.fix == "did you mean gpu_nodes?"


def test_host_outside_all_groups_is_explained(draft: Any) -> None:
    draft.hosts["storage"] = {"nfs1": "10.0.0.99"}
    problem = next(p for p in draft.check() if p.id == "group.none")
    assert (problem.severity, problem.hosts) == ("warning", ("nfs1",))


def test_site_without_any_time_source_is_refused(draft: Any) -> None:
    del draft.hosts["time_servers"]
    assert draft.only_error().id == "group.no_time_server"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpu_3", "no DNS label"),
        ("GPU3", "no DNS label"),
        ("gpu3-", "no DNS label"),
        ("10.0.0.3", "an address or number"),
        ("a" * 62 + "33", "64 characters"),
        ("default", "Slurm gives another meaning"),
    ],
)
def test_name_that_kubernetes_or_slurm_cannot_carry_is_refused(
    draft: Any, name: str, reason: str
) -> None:
    draft.hosts["gpu_nodes"][name] = "10.0.0.13"
    draft.host_vars[name] = {"railweld_node_index": 3}
    problem = draft.only_error()
    assert (problem.id, problem.host) == ("host.name", name)
    assert reason in problem.found
    assert problem.file == draft.line("hosts.yml", f"{name}:")


def test_name_with_dots_is_explained(draft: Any) -> None:
    draft.hosts["gpu_nodes"]["gpu3.example.com"] = "10.0.0.13"
    draft.host_vars["gpu3.example.com"] = {"railweld_node_index": 3}
    problem = next(p for p in draft.check() if p.id == "host.name_dotted")
    assert problem.severity == "warning"


# --- variables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("railweld_lossles_dscp", "railweld_lossless_dscp"),
        ("railweld_gpu_modell", "railweld_gpu_model"),
        ("raiweld_host_mtu", "railweld_host_mtu"),
    ],
)
def test_unknown_variable_is_refused_with_the_near_miss(draft: Any, wrong: str, right: str) -> None:
    draft.group_vars["all"][wrong] = 1
    problem = draft.only_error()
    assert problem.id == "variable.unknown"
    assert (problem.key, problem.fix) == (wrong, f"did you mean {right}?")
    assert problem.file == draft.line("group_vars/all.yml", wrong)


def test_unknown_variable_without_near_miss_is_refused(draft: Any) -> None:
    draft.group_vars["all"]["railweld_zzz"] = 1
    assert draft.only_error().fix == "remove it, or use a name of your own"


def test_variables_of_others_are_left_alone(draft: Any) -> None:
    draft.group_vars["all"] |= {"ansible_user": "ops", "lab_profile": "a100x8", "my_thing": 1}
    assert not [p for p in draft.check() if p.is_error]


def test_unknown_key_inside_a_variable_is_refused_with_the_near_miss(draft: Any) -> None:
    draft.rails[1]["sunbet"] = draft.rails[1].pop("subnet")
    problem = next(p for p in draft.check() if p.id == "variable.unknown_key")
    assert (problem.key, problem.fix) == ("railweld_rails[1].sunbet", "did you mean subnet?")
    assert problem.file == draft.line("group_vars/gpu_nodes.yml", "sunbet")


def test_missing_key_inside_a_variable_is_refused(draft: Any) -> None:
    del draft.rails[0]["hca"]
    problem = next(p for p in draft.check() if p.id == "variable.missing_key")
    assert (problem.key, problem.expected) == ("railweld_rails[0].hca", "hca to be given")


@pytest.mark.parametrize(
    ("key", "value", "found", "expected"),
    [
        ("railweld_host_mtu", "jumbo", "text 'jumbo'", "a valid integer"),
        ("railweld_host_mtu", True, "true", "a number, not true"),
        ("railweld_switch_mtu", 9216, "9216", "less than or equal to 9214"),
        ("railweld_lossless_dscp", 64, "64", "less than or equal to 63"),
        ("railweld_mmu", "maybe", "text 'maybe'", "a valid boolean"),
        ("railweld_transport", "rocee", "text 'rocee'", "'roce' or 'infiniband'"),
        ("railweld_site", "My_Site", "text 'My_Site'", "a DNS label"),
        ("railweld_version_set", 2023, "2023", 'put it in quotes ("2023")'),
        ("railweld_time_sources", "ntp.example.com", "text 'ntp.example.com'", "a valid tuple"),
        ("railweld_memlock_kib", "lots", "text 'lots'", "a valid integer"),
        ("railweld_rdma_resource", "hca", "text 'hca'", "an extended resource"),
        ("railweld_serial", "half", "text 'half'", "a number, or a share"),
    ],
)
def test_wrong_type_is_refused(
    draft: Any, key: str, value: object, found: str, expected: str
) -> None:
    draft.group_vars["all"][key] = value
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("variable.type", key)
    assert problem.found == found
    assert expected in problem.expected


def test_alternatives_of_a_type_are_one_finding(draft: Any) -> None:
    draft.group_vars["all"]["railweld_memlock_kib"] = "lots"
    assert draft.only_error().expected.endswith("or 'unlimited'")


def test_choice_with_a_near_miss_names_it(draft: Any) -> None:
    draft.group_vars["all"]["railweld_transport"] = "infinband"
    assert draft.only_error().fix == "did you mean infiniband?"


def test_version_that_yaml_read_as_a_number_is_refused(draft: Any) -> None:
    draft.group_vars["all"]["railweld_version_overrides"] = {"kubernetes": 1.30}
    problem = draft.only_error()
    assert problem.key == "railweld_version_overrides.kubernetes"
    assert 'put it in quotes ("1.3")' in problem.expected
    assert problem.file == draft.line("group_vars/all.yml", "kubernetes")


def test_secret_of_a_wrong_type_is_not_printed(draft: Any) -> None:
    draft.group_vars["all"]["railweld_switch_enable_secret"] = {"canary-4711": "canary-4711"}
    problem = draft.only_error()
    assert "canary-4711" not in problem.sentence()


def test_secrets_that_differ_are_not_printed(draft: Any) -> None:
    draft.hosts["leaves"]["leaf2"] = "10.0.0.22"
    for number, leaf in enumerate(("leaf1", "leaf2")):
        draft.host_vars[leaf] = {"railweld_switch_enable_secret": f"canary-{number}"}
    problem = draft.only_error()
    assert problem.id == "variable.site_wide"
    assert "canary" not in problem.sentence()


@pytest.mark.parametrize("key", ["railweld_site", "railweld_version_set"])
def test_missing_site_variable_is_refused(draft: Any, key: str) -> None:
    del draft.group_vars["all"][key]
    problem = draft.only_error()
    assert (problem.id, problem.key, problem.found) == ("variable.missing", key, "nothing")
    assert "group_vars/all.yml" in problem.fix


@pytest.mark.parametrize(
    ("group", "key", "hosts"),
    [
        ("all", "railweld_vendor_repository", {"head1", "gpu1", "gpu2"}),
        ("gpu_nodes", "railweld_gpu_count", {"gpu1", "gpu2"}),
        ("gpu_nodes", "railweld_gpu_model", {"gpu1", "gpu2"}),
        ("leaves", "railweld_switch_model", {"leaf1"}),
    ],
)
def test_missing_host_variable_is_refused_with_its_hosts(
    draft: Any, group: str, key: str, hosts: set[str]
) -> None:
    del draft.group_vars[group][key]
    problem = draft.only_error()
    assert (problem.id, problem.key, set(problem.hosts)) == ("variable.missing", key, hosts)


def test_gpu_nodes_without_rails_are_explained(draft: Any) -> None:
    del draft.group_vars["gpu_nodes"]["railweld_rails"]
    problem = next(p for p in draft.check() if p.id == "variable.missing")
    assert (problem.severity, problem.key) == ("warning", "railweld_rails")


def test_site_variable_that_differs_between_hosts_is_refused(draft: Any) -> None:
    draft.group_vars["all"]["railweld_reboot"] = "allow"
    draft.host_vars["gpu2"] = {"railweld_reboot": "skip"}
    problem = draft.only_error()
    assert (problem.id, problem.hosts) == ("variable.site_wide", ("gpu2",))
    assert "text 'skip' on gpu2" in problem.found
    assert problem.file == draft.line("host_vars/gpu2.yml", "skip")


def test_site_variable_on_some_hosts_only_is_refused(draft: Any) -> None:
    draft.host_vars["gpu2"] = {"railweld_reboot": "skip"}
    problem = draft.only_error()
    assert problem.found == "set on gpu2 but not on head1, gpu1, leaf1"
    assert problem.fix == "move it to group_vars/all.yml"


def test_fabric_variable_may_stand_with_the_switches(draft: Any) -> None:
    draft.group_vars["leaves"]["railweld_ecn_min_kb"] = 200
    assert draft.site().ecn_min_kb == 200


def test_undefined_jinja_variable_is_refused(draft: Any) -> None:
    draft.group_vars["gpu_nodes"]["railweld_cache_path"] = "{{ local_root }}/cache"
    problem = draft.only_error()
    assert (problem.id, problem.hosts) == ("value.template", ("gpu1", "gpu2"))
    assert "'local_root' is undefined" in problem.found
    assert problem.file == draft.line("group_vars/gpu_nodes.yml", "local_root")


def test_jinja_syntax_error_is_refused(draft: Any) -> None:
    draft.group_vars["gpu_nodes"]["railweld_cache_path"] = "{{ local_root "
    assert draft.only_error().id == "value.template"


def test_undefined_variable_in_an_address_is_refused(draft: Any) -> None:
    draft.hosts["gpu_nodes"]["gpu2"] = "{{ nowhere }}"
    problem = draft.only_error()
    assert (problem.key, problem.host) == ("ansible_host", "gpu2")


# --- addresses and cables ----------------------------------------------------------------------


def test_duplicate_address_is_refused(draft: Any) -> None:
    draft.hosts["gpu_nodes"]["gpu2"] = "10.0.0.21"
    problem = draft.only_error()
    assert problem.id == "address.duplicate"
    assert problem.found == "10.0.0.21 for gpu2 and leaf1"


def test_same_address_with_another_port_is_accepted(draft: Any) -> None:
    draft.hosts["gpu_nodes"] = {"gpu1": "10.0.0.11", "gpu2": "10.0.0.11"}
    draft.host_vars["gpu2"] = {"ansible_port": 2202}
    assert not [p for p in draft.check() if p.is_error]


def test_duplicate_rail_address_is_refused(draft: Any) -> None:
    draft.host_vars["gpu2"] = {"railweld_node_index": 1, "railweld_hca_overrides": {}}
    problems = [p for p in draft.check() if p.id == "rail.address_duplicate"]
    assert [p.found for p in problems] == [
        "10.10.1.1 for gpu2 mlx5_0 and for gpu1 mlx5_0",
        "10.10.2.1 for gpu2 mlx5_1 and for gpu1 mlx5_1",
    ]
    assert problems[1].key == "railweld_rails[1].subnet"


def test_rail_address_that_is_a_management_address_is_refused(draft: Any) -> None:
    draft.hosts["gpu_nodes"]["gpu2"] = "10.10.1.1"
    assert draft.only_error().id == "rail.address_duplicate"


@pytest.mark.parametrize(
    ("index", "subnet", "reason"),
    [
        (300, "10.10.1.0/24", "outside 10.10.1.0/24"),
        (0, "10.10.1.0/24", "the network address of 10.10.1.0/24"),
        (255, "10.10.1.0/24", "the broadcast address of 10.10.1.0/24"),
        (4, "10.10.1.0/30", "outside 10.10.1.0/30"),
    ],
)
def test_unusable_rail_address_is_refused(draft: Any, index: int, subnet: str, reason: str) -> None:
    draft.rails[0]["subnet"] = subnet
    del draft.rails[1]
    draft.rails[0]["port"] = "Ethernet5/1"
    draft.hosts["gpu_nodes"] = {"gpu1": "10.0.0.11"}
    draft.host_vars["gpu1"] = {"railweld_node_index": index}
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("rail.address_unusable", "railweld_rails[0].subnet")
    assert reason in problem.found


def test_override_address_outside_the_subnet_is_refused(draft: Any) -> None:
    draft.host_vars["gpu2"] = {"railweld_hca_overrides": {"mlx5_0": {"address": "10.99.0.2"}}}
    problem = draft.only_error()
    assert problem.key == "railweld_hca_overrides.mlx5_0.address"
    assert problem.file == draft.line("host_vars/gpu2.yml", "10.99.0.2")


@pytest.mark.parametrize("subnet", ["10.10.1.7/24", "10.10.1", "fd00::/64"])
def test_subnet_that_is_none_is_refused(draft: Any, subnet: str) -> None:
    draft.rails[0]["subnet"] = subnet
    problem = next(p for p in draft.check() if p.is_error)
    assert problem.id == "rail.subnet"


def test_gateway_outside_the_subnet_is_refused(draft: Any) -> None:
    draft.rails[0]["gateway"] = "10.10.2.254"
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("rail.gateway", "railweld_rails[0].gateway")


def test_node_without_a_number_is_refused(draft: Any) -> None:
    draft.hosts["gpu_nodes"]["gpux"] = "10.0.0.13"
    problem = draft.only_error()
    assert (problem.id, problem.host) == ("host.no_index", "gpux")
    assert "host_vars/gpux.yml" in problem.fix


@pytest.mark.parametrize("part", ["hca", "netdev", "rail"])
def test_same_device_on_two_rails_of_a_host_is_refused(draft: Any, part: str) -> None:
    draft.rails[1][part] = draft.rails[0][part]
    problems = [p for p in draft.check() if p.id == "rail.duplicate"]
    assert problems[0].key == f"railweld_rails[1].{part}"


def test_override_of_an_hca_that_is_on_no_rail_is_refused(draft: Any) -> None:
    draft.host_vars["gpu2"] = {"railweld_hca_overrides": {"mlx5_7": {"port": "Ethernet9/1"}}}
    problem = draft.only_error()
    assert problem.id == "hca.override_without_rail"
    assert problem.expected == "one of mlx5_0, mlx5_1"


def test_same_switch_port_for_two_hosts_is_refused(draft: Any) -> None:
    draft.rails[0]["port"] = "Ethernet5/1"
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("switch_port.duplicate", "railweld_rails[0].port")
    assert problem.found == "leaf1 Ethernet5/1 for gpu1 mlx5_0 and for gpu2 mlx5_0"


def test_same_switch_port_for_two_rails_is_refused(draft: Any) -> None:
    draft.rails[1]["port"] = "Ethernet{index}/1"
    problems = [p for p in draft.check() if p.is_error]
    assert {p.id for p in problems} == {"switch_port.duplicate"}
    assert {p.key for p in problems} == {"railweld_rails[1].port"}


def test_port_that_is_both_host_port_and_uplink_is_refused(draft: Any) -> None:
    draft.hosts["spines"] = {"spine1": "10.0.0.31"}
    draft.group_vars["spines"] = {"railweld_switch_model": "DCS-7280CR3-32P4"}
    draft.host_vars["leaf1"] = {
        "railweld_uplinks": [
            {"port": "Ethernet1/1", "peer": "spine1", "peer_port": "Ethernet1/1"},
        ]
    }
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("switch_port.duplicate", "railweld_uplinks[0].port")
    assert "gpu1 mlx5_0" in problem.found


def test_unknown_switch_is_refused_with_the_near_miss(draft: Any) -> None:
    draft.rails[0]["switch"] = "leaf01"
    problem = draft.only_error()
    assert (problem.id, problem.fix) == ("switch.unknown", "did you mean leaf1?")


def test_uplink_to_an_unknown_switch_is_refused(draft: Any) -> None:
    draft.host_vars["leaf1"] = {
        "railweld_uplinks": [{"port": "Ethernet32/1", "peer": "spine9", "peer_port": "Ethernet1/1"}]
    }
    assert draft.only_error().key == "railweld_uplinks[0].peer"


def test_switch_without_a_port_is_refused(draft: Any) -> None:
    del draft.rails[0]["port"]
    assert draft.only_error().id == "switch_port.missing"


@pytest.mark.parametrize("port", ["Ethernet{node}/1", "Ethernet{index-9}/1", "Ethernet{index/1"])
def test_port_that_cannot_be_expanded_is_refused(draft: Any, port: str) -> None:
    draft.rails[0]["port"] = port
    problem = next(p for p in draft.check() if p.is_error)
    assert problem.id == "switch_port.template"


def test_names_of_foreign_switches_are_accepted(draft: Any) -> None:
    del draft.hosts["leaves"]
    assert not [p for p in draft.check() if p.is_error]


# --- link layer and the lossless class ---------------------------------------------------------


def test_subnet_on_an_infiniband_site_is_refused(draft: Any) -> None:
    del draft.hosts["leaves"]
    draft.group_vars["all"]["railweld_transport"] = "infiniband"
    problems = [p for p in draft.check() if p.is_error]
    assert {p.id for p in problems} == {"link_layer.mixed"}
    assert {p.key for p in problems} == {"railweld_rails[0].subnet", "railweld_rails[1].subnet"}


def test_ethernet_switch_on_an_infiniband_site_is_refused(draft: Any) -> None:
    draft.group_vars["all"]["railweld_transport"] = "infiniband"
    for rail in draft.rails:
        del rail["subnet"]
    problems = [p for p in draft.check() if p.is_error]
    assert {p.key for p in problems} == {"railweld_rails[0].switch", "railweld_rails[1].switch"}


def test_infiniband_site_without_switches_is_accepted(draft: Any) -> None:
    del draft.hosts["leaves"]
    draft.group_vars["all"]["railweld_transport"] = "infiniband"
    for rail in draft.rails:
        del rail["subnet"], rail["switch"], rail["port"], rail["netdev"]
    assert draft.site().host("gpu1").hcas[0].address is None


@pytest.mark.parametrize("part", ["subnet", "netdev"])
def test_rail_without_ethernet_part_on_a_roce_site_is_refused(draft: Any, part: str) -> None:
    del draft.rails[1][part]
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("link_layer.mixed", "railweld_rails[1]")
    assert part in problem.found


def test_infiniband_device_on_a_roce_site_is_refused(draft: Any) -> None:
    draft.rails[0]["netdev"] = "ibp12s0"
    assert draft.only_error().id == "link_layer.mixed"


@pytest.mark.parametrize(
    ("values", "problem_id", "key"),
    [
        ({"lossless_priority": 4}, "class.dscp_priority", "lossless_dscp"),
        ({"lossless_dscp": 34}, "class.dscp_priority", "lossless_dscp"),
        ({"lossless_queue": 6}, "class.queue_shared", "lossless_queue"),
        ({"lossless_queue": 1}, "class.queue_shared", "lossless_queue"),
        ({"lossless_queue": 7}, "class.queue_shared", "lossless_queue"),
        ({"cnp_priority": 3, "cnp_dscp": 24}, "class.cnp_lossless", "cnp_priority"),
    ],
)
def test_disagreement_of_priority_dscp_and_queue_is_refused(
    draft: Any, values: dict[str, int], problem_id: str, key: str
) -> None:
    draft.group_vars["all"] |= {f"railweld_{name}": value for name, value in values.items()}
    problem = draft.only_error()
    assert (problem.id, problem.key) == (problem_id, f"railweld_{key}")


def test_same_dscp_for_both_classes_is_refused(draft: Any) -> None:
    draft.group_vars["all"] |= {"railweld_cnp_priority": 3, "railweld_cnp_dscp": 26}
    errors = {p.id for p in draft.check() if p.is_error}
    assert errors == {"class.dscp_shared", "class.cnp_lossless"}


def test_queue_other_than_the_priority_is_explained(draft: Any) -> None:
    draft.group_vars["all"]["railweld_lossless_queue"] = 4
    problem = next(p for p in draft.check() if p.id == "class.queue_priority")
    assert problem.severity == "warning"


def test_notifications_outside_their_default_priority_are_explained(draft: Any) -> None:
    draft.group_vars["all"]["railweld_cnp_dscp"] = 40
    problem = next(p for p in draft.check() if p.id == "class.dscp_priority")
    assert (problem.severity, problem.key) == ("warning", "railweld_cnp_dscp")


def test_classes_may_move_together(draft: Any) -> None:
    draft.group_vars["all"] |= {"railweld_lossless_priority": 4, "railweld_lossless_dscp": 34}
    site = draft.site()
    assert (site.nccl_ib_tc, site.lossless_queue) == (136, 4)


def test_host_mtu_above_the_switch_is_refused(draft: Any) -> None:
    draft.group_vars["all"] |= {"railweld_host_mtu": 9000, "railweld_switch_mtu": 8000}
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("mtu.host_above_switch", "railweld_host_mtu")
    assert problem.found == "9000, and railweld_switch_mtu 8000"


def test_mtu_too_small_for_rdma_is_explained(draft: Any) -> None:
    draft.group_vars["all"]["railweld_host_mtu"] = 1500
    assert next(p for p in draft.check() if p.id == "mtu.small").severity == "warning"


@pytest.mark.parametrize(
    ("group", "values", "problem_id"),
    [
        ("all", {"railweld_ecn_min_kb": 2000}, "fabric.ecn_order"),
        ("all", {"railweld_pfc_watchdog_polling_s": 0.15}, "fabric.watchdog_polling"),
        ("leaves", {"railweld_switch_model": "Nexus9000"}, "fabric.switch_model"),
        ("leaves", {"railweld_eos_version": "9.9.9X"}, "fabric.eos_version"),
    ],
)
def test_what_switches_would_refuse_is_refused(
    draft: Any, group: str, values: dict[str, object], problem_id: str
) -> None:
    draft.group_vars[group] |= values
    problem = draft.only_error()
    assert (problem.id, problem.key) == (problem_id, next(iter(values)))
    assert problem.file.startswith(str(draft.folder / f"group_vars/{group}.yml"))


def test_port_that_the_model_does_not_have_is_refused(draft: Any) -> None:
    draft.rails[0]["port"] = "GigabitEthernet{index}"
    errors = {p.id for p in draft.check() if p.is_error}
    assert errors == {"fabric.port_name"}


# --- partitions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "problem_id", "found"),
    [
        ({"railweld_gpu_count": 7}, "partition.gpu_count", "8 on gpu1; 7 on gpu2"),
        ({"railweld_rails": "one"}, "partition.rails", "2 on gpu1; 1 on gpu2"),
    ],
)
def test_counts_that_differ_inside_a_partition_are_refused(
    draft: Any, values: dict[str, Any], problem_id: str, found: str
) -> None:
    if "railweld_rails" in values:
        values = {"railweld_rails": draft.rails[:1]}
    draft.host_vars["gpu2"] = values
    problem = draft.only_error()
    assert problem.id == problem_id
    assert found in problem.found
    assert problem.file.startswith(str(draft.folder / "host_vars/gpu2.yml"))


def test_counts_may_differ_between_partitions(draft: Any) -> None:
    draft.host_vars["gpu2"] = {"railweld_gpu_count": 4}
    draft.group_vars["all"]["railweld_partitions"] = [
        {"name": "large", "hosts": ["gpu1"], "default": True},
        {"name": "small", "hosts": ["gpu2"]},
    ]
    assert [p.hosts for p in draft.site().partitions] == [("gpu1",), ("gpu2",)]


def test_models_that_differ_inside_a_partition_are_explained(draft: Any) -> None:
    draft.host_vars["gpu2"] = {"railweld_gpu_model": "H200"}
    problem = next(p for p in draft.check() if p.id == "partition.gpu_model")
    assert problem.severity == "warning"


@pytest.mark.parametrize(
    ("partitions", "problem_id"),
    [
        ([{"name": "a", "group": "gpu_node"}], "partition.group"),
        ([{"name": "a", "hosts": ["gpu1", "gpu9"]}], "partition.host"),
        ([{"name": "a"}], "partition.empty"),
        ([{"name": "a", "group": "gpu_nodes"}] * 2, "partition.duplicate"),
        (
            [
                {"name": "a", "group": "gpu_nodes", "default": True},
                {"name": "b", "group": "gpu_nodes", "default": True},
            ],
            "partition.default",
        ),
    ],
)
def test_partition_that_slurm_could_not_have_is_refused(
    draft: Any, partitions: list[dict[str, Any]], problem_id: str
) -> None:
    draft.group_vars["all"]["railweld_partitions"] = partitions
    assert draft.only_error().id == problem_id


# --- versions and mirrors ----------------------------------------------------------------------


def test_unknown_version_set_is_refused(draft: Any) -> None:
    draft.group_vars["all"]["railweld_version_set"] = "a100-2032"
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("versions.unknown", "railweld_version_set")
    assert problem.found == "'a100-2032'"
    assert "a100-2023" in problem.expected


def test_unknown_component_is_refused(draft: Any) -> None:
    draft.group_vars["all"]["railweld_version_overrides"] = {"kuberntes": "1.36.4"}
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("versions.unknown", "railweld_version_overrides")


def test_version_outside_the_sets_rules_is_refused(draft: Any) -> None:
    draft.group_vars["all"]["railweld_version_set"] = "a100-2023"
    draft.group_vars["all"]["railweld_vendor_repository"] = "ubuntu2204"
    draft.group_vars["gpu_nodes"]["railweld_gpu_model"] = "A100-SXM4-80GB"
    draft.group_vars["gpu_nodes"]["railweld_cuda_compat"] = False
    problems = [p for p in draft.check() if p.is_error]
    floor = next(p for p in problems if p.id == "versions.cuda-12-driver-floor")
    assert floor.key == "railweld_cuda_compat"
    assert floor.file == draft.line("group_vars/gpu_nodes.yml", "cuda_compat")
    assert "515.86.01" in floor.found
    assert floor.hosts == ("gpu1", "gpu2")


def test_peermem_without_doca_is_refused(draft: Any) -> None:
    draft.group_vars["all"]["railweld_gpudirect"] = "peermem"
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("versions.peermem-needs-doca", "railweld_gpudirect")


def test_vendor_repository_that_never_had_the_packages_is_refused(draft: Any) -> None:
    draft.group_vars["all"] |= {"railweld_version_set": "a100-2023"}
    draft.group_vars["gpu_nodes"]["railweld_gpu_model"] = "A100-SXM4-80GB"
    ids = {p.id for p in draft.check() if p.is_error}
    assert ids == {"versions.package-absent"}


def test_fetched_key_without_fingerprint_is_refused(draft: Any) -> None:
    draft.group_vars["all"]["railweld_mirrors"] = {
        "cuda": {"url": "http://mirror/cuda", "key_url": "http://mirror/key.asc"}
    }
    problem = draft.only_error()
    assert (problem.id, problem.key) == (
        "mirror.unverified_key",
        "railweld_mirrors.cuda.key_url",
    )


@pytest.mark.parametrize("key", ["url", "key_url"])
def test_login_in_an_address_is_refused_and_not_shown(draft: Any, key: str) -> None:
    mirror = {
        "url": "http://mirror/cuda",
        "key_url": "http://mirror/a",
        "key_fingerprint": "0" * 40,
    }
    mirror[key] = "https://robot:hunter2@mirror/cuda"
    draft.group_vars["all"]["railweld_mirrors"] = {"cuda": mirror}
    problem = draft.only_error()
    assert (problem.id, problem.key) == ("variable.type", f"railweld_mirrors.cuda.{key}")
    assert "without a login" in problem.expected
    assert "https://(hidden)@mirror/cuda" in problem.found
    assert "hunter2" not in str(problem)


@pytest.mark.parametrize(("lab", "severity"), [(True, "warning"), (False, "error")])
def test_empty_fingerprint_is_forgiven_only_in_a_lab_that_is_down(
    draft: Any, lab: bool, severity: str
) -> None:
    draft.group_vars["all"]["railweld_mirrors"] = {
        "os": {"url": "http://mirror/os", "key_url": "http://mirror/key.asc", "key_fingerprint": ""}
    }
    if lab:
        draft.group_vars["all"]["lab_mirror_fingerprint"] = ""
    problem = next(p for p in draft.check() if p.id == "mirror.no_fingerprint")
    assert problem.severity == severity
    assert ("lab not up" in problem.found) is lab


def test_cache_and_scratch_on_one_path_are_refused(draft: Any) -> None:
    draft.group_vars["gpu_nodes"]["railweld_scratch_path"] = "/local/cache"
    assert draft.only_error().id == "cache.same_path"
