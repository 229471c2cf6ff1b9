"""Rendering: golden text, the intent of each line, and pyavd's schema as a judge."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyavd import get_device_config, validate_structured_config

from railweld.errors import RailweldError
from railweld.fabric.diff import Observed, compare
from railweld.fabric.lines import canonical
from railweld.fabric.model import Fabric, LosslessClass, Port, Switch, Tuning
from railweld.fabric.render import PROFILE, Rendered, render

from .fabrics import SAND, STRATA, TOMAHAWK, host, one

GOLDEN = Path(__file__).parent / "golden"


def rendered(model: str, release: str = "4.31.2F", **tuning: Any) -> Rendered:
    fabric = one(model, tuning=Tuning(**tuning))
    return render(fabric, fabric.switches[0], release=release)


@pytest.mark.parametrize(
    ("name", "model", "release", "tuning"),
    [
        ("strata-4.31", STRATA, "4.31.2F", {}),
        ("strata-4.30-mmu", STRATA, "4.30.5M", {"mmu": True}),
        ("tomahawk-4.35", TOMAHAWK, "4.35.0F", {"storm_control": 1.5}),
        ("sand-4.32", SAND, "4.32.1F", {"mmu": True}),
    ],
)
def test_text_is_the_reviewed_one(
    name: str, model: str, release: str, tuning: dict[str, Any]
) -> None:
    assert rendered(model, release, **tuning).text(intents=True) == (
        GOLDEN / f"{name}.txt"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize("model", [STRATA, TOMAHAWK, SAND])
def test_every_line_has_an_intent(model: str) -> None:
    assert [line.text for line in rendered(model, mmu=True).lines if not line.intent] == []


def test_switch_wide_and_per_port_lines_are_apart() -> None:
    lines = rendered(STRATA).lines
    assert {line.part for line in lines if line.path[:1] == ("interface Ethernet1/1",)} == {"port"}
    assert {line.part for line in lines if not line.path} == {"switch"}


def test_the_second_pass_is_pfc_and_its_watchdog_and_nothing_else() -> None:
    second = {line.text for line in rendered(STRATA).lines if line.stage == 2}
    assert second == {
        "priority-flow-control pause watchdog",
        "priority-flow-control pause watchdog default timeout 0.20",
        "priority-flow-control pause watchdog default recovery-time 0.20",
        "priority-flow-control pause watchdog default polling-interval 0.10",
        "priority-flow-control pause watchdog action drop",
        "priority-flow-control on",
        "priority-flow-control priority 3 no-drop",
    }


def test_ecn_count_moves_from_the_port_to_the_profile_with_the_release() -> None:
    def places(release: str) -> set[str]:
        return {
            line.path[0]
            for line in rendered(STRATA, release).lines
            if line.text == "random-detect ecn count"
        }

    assert places("4.30.5M") == {"interface Ethernet1/1", "interface Ethernet2/1"}
    assert places("4.31.2F") == {f"qos profile {PROFILE}"}


def test_jericho_has_its_own_queue_word_and_no_mmu() -> None:
    text = rendered(SAND, mmu=True).text()
    assert "uc-tx-queue" not in text
    assert "trident" not in text
    assert "   tx-queue 3\n" in text


@pytest.mark.parametrize("model", [STRATA, TOMAHAWK, SAND])
def test_thresholds_are_in_a_unit_that_the_family_takes(model: str) -> None:
    switch = rendered(model)
    (line,) = [line.text for line in switch.lines if "minimum-threshold" in line.text]
    units = set(re.findall(r"-threshold \d+ (\w+)", line))
    assert len(units) == 1
    assert units <= set(switch.platform.ecn_units)


def test_a_port_channel_carries_the_mtu_and_its_members_the_profile() -> None:
    ports = (host(1, channel=7), host(2, channel=7))
    text = render(one(ports=ports), one(ports=ports).switches[0]).text()
    assert text.count("interface Port-Channel7\n") == 1
    section = text.partition("interface Port-Channel7\n")[2]
    assert section.strip().splitlines() == ["mtu 9214"]


def test_a_queue_that_differs_from_the_priority_is_mapped() -> None:
    fabric = one(tuning=Tuning(lossless=LosslessClass(priority=3, queue=4)))
    text = render(fabric, fabric.switches[0]).text()
    assert "qos map traffic-class 3 to tx-queue 4" in text
    assert "   uc-tx-queue 4\n" in text
    assert "priority-flow-control priority 3 no-drop" in text


def test_an_infiniband_site_renders_nothing_and_says_where_to_look() -> None:
    fabric = one().model_copy(update={"transport": "infiniband"})
    with pytest.raises(RailweldError, match="expected roce"):
        render(fabric, fabric.switches[0])


def structured(switch: Rendered) -> dict[str, Any]:
    """The rendered lines as AVD's model; a line that has no place there raises."""
    data: dict[str, Any] = {"hostname": "x"}
    for line in switch.lines:
        _place(data, (*line.path, line.text))
    return data


def _child(items: list[dict[str, Any]], field: str, value: Any) -> dict[str, Any]:
    for item in items:
        if item[field] == value:
            return item
    items.append({field: value})
    return items[-1]


