"""The daemon's token: renewed by the daemon, good for its own account only."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from railweld import names
from railweld.bridge import access, token
from railweld.bridge.kube import Kube
from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep]

PATH = f"/api/v1/namespaces/{names.NAMESPACE_JOBS}/podtemplates"


def credentials(world: World, folder: Path) -> tuple[Path, Path]:
    """A kubeconfig as the playbook writes it, and a token of ten minutes."""
    text = access.kubeconfig(world.plane.kubeconfig.read_text(), world.plane.context)
    content = json.loads(text)
    secret = folder / "token"
    content["users"][0]["user"]["tokenFile"] = str(secret)
    config = folder / "kubeconfig"
    config.write_text(json.dumps(content))
    made = world.plane.kubectl(
        "create", "token", names.SERVICE_ACCOUNT_BRIDGE, "-n", names.NAMESPACE_SYSTEM,
        "--duration=600s",
    )  # fmt: skip
    token.write(secret, made.stdout.strip())
    return config, secret


def test_the_daemon_renews_its_token_and_shows_the_new_one(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, secret = credentials(world, tmp_path)
    before = secret.read_text()

    async def renew() -> None:
        async with Kube(config) as kube:
            assert kube.token_file == secret
            renewal = token.Renewal(kube, secret)
            # A fresh one is left alone.
            assert not await renewal.look()
            assert renewal.problem() == ""
            monkeypatch.setattr(token, "RENEW_AT", 1.1)
            assert await renewal.look()
            assert await kube.get(PATH) is not None

    asyncio.run(renew())
    assert secret.read_text() != before
    assert secret.stat().st_mode & 0o777 == 0o600
    claims = token.claims(secret.read_text())
    assert claims is not None
    assert claims[1] - claims[0] == token.LIFETIME_SECONDS


def test_a_token_that_cannot_be_renewed_is_said_to_end(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, secret = credentials(world, tmp_path)
    before = secret.read_text()
    role = ("role", "bridge-token", "-n", names.NAMESPACE_SYSTEM)
    saved = world.plane.kubectl("get", *role, "-o", "json").stdout
    world.plane.kubectl("delete", *role)
    monkeypatch.setattr(token, "RENEW_AT", 1.1)
    monkeypatch.setattr(token, "ALARM_AT", 1.1)

    async def try_() -> str:
        async with Kube(config) as kube:
            renewal = token.Renewal(kube, secret)
            assert not await renewal.look()
            return renewal.problem()

    try:
        problem = asyncio.run(try_())
    finally:
        manifest = json.loads(saved)
        for name in ("resourceVersion", "uid", "creationTimestamp"):
            manifest["metadata"].pop(name)
        world.plane.kubectl("create", "-f", "-", text=json.dumps(manifest))
    assert "was not renewed" in problem
    assert "forbidden" in problem
    assert secret.read_text() == before


def test_the_account_gets_no_token_of_another(world: World) -> None:
    account = f"system:serviceaccount:{names.NAMESPACE_SYSTEM}:{names.SERVICE_ACCOUNT_BRIDGE}"

    def may(name: str, namespace: str) -> str:
        argv = ("auth", "can-i", "create", f"serviceaccounts/{name}", "--subresource=token")
        done = world.plane.kubectl(*argv, "-n", namespace, f"--as={account}", check=False)
        return done.stdout.strip()

    assert may(names.SERVICE_ACCOUNT_BRIDGE, names.NAMESPACE_SYSTEM) == "yes"
    assert may("default", names.NAMESPACE_SYSTEM) == "no"
    assert may("default", "kube-system") == "no"
