"""Stage `cluster` of `railweld verify`: nodes, devices, agents, clocks, and a real pod per node."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from railweld import names
from railweld.cluster import kubeconfig, live, model, stage, trial
from railweld.errors import CouldNotLookError, RailweldError
from railweld.nccl import profiles_for
from railweld.record import Check, Status
from railweld.stack.api import ApiError, Cluster
from railweld.stack.diff import compare
from railweld.stack.graph import Stack, stack_for
from railweld.stack.objects import Key, Manifest
from railweld.stack.preflight import refuse_other_cluster
from railweld.verify import registry
from railweld.verify.context import Context
from railweld.verify.hosts import not_reached
from railweld.verify.stages import Request, Verified

_DNS: Final = "k8s-app=kube-dns"
#: Seconds that the API server has to answer at all.
_PATIENCE_S: Final = 20.0
#: What a request raises that the API server refused or did not answer.
_LOST: Final = (ApiError, OSError, http.client.HTTPException)


def verify_site(request: Request) -> Verified:
    """Judge every member from its own side and from the API server's, and what a job's pod sees."""
    site = request.site
    if not model.control_plane(site):
        return Verified(
            [_skipped("cluster.described", site.name, "no host in group control_plane")]
        )
    chosen = [name for name in model.members(site) if request.selects(name)]
    observed = {
        name: seen.reason if seen.node is None else seen.node
        for name, seen in request.nodes(chosen).items()
    }
    path = kubeconfig.path(site.name)
    if not path.is_file() and not any(_is_member(node) for node in observed.values()):
        # Of a node that is silent nothing is known, least of all that it is no member.
        silent = [not_reached(name, why) for name, why in observed.items() if isinstance(why, str)]
        none = _skipped("cluster.deployed", site.name, "no node that answers is a member yet")
        return Verified([none, *silent])
    try:
        described = model.fact(site)
        described["images"] = stage.read_index(described["image_archives"])
    except RailweldError as error:
        return Verified([_wrong(site.name, line) for line in str(error).splitlines()])
    checks: list[Check] = []
    seen: Mapping[str, Any] = {"reachable": False, "error": "not asked", "nodes": {}}
    try:
        cluster = _connect(path, site.name)
    except (RailweldError, *_LOST) as error:
        checks.append(_not_reached(site.name, path, error))
        seen = {**seen, "error": str(error)}
    else:
        try:
            nodes = {each["metadata"]["name"]: each for each in _list(cluster, "/api/v1/nodes")}
            seen = live.as_seen(nodes.values())
            checks += _from_api(request, cluster, nodes, chosen)
        except _LOST as error:
            checks.append(_not_reached(site.name, path, error))
        finally:
            cluster.close()
    return Verified([*_from_nodes(request, described, observed, seen), *checks])


def _is_member(node: Mapping[str, Any] | str) -> bool:
    return not isinstance(node, str) and node["cluster"]["node"] is not None


def _from_nodes(
    request: Request,
    described: Mapping[str, Any],
    observed: Mapping[str, Mapping[str, Any] | str],
    seen: Mapping[str, Any],
) -> list[Check]:
    """The roles' own checks, as deploy-cluster.yml judges its work."""
    fact = request.site.fact()
    checks: list[Check] = []
    for name, node in observed.items():
        if isinstance(node, str):
            checks.append(not_reached(name, node))
            continue
        ctx = Context(
            site=fact["site"],
            host=fact["hosts"][name],
            node=node,
            cluster=stage.host_view(described, name, seen),
        )
        checks += registry.evaluate(ctx, stage.ROLES)
    return checks


def _connect(path: Path, site: str) -> Cluster:
    cluster = Cluster.connect(path, names.kube_context(site), patience=_PATIENCE_S)
    try:
        refuse_other_cluster(cluster, site)
    except BaseException:
        cluster.close()
        raise
    return cluster


