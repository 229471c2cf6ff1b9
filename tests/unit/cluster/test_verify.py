"""Stage `cluster` where there is no cluster, none yet, or one that does not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from railweld.access import Access
from railweld.cluster import kubeconfig, model, stage, verify
from railweld.nodes import Answer
from railweld.record import Check, Status
from railweld.site import Site, load_inventory
from railweld.verify.hosts import REACHED, not_reached
from railweld.verify.stages import OBSERVE, Request
from tests.unit.cluster.conftest import SEEN, member_of

Answers = dict[str, dict[str, Answer]]
Look = Callable[[Site, Answers], Mapping[str, list[Check]]]


def answers(site: Site, *, member: bool) -> Answers:
    """What the probe says on each node, members or bare ones."""
    found: Answers = {}
    for name in model.members(site):
        node: dict[str, Any] = member_of(stage.host_view(model.fact(site), name, SEEN))
        if not member:
            node["cluster"]["node"] = None
        result = {"ansible_facts": {"railweld_node": node}}
        found[name] = {OBSERVE: Answer("ok", result)}
    return found


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Run the stage with what nodes are said to answer; records by id."""
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path))
    # The stage looks at the description alone, not at how it was written down.
    raw = load_inventory(["localhost,"])

    def run(site: Site, found: Answers) -> Mapping[str, list[Check]]:
        request = Request(Access(), raw, site)
        request.remember(model.members(site), found)
        checks: dict[str, list[Check]] = {}
        for each in verify.verify_site(request).checks:
            checks.setdefault(each.id, []).append(each)
        return checks

    return run


def test_site_without_a_cluster_is_skipped(look: Look, site: Callable[..., Site]) -> None:
    found = look(site(planes=0), {})
    assert {each.status for checks in found.values() for each in checks} == {Status.SKIPPED}


def test_cluster_that_was_not_made_yet_is_skipped(look: Look, site: Callable[..., Site]) -> None:
    tiny = site()
    found = look(tiny, answers(tiny, member=False))
    assert set(found) == {"cluster.deployed"}
    assert found["cluster.deployed"][0].status is Status.SKIPPED


def test_members_are_judged_without_a_way_into_the_cluster(
    look: Look, site: Callable[..., Site]
) -> None:
    tiny = site()
    found = look(tiny, answers(tiny, member=True))
    assert [each.status for each in found["cluster.reached"]] == [Status.UNKNOWN]
    assert len(found["kubernetes.member"]) == 3
    # Routes cannot be judged without a list of nodes, which is not a pass.
    assert {each.status for each in found["cni.routes"]} == {Status.UNKNOWN}


def test_api_server_that_refuses_connections_is_unknown(
    look: Look, site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = site()
    monkeypatch.setattr(verify, "_PATIENCE_S", 0.0)
    path = kubeconfig.path(tiny.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "clusters": [{"name": "tiny", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "railweld-tiny", "context": {"cluster": "tiny", "user": "me"}}],
    }
    path.write_text(yaml.safe_dump(content))
    found = look(tiny, answers(tiny, member=True))
    assert found["cluster.reached"][0].status is Status.UNKNOWN
    assert "127.0.0.1:9" in found["cluster.reached"][0].found


def test_node_that_does_not_answer_is_unknown(look: Look, site: Callable[..., Site]) -> None:
    tiny = site()
    given = answers(tiny, member=True)
    given["gpu2"] = {"Load": Answer("unreachable", {"msg": "no route to host"})}
    found = look(tiny, given)
    assert found[REACHED] == [not_reached("gpu2", "unreachable: no route to host")]


def test_what_a_cluster_would_need_is_asked_for_once_there_is_one(
    look: Look, site: Callable[..., Site]
) -> None:
    """A site on its way has no image archives yet, and nothing is wrong with its nodes."""
    tiny = site(everywhere={"railweld_image_archives": "/nonexistent"})
    assert set(look(tiny, answers(tiny, member=False))) == {"cluster.deployed"}
    found = look(tiny, answers(tiny, member=True))
    assert found["cluster.described"][0].status is Status.FAIL


def test_no_node_that_answers_does_not_mean_that_there_is_no_cluster(
    look: Look, site: Callable[..., Site]
) -> None:
    tiny = site()
    given = answers(tiny, member=False)
    given["head1"] = {"Load": Answer("unreachable", {"msg": "no route to host"})}
    found = look(tiny, given)
    assert found["cluster.deployed"][0].status is Status.SKIPPED
    assert [each.target for each in found[REACHED]] == ["head1"]
