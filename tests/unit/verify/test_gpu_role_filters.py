"""Decisions that the GPU roles take from the observation."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.loading import load_file

_ROLES = Path(__file__).parents[3] / "roles"


@pytest.fixture
def driver_filters() -> ModuleType:
    """The filter plugin of role nvidia_driver, loaded as Ansible does: by its path."""
    return load_file(_ROLES / "nvidia_driver/filter_plugins/nvidia_driver.py")


def gpu(index: int, **modes: object) -> dict[str, object]:
    return {"index": index, **modes}


def test_gpus_in_the_wanted_mode_are_left_alone(driver_filters):
    node = {"gpus": [gpu(0, ecc=True, ecc_pending=True), gpu(1, ecc=True, ecc_pending=True)]}
    assert driver_filters.gpus_to_switch(node, "ecc", True) == []


def test_only_gpus_in_another_mode_are_switched(driver_filters):
    node = {"gpus": [gpu(0, ecc=True, ecc_pending=True), gpu(5, ecc=False, ecc_pending=False)]}
    assert driver_filters.gpus_to_switch(node, "ecc", True) == ["5"]


def test_gpu_that_waits_for_its_reset_is_not_switched_again(driver_filters):
    node = {"gpus": [gpu(0, mig=False, mig_pending=True)]}
    assert driver_filters.gpus_to_switch(node, "mig", True) == []


def test_gpu_whose_pending_change_is_no_longer_wanted_is_switched_back(driver_filters):
    node = {"gpus": [gpu(0, mig=False, mig_pending=True)]}
    assert driver_filters.gpus_to_switch(node, "mig", False) == ["0"]


def test_gpu_without_the_mode_is_left_alone(driver_filters):
    node = {"gpus": [gpu(0, mig=None, mig_pending=None)]}
    assert driver_filters.gpus_to_switch(node, "mig", True) == []
