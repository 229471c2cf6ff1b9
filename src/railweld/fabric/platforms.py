"""The platform gate: which switch accepts which line (data in switch_configs/platforms.yml)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from railweld.errors import RailweldError


def switch_configs_dir() -> Path:
    """Where templates and platform data are.

    `$RAILWELD_SWITCH_CONFIGS`, then the checkout that this package runs from, then the copy
    inside an installed package.
    """
    return _find(os.environ.get("RAILWELD_SWITCH_CONFIGS"))


@cache
def _find(override: str | None) -> Path:
    here = Path(__file__).resolve()
    candidates = [Path(override)] if override else []
    candidates += [here.parents[3] / "switch_configs", here.parents[1] / "switch_configs"]
    for candidate in candidates:
        if (candidate / "platforms.yml").is_file():
            return candidate
    raise RailweldError(
        f"switch_configs: found no platforms.yml in {', '.join(map(str, candidates))}, expected "
        "the templates of the switch families; set RAILWELD_SWITCH_CONFIGS to their folder"
    )


@dataclass(frozen=True, order=True)
class Release:
    """An EOS release: 4.31.2F is train 4.31."""

    train: tuple[int, int]
    rest: tuple[int, ...] = ()
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Release | None:
        """Read `4.31.2F`, `4.30.4.1M` or `4.31`; None when it is not an EOS release."""
        found = re.match(r"^(4)\.(\d+)((?:\.\d+)*)[A-Z]*(?:-\S*)?(?:\s.*)?$", text.strip())
        if not found:
            return None
        rest = tuple(int(part) for part in found[3].split(".") if part)
        return cls((int(found[1]), int(found[2])), rest, text.strip())


def _train(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


@dataclass(frozen=True)
class Platform:
    """One model at one release, as far as the rendering and the diff need to know."""

    model: str
    family: str
    chip: str
    queue_word: str
    ecn_units: tuple[str, ...]
    mmu: bool
    buffer_mb: float | None
    port_form: str
    ecn_count_in_profile: bool


@cache
def _data(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def data() -> dict[str, Any]:
    """The platform data as it stands in switch_configs/platforms.yml."""
    return _data(switch_configs_dir() / "platforms.yml")


def refusal(model: str) -> str | None:
    """Why a model is refused, or None when it is covered."""
    for entry in data()["refused_models"]:
        if re.search(entry["match"], model):
            return f"{entry['reason']} ({entry['source']})"
    if any(re.search(entry["match"], model) for entry in data()["models"]):
        return None
    return "no platform data for this model"


def last_port(model: str) -> int | None:
    """The highest port number that a model can have; None when its name does not count ports."""
    counted = re.match(r"^(?:DCS-)?\d{4}[A-Z0-9]*-(\w+)", model)
    numbers = [int(number) for number in re.findall(r"\d+", counted[1])] if counted else []
    return sum(numbers) + int(data()["ports_beyond_name"]) if numbers else None


def release_verdict(text: str) -> tuple[str, str]:
    """Judge a release: (`ok`|`untested`|`refused`, the reason)."""
    release = Release.parse(text)
    if release is None:
        return "refused", "not an EOS release, which reads 4.x.y"
    trains = [_train(train) for train in data()["releases"]["tested"]]
    if release.train in trains:
        return "ok", ""
    if _train(data()["releases"]["oldest"]) <= release.train < max(trains):
        return "untested", f"train {release.train[0]}.{release.train[1]} has no test"
    newest = ".".join(map(str, max(trains)))
    oldest = data()["releases"]["oldest"]
    return "refused", f"outside {oldest} to {newest}"


def release_findings(model: str, text: str) -> list[tuple[str, str]]:
    """Minimum and known-bad releases that apply: (`minimum`|`known_bad`, reason with source)."""
    release = Release.parse(text)
    found: list[tuple[str, str]] = []
    if release is None:
        return found
    for entry in data()["releases"]["minimum"]:
        least = Release.parse(str(entry["release"]))
        if re.search(entry["match"], model) and least and release < least:
            found.append(("minimum", f"{entry['reason']} ({entry['source']})"))
    for entry in data()["releases"]["known_bad"]:
        if re.search(entry["match"], model) and text in entry["releases"]:
            found.append(("known_bad", f"{entry['reason']} ({entry['source']})"))
    return found


def platform_for(model: str, release: str | None = None) -> Platform:
    """Platform of a model at a release; the newest tested behaviour when none is given."""
    reason = refusal(model)
    if reason is not None:
        raise RailweldError(
            f"switch model: found {model!r}, expected a model of switch_configs/platforms.yml: "
            f"{reason}. Correct railweld_switch_model or add the model with its source"
        )
    entry = next(e for e in data()["models"] if re.search(e["match"], model))
    family = data()["families"][entry["family"]]
    parsed = Release.parse(release or "")
    train = parsed.train if parsed else max(map(_train, data()["releases"]["tested"]))
    since = _train(data()["releases"]["ecn_count_in_profile"][entry["family"]])
    return Platform(
        model=model,
        family=entry["family"],
        chip=entry["chip"],
        queue_word=family["queue_word"],
        ecn_units=tuple(family["ecn_units"]),
        mmu=family["mmu"],
        buffer_mb=entry["buffer_mb"],
        port_form=entry["port_form"],
        ecn_count_in_profile=train >= since,
    )
