"""The daemon's way into the cluster: a kubeconfig without a secret, and a token beside it.

The token is the account's own, bound to it and short-lived: deploy-slurm.yml asks for the first one
with the administrator's rights, the daemon renews it by itself (see token.py). A token that is
found is kept as long as the API server takes it, so a second run of the playbook changes nothing.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from railweld import names
from railweld.bridge.token import ALARM_AT, PATH, REQUEST
from railweld.errors import RailweldError
from railweld.stack.api import ApiError, Cluster
from railweld.stack.objects import Key
from railweld.stack.preflight import refuse_other_cluster
from railweld.state import site_state_dir

_FIX: Final = (
    "Fix: deploy the cluster and the stack first (playbooks/deploy-cluster.yml, pulumi up), or set "
    "bridge: false in railweld_partitions: jobs then run on nodes with a slurmd of their own"
)


def needs_token(seen: Mapping[str, Any], now: float) -> str:
    """Why the head needs another token, from what the probe saw there; empty while it does not."""
    token, api = seen.get("token") or {}, str(seen.get("api") or "")
    expires, issued = token.get("expires"), token.get("issued")
    if not token.get("sha256"):
        return "no token"
    if expires is None or issued is None:
        return "a file that is no token"
    if expires - now < (expires - issued) * ALARM_AT:
        return f"a token that ends in {max(expires - now, 0) / 3600:.1f} h and was not renewed"
    if api.startswith("refused: 401"):
        return "a token that the API server does not take"
    if api.startswith("refused"):
        return f"a token without the account's rights ({api}); the stack grants them: pulumi up"
    return ""


def admin(site: str) -> Path:
    """The administrator's kubeconfig on this controller."""
    return site_state_dir(site) / names.KUBECONFIG


def kubeconfig(text: str, context: str) -> str:
    """The daemon's kubeconfig from the administrator's: same server and CA, the account's token.

    JSON, which is YAML, since the probe reads it with nothing but Python's own library.

    Raises:
        RailweldError: the administrator's kubeconfig does not have the context.
    """
    data = yaml.safe_load(text)
    try:
        chosen = next(each for each in data["contexts"] if each["name"] == context)["context"]
        entry = next(each for each in data["clusters"] if each["name"] == chosen["cluster"])
        cluster = {
            name: entry["cluster"][name] for name in ("server", "certificate-authority-data")
        }
    except (KeyError, TypeError, StopIteration) as error:
        raise RailweldError(
            f"kubeconfig: found no context {context} with a server and its CA, expected what "
            "deploy-cluster.yml writes. Fix: run playbooks/deploy-cluster.yml"
        ) from error
    account = names.SERVICE_ACCOUNT_BRIDGE
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": chosen["cluster"], "cluster": cluster}],
        "users": [{"name": account, "user": {"tokenFile": names.BRIDGE_TOKEN}}],
        "contexts": [{"name": context, "context": {"cluster": chosen["cluster"], "user": account}}],
        "current-context": context,
    }
    return json.dumps(content, indent=1) + "\n"


def issue(site: str, context: str, *, dry_run: bool = False) -> str:
    """Ask the API server for a token of the bridge's account, as the administrator.

    Raises:
        RailweldError: no kubeconfig, another cluster, no account, or no answer.
    """
    path = admin(site)
    if not path.is_file():
        raise RailweldError(
            f"site {site}: found no kubeconfig {path}, expected the one that deploy-cluster.yml "
            f"writes: jobs of bridge partitions are pods and would have no cluster. {_FIX}"
        )
    cluster = Cluster.connect(path, context)
    try:
        refuse_other_cluster(cluster, site)
        account = Key("v1", "ServiceAccount", names.NAMESPACE_SYSTEM, names.SERVICE_ACCOUNT_BRIDGE)
        if cluster.get(account) is None:
            raise RailweldError(
                f"{cluster.target.words}: found no ServiceAccount {names.NAMESPACE_SYSTEM}/"
                f"{names.SERVICE_ACCOUNT_BRIDGE}, expected the stack's (railweld_stack_without "
                f"must not leave out bridge). {_FIX}"
            )
        if dry_run:
            return ""
        answer = cluster.request("POST", PATH, REQUEST)
        return str(answer["status"]["token"])
    except (ApiError, http.client.HTTPException, OSError, KeyError, TypeError) as error:
        raise RailweldError(
            f"site {site}: found no token of {names.SERVICE_ACCOUNT_BRIDGE}: {error}; expected one "
            f"from the API server. See: kubectl -n {names.NAMESPACE_SYSTEM} create token "
            f"{names.SERVICE_ACCOUNT_BRIDGE}. Fix: run playbooks/deploy-slurm.yml when it answers"
        ) from error
    finally:
        cluster.close()


def encoded(text: str) -> str:
    """As railweld_secret_file takes content."""
    return base64.b64encode(text.encode()).decode()