def _from_api(
    request: Request, cluster: Cluster, nodes: Mapping[str, Manifest], chosen: Sequence[str]
) -> list[Check]:
    site = request.site
    stack = stack_for(site)
    answers = live.Answers(
        nodes=nodes,
        agents=_list(cluster, f"/api/v1/namespaces/{names.NAMESPACE_SYSTEM}/pods"),
        findings=compare(cluster, site.name, stack.manifests()),
        now=datetime.now(UTC),
    )
    checks = live.judge_answers(site, stack, answers, request.selects)
    if live.is_deployed(answers.findings) and stack.bridge:
        try:
            checks += _trials(request, stack, cluster, nodes, chosen)
        except _LOST as error:
            checks.append(_no_trial(site.name, error))
    return checks


def _trials(
    request: Request,
    stack: Stack,
    cluster: Cluster,
    nodes: Mapping[str, Manifest],
    chosen: Sequence[str],
) -> list[Check]:
    site = request.site
    if not request.pods:
        ref = "`railweld verify --stage cluster` starts one on each GPU node"
        return [_skipped("job.pod", site.name, "no pod was started", ref=ref)]
    dns = _list(cluster, "/api/v1/namespaces/kube-system/pods", _DNS)
    planned = trial.trials(site, profiles_for(site), nodes, dns, chosen)
    checks: list[Check] = []
    wanted = []
    for each in planned:
        if (nodes[each.node].get("spec") or {}).get("unschedulable"):
            checks.append(_skipped("job.pod", each.node, "cordoned: no pod is placed there"))
        else:
            wanted.append(each)
    templates = {
        each.partition: cluster.get(Key("v1", "PodTemplate", names.NAMESPACE_JOBS, each.name))
        for each in (stack.bridge.templates if stack.bridge else ())
    }
    told = trial.run_trials(cluster, templates, wanted)
    for each in wanted:
        checks += trial.judge_trial(site, each, told[each.node])
    return checks


def _list(cluster: Cluster, path: str, selector: str = "") -> list[Manifest]:
    query = {"labelSelector": selector} if selector else None
    items: list[Manifest] = cluster.request("GET", path, query=query)["items"]
    return items


def _skipped(check: str, target: str, found: str, *, ref: str = "") -> Check:
    return Check(
        id=check,
        layer=live.LAYER,
        target=target,
        status=Status.SKIPPED,
        ran="",
        found=found,
        expected="",
        ref=ref or "playbooks/deploy-cluster.yml makes the cluster",
    )


def _wrong(site: str, line: str) -> Check:
    return Check(
        id="cluster.described",
        layer="description",
        target=site,
        status=Status.FAIL,
        ran="railweld check",
        found=line,
        expected="a description that playbooks/deploy-cluster.yml takes",
        fix="see above",
    )


def _not_reached(site: str, path: Path, error: Exception) -> Check:
    return Check(
        id="cluster.reached",
        layer=live.LAYER,
        target=site,
        status=Status.UNKNOWN if _is_silence(error) else Status.FAIL,
        ran=f"kubectl --kubeconfig {path} get --raw /readyz",
        found=str(error),
        expected=f"the API server of cluster {site}",
        fix="no kubeconfig here: playbooks/deploy-cluster.yml fetches it; an API server that is "
        "silent: crictl ps -a on the control plane",
    )


def _no_trial(site: str, error: Exception) -> Check:
    return Check(
        id="job.pod",
        layer=trial.LAYER,
        target=site,
        status=Status.UNKNOWN,
        ran=f"kubectl -n {names.NAMESPACE_JOBS} get pods",
        found=f"the pods could not be started or read: {error}",
        expected="a pod on each GPU node, made as jobs are",
        fix="see the reason; --no-pods looks at everything else",
    )


def _is_silence(error: Exception) -> bool:
    """True when nothing was learned; a refusal or another site's cluster is something learned."""
    return isinstance(error, (CouldNotLookError, *_LOST))
