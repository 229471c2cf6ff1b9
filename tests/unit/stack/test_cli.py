"""`railweld stack` as its users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

from railweld.stack.cli import _yaml

ROOT = Path(__file__).resolve().parents[3]


def railweld(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "railweld"), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_render_prints_yaml_in_order_and_warns_beside_it() -> None:
    done = railweld("stack", "render", "-i", "inventories/example-a100")
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    assert [each["kind"] for each in objects[:2]] == ["Namespace", "Namespace"]
    assert "images without a digest" in done.stderr
    listed = railweld("stack", "render", "-i", "inventories/example-a100", "--json")
    assert json.loads(listed.stdout)["items"] == objects


def test_render_writes_one_file_per_object_and_removes_stale_ones(tmp_path: Path) -> None:
    out = tmp_path / "manifests"
    done = railweld("stack", "render", "-i", "inventories/lab", "-o", str(out))
    assert done.returncode == 0, done.stderr
    files = sorted(out.rglob("*.yaml"))
    assert f"{len(files)} files" in done.stderr
    stale = files[0].with_name("99-configmap-old.yaml")
    stale.write_text("x")
    (out / "kustomization.yaml").write_text("mine")
    railweld("stack", "render", "-i", "inventories/lab", "-o", str(out))
    assert sorted(out.rglob("*.yaml")) == sorted([*files, out / "kustomization.yaml"])


def test_diff_without_a_kubeconfig_could_not_look() -> None:
    done = railweld("stack", "diff", "-i", "inventories/lab", "--kubeconfig", "/nowhere")
    assert done.returncode == 3
    assert "deploy-cluster.yml" in done.stderr


def test_texts_that_look_like_numbers_stay_texts() -> None:
    for text in ("0680", "1e3", "0o7", "1.0", "-1", "+1", ".5", "0x1f", "1_000"):
        assert f"'{text}'" in _yaml({"a": text})
    assert _yaml({"a": 1}) == "a: 1\n"
