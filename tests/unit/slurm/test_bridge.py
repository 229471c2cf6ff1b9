"""A site with a bridge: what Slurm is told, what the head gets, what must wait for jobs."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from railweld import names
from railweld.bridge import access, bundle, config, hook
from railweld.bridge import token as renewal
from railweld.site import SiteError
from railweld.slurm import conf, model, stage
from railweld.slurm.changes import effect
from railweld.verify.context import Context
from railweld.verify.roles import bridge as checks
from tests.unit.slurm.conftest import OWN, SiteMaker, bad_on

ROLES = Path(__file__).parents[3] / "roles"
DAY = 86400.0
NOW = 1_800_000_000.0
TWO = [
    {"name": "Big_Ones", "hosts": ["gpu1", "gpu2"], "default": True},
    {"name": "plain", "hosts": ["gpu3"], "bridge": False},
]
MIXED = {"railweld_partitions": TWO, "railweld_mirrors": OWN}


def test_slurm_is_told_of_hook_and_epilog(site: SiteMaker) -> None:
    slurm = model.fact(site())
    values = conf.parameters(slurm)
    assert values["JobSubmitPlugins"] == "lua"
    assert values["Epilog"] == values["EpilogSlurmctld"] == names.BRIDGE_EPILOG
    assert hook.partitions(conf.files(slurm)[conf.HOOK]) == {"gpu"}


def test_a_site_without_bridge_partitions_has_nothing_of_it(site: SiteMaker) -> None:
    plain = [{"name": "plain", "group": "gpu_nodes", "bridge": False}]
    described = site(everywhere={"railweld_partitions": plain, "railweld_mirrors": OWN})
    slurm = model.fact(described)
    assert slurm["bridge"] is None
    assert conf.HOOK not in conf.files(slurm)
    assert not {"JobSubmitPlugins", "Epilog", "EpilogSlurmctld"} & set(conf.parameters(slurm))

    def roles(host: str, *, has_bridge: bool) -> tuple[str, ...]:
        node = {"slurm": {"bridge": {"present": has_bridge}}}
        return stage.roles(Context(site={}, host={}, node=node, slurm=model.view(slurm, host)))

    assert roles("head1", has_bridge=False) == ("slurm",)
    # What an earlier description has left is taken away.
    assert roles("head1", has_bridge=True) == ("slurm", "bridge")
    assert roles("gpu1", has_bridge=False) == ("slurm",)


def test_the_daemons_configuration_follows_from_the_description(site: SiteMaker) -> None:
    volumes = [{"name": "data", "mount": "/data", "host_path": "/srv/data"}]
    more = {"railweld_job_volumes": volumes, "railweld_job_registries": ["registry.site/ml"]}
    bridge = model.fact(site(everywhere={**MIXED, **more}))["bridge"]
    found = config.parse(bridge["config"])
    assert found.cluster == "tiny"
    # As the stack names the template.
    assert found.partitions == {"Big_Ones": "big-ones"}
    assert found.devices == {"Big_Ones": {"nvidia.com/gpu": 8, "rdma/hca": 1}}
    assert found.advertise == "10.0.0.10:6830"
    assert found.registries == ("registry.site/ml",)
    assert found.placement == "affinity"
    assert bridge["paths"] == ["/data"]
    assert str(found.kubeconfig) == names.BRIDGE_KUBECONFIG


@pytest.mark.parametrize(
    ("version", "placement"),
    [
        ("1.36.3", "admission"),
        ("1.35.9", "patch"),
        ("1.27.0", "patch"),
        # What a100-2023 pins has no gates, and nothing of a pod's place can be changed.
        ("1.26.0", "affinity"),
    ],
)
def test_pods_come_to_their_nodes_by_what_kubernetes_can(
    site: SiteMaker, version: str, placement: str
) -> None:
    chosen = {"railweld_version_overrides": {"kubernetes": version}}
    assert model.fact(site(everywhere=chosen))["bridge"]["config"]["placement"] == placement


def test_a_site_may_not_decide_twice_but_may_where_no_bridge_is(site: SiteMaker) -> None:
    own = {"railweld_slurm_parameters": {"Epilog": "/opt/epilog"}}
    with pytest.raises(SiteError, match="Epilog, which follows from the description"):
        site(everywhere=own)
    plain = [{"name": "plain", "group": "gpu_nodes", "bridge": False}]
    described = site(everywhere={**own, "railweld_partitions": plain, "railweld_mirrors": OWN})
    assert conf.parameters(model.fact(described))["Epilog"] == "/opt/epilog"


@pytest.mark.parametrize("joins", [True, False])
def test_a_partition_changes_sides_only_without_jobs(site: SiteMaker, *, joins: bool) -> None:
    one = conf.files(model.fact(site(everywhere=MIXED)))
    both = [{**each, "bridge": True} for each in TWO]
    two = conf.files(model.fact(site(everywhere={**MIXED, "railweld_partitions": both})))
    before, after = (one, two) if joins else (two, one)
    found = [each for each in effect(before, after).blocked if "bridge" in each.what]
    assert [each.partition for each in found] == ["plain"]
    assert ("joins" if joins else "leaves") in found[0].what


def test_nodes_of_their_own_do_not_depend_on_the_bridge(site: SiteMaker) -> None:
    def digests(host: str, **more: Any) -> dict[str, str]:
        slurm = model.fact(site(everywhere={**MIXED, **more}))
        return stage.inputs(ROLES, model.view(slurm, host), {})

    other = {"railweld_job_registries": ["registry.site"]}
    assert digests("gpu3")["slurm"] == digests("gpu3", **other)["slurm"]
    assert digests("head1")["bridge"] != digests("head1", **other)["bridge"]


# -- the role's own pieces ---------------------------------------------------------------------


def test_the_program_is_the_same_bytes_each_time_and_has_the_agent() -> None:
    first = bundle.build()
    bundle.build.cache_clear()
    assert bundle.build() == first
    assert first.path == f"/usr/lib/railweld/bridged-{first.digest}.pyz"
    known = bundle.modules()
    assert {"railweld.bridge.daemon", "railweld.bridge.pod.agent", "railweld.stack.api"} <= set(
        known
    )
    # Nothing that a Slurm head does not have.
    assert not any(name.startswith(("railweld.site", "railweld.cluster")) for name in known)


KUBECONFIG = json.dumps(
    {
        "clusters": [
            {"name": "x", "cluster": {"server": "https://a:1", "certificate-authority-data": "QQ"}}
        ],
        "users": [{"name": "admin", "user": {"client-key-data": "SECRET"}}],
        "contexts": [{"name": "railweld-tiny", "context": {"cluster": "x", "user": "admin"}}],
    }
)


def test_the_daemons_kubeconfig_has_no_secret() -> None:
    text = access.kubeconfig(KUBECONFIG, "railweld-tiny")
    assert "SECRET" not in text
    made = json.loads(text)
    assert made["users"][0]["user"] == {"tokenFile": names.BRIDGE_TOKEN}
    assert made["clusters"][0]["cluster"]["server"] == "https://a:1"


def token(*, issued: float, expires: float) -> dict[str, Any]:
    return {
        "sha256": "x",
        "mode": "0600",
        "owner": "slurm",
        "issued": issued,
        "expires": expires,
    }


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({}, "no token"),
        ({"token": {"sha256": "x"}}, "a file that is no token"),
        ({"token": token(issued=NOW - DAY, expires=NOW + 6 * DAY), "api": "ok"}, ""),
        # The daemon renews at half; below a quarter it has failed to.
        ({"token": token(issued=NOW - 5 * DAY, expires=NOW + 2 * DAY), "api": "ok"}, ""),
        ({"token": token(issued=NOW - 6 * DAY, expires=NOW + DAY), "api": "ok"}, "24.0 h"),
        (
            {"token": token(issued=NOW, expires=NOW + 7 * DAY), "api": "refused: 401"},
            "does not take",
        ),
        ({"token": token(issued=NOW, expires=NOW + 7 * DAY), "api": "refused: 403"}, "pulumi up"),
        # An API server that is away says nothing about the token.
        ({"token": token(issued=NOW, expires=NOW + 7 * DAY), "api": "no answer: x"}, ""),
    ],
)
def test_a_token_is_replaced_only_when_it_has_to_be(seen: dict[str, Any], said: str) -> None:
    found = access.needs_token(seen, NOW)
    assert said in found
    assert bool(said) == bool(found)


def test_without_a_cluster_the_site_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAILWELD_STATE", str(tmp_path))
    with pytest.raises(Exception, match="found no kubeconfig") as refused:
        access.issue("tiny", "railweld-tiny")
    assert "deploy-cluster.yml" in str(refused.value)
    assert "bridge: false" in str(refused.value)


def test_a_token_is_read_from_its_claims_only() -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"iat": 100, "exp": 300}).encode()).decode()
    jwt = f"h.{claims.rstrip('=')}.s"
    assert renewal.claims(jwt) == (100.0, 300.0)
    assert renewal.left(jwt, 200.0) == 0.5
    assert renewal.left(jwt, 400.0) == 0.0
    assert renewal.claims("no token") is None


# -- checks ------------------------------------------------------------------------------------


def seen_on(slurm: dict[str, Any]) -> dict[str, Any]:
    """What the probe sees on a head whose bridge is as described."""
    return {
        "os": {"python": "3.11.2"},
        "now": NOW,
        "packages": {
            name: {"version": "1-1", "status": "ii", "hold": False} for name in checks.PACKAGES
        },
        "slurm": {
            "bridge": {
                "present": True,
                "programs": [bundle.build().path.rpartition("/")[2]],
                "unit": {"active": "active", "enabled": "enabled"},
                "digests": checks.expected_digests(slurm["bridge"]),
                "stale": False,
                "kubeconfig": {"sha256": "x", "mode": "0600", "owner": "slurm"},
                "token": token(issued=NOW - DAY, expires=NOW + 6 * DAY),
                "api": "ok",
                "ready": "ok",
            }
        },
    }


def judged(site: SiteMaker, *changes: tuple[str, Any]) -> dict[str, str]:
    return bad_on(
        site(), "bridge", seen_on, *((f"bridge.{path}", value) for path, value in changes)
    )


def test_a_bridge_as_described_passes(site: SiteMaker) -> None:
    assert judged(site) == {}


@pytest.mark.parametrize(
    ("change", "value", "check", "said"),
    [
        ("programs", [], "bridge.files", "bridged-"),
        ("programs", ["bridged-old.pyz"], "bridge.files", "bridged-"),
        (f"digests.{names.BRIDGE_CLIENT}", None, "bridge.files", "exec"),
        ("unit", None, "bridge.unit", "absent"),
        ("unit", {"active": "failed", "enabled": "enabled"}, "bridge.unit", "failed"),
        ("stale", True, "bridge.current", "older"),
        ("ready", "slurmctld does not answer", "bridge.ready", "slurmctld does not answer"),
        ("kubeconfig.mode", "0644", "bridge.kubeconfig_mode", "0644 slurm"),
        ("token.owner", "root", "bridge.token_mode", "0600 root"),
        ("token.expires", NOW + 60, "bridge.token", "0.0 h"),
        ("api", "refused: 401", "bridge.token", "does not take"),
        ("api", "no answer: timed out", "bridge.api", "timed out"),
    ],
)
def test_what_differs_is_named(
    site: SiteMaker, change: str, value: object, check: str, said: str
) -> None:
    assert said in judged(site, (change, value))[check]
