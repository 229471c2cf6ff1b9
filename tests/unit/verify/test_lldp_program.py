"""The program that switches the adapters' own LLDP agents off."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.loading import load_file

PROGRAM = Path(__file__).parents[3] / "roles/lldp/files/railweld_nic_lldp.py"

ETHTOOL = r"""#!/bin/sh
cd "$(dirname "$0")"
case "$1" in
  --show-priv-flags) echo "Private flags for $2:"; cat "$2.flags" ;;
  --set-priv-flags) sed -i "s/^$3\( *\): .*/$3\1: $4/" "$2.flags" ;;
esac
"""

MLXCONFIG = r"""#!/usr/bin/env python3
import json, pathlib, sys
args = [word for word in sys.argv[1:] if word != "-y"]
path = pathlib.Path(__file__).parent / (args[1] + ".flash")
flash = json.loads(path.read_text())
name, _, value = args[3].partition("=")
if name not in flash:
    print(f"-E- Unknown Parameter: {name}")
    sys.exit(3)
if args[2] == "set":
    flash[name] = int(value)
    path.write_text(json.dumps(flash))
else:
    shown = f"True({flash[name]})" if flash[name] else "False(0)"
    print(f"Configurations:                    Next Boot\n        {name:<35}{shown}")
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """An Intel and an NVIDIA adapter whose agents run; returns the program."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("ethtool", ETHTOOL), ("mlxconfig", MLXCONFIG)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tools / "eno1.flags").write_text("MFP                : off\ndisable-fw-lldp    : off\n")
    (tools / "0000:02:00.0.flash").write_text('{"LLDP_NB_DCBX_P1": 1}')
    for netdev, driver, address in (
        ("eno1", "i40e", "0000:01:00.0"),
        ("rail1", "mlx5_core", "0000:02:00.0"),
    ):
        device = tmp_path / "sys/devices" / address
        device.mkdir(parents=True)
        (tmp_path / "sys/drivers" / driver).mkdir(parents=True)
        (device / "driver").symlink_to(tmp_path / "sys/drivers" / driver)
        link = tmp_path / "sys/class/net" / netdev
        link.mkdir(parents=True)
        (link / "device").symlink_to(device)
    config = tmp_path / "nic-lldp.json"
    config.write_text(
        json.dumps(
            {
                "flags": {"i40e": {"disable-fw-lldp": "on"}},
                "mlx5": {"LLDP_NB_DCBX_P1": 0, "LLDP_NB_DCBX_P2": 0},
            }
        )
    )
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    module = load_file(PROGRAM)

    def call(command: str) -> int:
        code: int = module.main(["--config", str(config), command], root=str(tmp_path))
        return code

    return call


def test_agents_are_switched_off_once(
    run: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("status") == 1
    assert run("apply") == 0
    out = capsys.readouterr().out
    assert "eno1: disable-fw-lldp: off -> on" in out
    assert "rail1: LLDP_NB_DCBX_P1: 1 -> 0" in out
    assert "disable-fw-lldp    : on" in (tmp_path / "bin/eno1.flags").read_text()
    assert json.loads((tmp_path / "bin/0000:02:00.0.flash").read_text()) == {"LLDP_NB_DCBX_P1": 0}
    assert run("status") == 0
    assert capsys.readouterr().out == ""


def test_adapter_that_refuses_is_named_and_the_others_are_still_set(
    run: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin/eno1.flags").unlink()
    assert run("apply") == 1
    assert "railweld-nic-lldp: eno1: ethtool --show-priv-flags eno1" in capsys.readouterr().err
    assert json.loads((tmp_path / "bin/0000:02:00.0.flash").read_text()) == {"LLDP_NB_DCBX_P1": 0}
