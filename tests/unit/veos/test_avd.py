"""The grammar against Arista's own generator: what AVD renders for a valid model is accepted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyavd import get_device_config, validate_structured_config

QUEUE_KEY = {"7050X3": "uc_tx_queues", "7280R": "tx_queues"}
FRACTIONS = ["1/128", "1/64", "1/32", "1/16", "1/8", "1/4", "1/2", "1", "2", "4", "8"]


def ecn(units: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda unit, low, more, chance, weight: {
            "threshold": {
                "units": unit, "min": low, "max": low + more,
                "max_probability": chance, "weight": weight,
            },
            "count": True,
        },
        st.sampled_from(units), st.integers(1, 1000), st.integers(0, 1000),
        st.integers(1, 100), st.integers(0, 15),
    )  # fmt: skip


def models(model: str) -> st.SearchStrategy[dict[str, Any]]:
    sand = model == "7280R"
    units = ["bytes", "kbytes", "mbytes"] + (["milliseconds"] if sand else ["segments"])
    tc = st.integers(0, 7)
    seconds = st.integers(1, 6000).map(lambda hundredths: f"{hundredths / 100:.2f}")
    queues = st.lists(
        st.fixed_dictionaries(
            {
                "id": tc,
                "priority": st.sampled_from(["no priority", "priority strict"]),
                "bandwidth_percent": st.integers(1, 100),
                "random_detect": st.fixed_dictionaries({"ecn": ecn(units)}),
            }
        ),
        max_size=3,
        unique_by=lambda queue: queue["id"],
    )
    parts: dict[str, st.SearchStrategy[Any]] = {
        "qos_profiles": st.fixed_dictionaries(
            {
                "name": st.just("ROCE"),
                "trust": st.sampled_from(["dscp", "cos", "disabled"]),
                "priority_flow_control": st.fixed_dictionaries(
                    {
                        "enabled": st.just(True),
                        "priorities": st.lists(
                            st.fixed_dictionaries({"priority": tc, "no_drop": st.booleans()}),
                            max_size=3,
                            unique_by=lambda entry: entry["priority"],
                        ),
                        "watchdog": st.fixed_dictionaries(
                            {
                                "enabled": st.just(True),
                                "action": st.sampled_from(["drop", "notify-only"]),
                                "timer": st.fixed_dictionaries(
                                    {
                                        "timeout": seconds,
                                        "polling_interval": st.just("auto"),
                                        "recovery_time": seconds,
                                        "forced": st.booleans(),
                                    }
                                ),
                            }
                        ),
                    }
                ),
                QUEUE_KEY[model]: queues,
            }
        ).map(lambda profile: [profile]),
        "ethernet_interfaces": st.fixed_dictionaries(
            {
                "name": st.just("Ethernet1/1"),
                "mtu": st.integers(68, 9214),
                "flowcontrol": st.fixed_dictionaries(
                    {"received": st.sampled_from(["on", "off", "desired"])}
                ),
                "service_profile": st.just("ROCE"),
                "qos": st.fixed_dictionaries({"trust": st.sampled_from(["dscp", "cos"])}),
                "storm_control": st.fixed_dictionaries(
                    {"broadcast": st.fixed_dictionaries({"level": st.integers(1, 100).map(str)})}
                ),
            }
        ).map(lambda port: [port]),
        "qos": st.fixed_dictionaries(
            {
                "map": st.fixed_dictionaries(
                    {
                        "dscp": st.lists(
                            st.tuples(st.integers(0, 63), tc), max_size=3, unique_by=lambda p: p[0]
                        ).map(lambda pairs: [f"{d} to traffic-class {t}" for d, t in pairs]),
                        "traffic_class": st.lists(
                            st.tuples(tc, tc), max_size=3, unique_by=lambda p: p[0]
                        ).map(lambda pairs: [f"{t} to tx-queue {q}" for t, q in pairs]),
                    }
                )
            }
        ),
        "priority_flow_control": st.fixed_dictionaries(
            {
                "watchdog": st.fixed_dictionaries(
                    {
                        "action": st.sampled_from(["drop", "errdisable", "notify-only"]),
                        "timeout": seconds,
                        "recovery_time": seconds,
                        "polling_interval": st.sampled_from(["0.005", "0.10", "30"]),
                    }
                )
            }
        ),
    }
    if not sand:
        size = st.integers(1, 33554432)
        parts["platform"] = st.fixed_dictionaries(
            {
                "active_profile": st.just("M"),
                "headroom_pool": st.fixed_dictionaries({"limit": size, "unit": st.just("bytes")}),
                "queue_profiles": st.fixed_dictionaries(
                    {
                        "name": st.just("M"),
                        "ingress": st.fixed_dictionaries(
                            {
                                "threshold": st.sampled_from(FRACTIONS),
                                "headroom": st.fixed_dictionaries({"memory": size}),
                                "resume": size,
                            }
                        ),
                    }
                ).map(lambda profile: [profile]),
            }
        ).map(lambda mmu: {"trident": {"mmu": mmu}})
    return st.fixed_dictionaries(parts)


def typed(config: str) -> list[str]:
    """The configuration the way a person types it: every sub-mode left before the next line."""
    lines: list[str] = []
    depth: list[int] = []
    for raw in config.splitlines():
        text = raw.strip()
        if text in {"", "!"}:
            continue
        indent = len(raw) - len(raw.lstrip())
        while depth and indent <= depth[-1]:
            depth.pop()
            lines.append("exit")
        lines.append(text)
        if text.startswith(("interface ", "qos profile ", "uc-tx-queue ", "tx-queue ")) or (
            text.startswith("platform trident mmu queue profile") and not text.endswith("apply")
        ):
            depth.append(indent)
    return lines


@pytest.mark.parametrize("model", ["7050X3", "7280R"])
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_lines_of_a_valid_avd_model_are_accepted_and_echo_survives(cli, model, data):
    structured = {"hostname": "leaf1", **data.draw(models(model))}
    assert not validate_structured_config(structured).validation_result.violations
    switch = cli(model=model, version="4.31.2F")
    switch.accept("configure session avd")
    for line in typed(get_device_config(structured)):
        switch.accept(line)
    switch.accept("end", "configure session avd commit")
    running = switch.device.running_lines
    again = cli(model=model, version="4.31.2F", startup="\n".join(running))
    assert again.device.running_lines == running


def test_rare_avd_lines_are_accepted(cli):
    structured = {
        "hostname": "leaf1",
        "queue_monitor_length": {"enabled": True},
        "errdisable": {"recovery": {"causes": [{"name": "stuck-queue"}], "interval": 60}},
        "qos": {
            "rewrite_dscp": True,
            "map": {"cos": ["3 to traffic-class 3"], "traffic_class": ["3 to dscp 26"]},
            "random_detect": {
                "ecn": {
                    "allow_non_ect": {"enabled": True, "chip_based": True},
                    "global_buffer": {"units": "segments", "min": 9984, "max": 14976},
                }
            },
        },
        "priority_flow_control": {"all_off": True, "watchdog": {"override_action_drop": True}},
        "policy_maps": {"qos": [{"name": "P", "classes": [{"name": "C", "set": {"dscp": 26}}]}]},
    }
    assert not validate_structured_config(structured).validation_result.violations
    switch = cli(version="4.31.2F")
    switch.accept("configure", *typed(get_device_config(structured)))