def _place(data: dict[str, Any], path: tuple[str, ...]) -> None:
    head, text = path[0], path[-1]
    if head.startswith("interface Port-Channel"):
        target = _child(data.setdefault("port_channel_interfaces", []), "name", head.split()[1])
    elif head.startswith("interface "):
        target = _child(data.setdefault("ethernet_interfaces", []), "name", head.split()[1])
    elif head.startswith("qos profile "):
        target = _child(data.setdefault("qos_profiles", []), "name", head.split()[2])
    elif len(path) == 2 and head.startswith("platform trident mmu queue profile "):
        _mmu(data, head.split()[-1], text)
        return
    else:
        _global(data, text)
        return
    is_port = head.startswith("interface ")
    if len(path) == 3:
        word, number = path[1].split()
        field = "uc_tx_queues" if word == "uc-tx-queue" else "tx_queues"
        _queue(_child(target.setdefault(field, []), "id", int(number)), text)
    elif text.startswith("mtu "):
        target["mtu"] = int(text.split()[1])
    elif text == "flowcontrol receive off":
        target["flowcontrol"] = {"received": "off"}
    elif text.startswith("service-profile "):
        target["service_profile"] = text.split()[1]
    elif text == "qos trust dscp":
        target.update({"qos": {"trust": "dscp"}} if is_port else {"trust": "dscp"})
    elif text.startswith("storm-control "):
        _, kind, _, level = text.split()
        target.setdefault("storm_control", {})[kind] = {"level": level}
    else:
        _pfc(target.setdefault("priority_flow_control", {}), text)


def _pfc(pfc: dict[str, Any], text: str) -> None:
    if text == "priority-flow-control on":
        pfc["enabled"] = True
    elif text == "priority-flow-control pause watchdog":
        pfc["watchdog"] = {"enabled": True}
    else:
        found = re.fullmatch(r"priority-flow-control priority (\d) no-drop", text)
        assert found, text
        pfc.setdefault("priorities", []).append({"priority": int(found[1]), "no_drop": True})


def _queue(queue: dict[str, Any], text: str) -> None:
    if text in ("no priority", "priority strict"):
        queue["priority"] = text
    elif text.startswith("bandwidth percent "):
        queue["bandwidth_percent"] = int(text.rsplit(maxsplit=1)[-1])
    else:
        ecn = queue.setdefault("random_detect", {}).setdefault("ecn", {})
        if text == "random-detect ecn count":
            ecn["count"] = True
            return
        found = re.fullmatch(
            r"random-detect ecn minimum-threshold (\d+) (\w+) maximum-threshold (\d+) \2 "
            r"max-mark-probability (\d+) weight (\d+)", text,
        )  # fmt: skip
        assert found, text
        ecn["threshold"] = {
            "units": found[2], "min": int(found[1]), "max": int(found[3]),
            "max_probability": int(found[4]), "weight": int(found[5]),
        }  # fmt: skip


def _mmu(data: dict[str, Any], name: str, text: str) -> None:
    mmu = data.setdefault("platform", {}).setdefault("trident", {}).setdefault("mmu", {})
    ingress = _child(mmu.setdefault("queue_profiles", []), "name", name).setdefault("ingress", {})
    words = text.split()
    if words[1] == "priority-group":
        group = _child(ingress.setdefault("priority_groups", []), "id", int(words[2]))
        group["threshold"] = words[4]
    elif words[1] == "headroom":
        ingress["headroom"] = {"unit": words[2], "memory": int(words[3])}
    else:
        ingress[words[1]] = int(words[2]) if words[1] == "resume" else words[2]


def _global(data: dict[str, Any], text: str) -> None:
    watchdog = data.setdefault("priority_flow_control", {}).setdefault("watchdog", {})
    if text.startswith("qos map dscp "):
        qos = data.setdefault("qos", {}).setdefault("map", {})
        qos.setdefault("dscp", []).append(text.removeprefix("qos map dscp "))
    elif text.startswith("qos map traffic-class "):
        qos = data.setdefault("qos", {}).setdefault("map", {})
        qos.setdefault("traffic_class", []).append(text.removeprefix("qos map traffic-class "))
    elif text.startswith("errdisable recovery cause "):
        data["errdisable"] = {"recovery": {"causes": [{"name": text.rsplit(maxsplit=1)[-1]}]}}
    elif text.startswith("priority-flow-control pause watchdog default "):
        watchdog[text.split()[-2].replace("-", "_")] = text.rsplit(maxsplit=1)[-1]
    elif text.startswith("priority-flow-control pause watchdog action "):
        watchdog["action"] = text.rsplit(maxsplit=1)[-1]
    else:
        mmu = data.setdefault("platform", {}).setdefault("trident", {}).setdefault("mmu", {})
        if text.endswith(" apply"):
            mmu["active_profile"] = text.split()[-2]
        else:
            found = re.fullmatch(r"platform trident mmu headroom-pool limit (\w+) (\d+)", text)
            assert found, text
            mmu["headroom_pool"] = {"unit": found[1], "limit": int(found[2])}


@pytest.mark.parametrize("model", [STRATA, TOMAHAWK, SAND])
@pytest.mark.parametrize("release", ["4.30.5M", "4.35.0F"])
def test_every_line_comes_out_of_a_valid_avd_model(model: str, release: str) -> None:
    ports = (host(1), Port(name="Ethernet9/1", kind="uplink", peer="spine1", channel=4))
    fabric = Fabric(
        site="t", tuning=Tuning(mmu=True, storm_control=1),
        switches=(Switch(name="leaf1", model=model, ports=ports),),
    )  # fmt: skip
    ours = render(fabric, fabric.switches[0], release=release)
    judged = validate_structured_config(structured(ours))
    assert [str(v.message) for v in judged.validation_result.violations] == []
    assert judged.validated_data is not None
    theirs = get_device_config(judged.validated_data)
    assert compare(ours, Observed(theirs)).changes == ()
    printed = {" ".join(line.split()) for line in theirs.splitlines()}
    missing = [line.text for line in ours.lines if line.text not in printed]
    assert missing == []
    assert all(len(canonical((line.text,))) == 1 for line in ours.lines)
