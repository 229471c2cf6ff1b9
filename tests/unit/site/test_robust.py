"""However wrong a description is, the check answers with findings, never with a traceback."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from railweld.site import build_site, inventory_from_task_vars, load_inventory
from railweld.site.variables import fields

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 70000)
    | st.floats(allow_nan=False, allow_infinity=False, width=16)
    | st.sampled_from(["", "x", "gpu1", "leaf1", "10.10.1.0/24", "{{ nope }}", "Ethernet{index}"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["rail", "hca", "subnet", "port", "name", "cuda", "mlx5_0", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    changes=st.dictionaries(st.sampled_from(sorted(fields())), JUNK, min_size=1, max_size=4),
    group=st.sampled_from(["all", "gpu_nodes", "leaves"]),
)
def test_any_value_of_any_variable_is_answered(
    draft: Any, changes: dict[str, Any], group: str
) -> None:
    before = {name: dict(values) for name, values in draft.group_vars.items()}
    try:
        draft.group_vars[group] |= changes
        for problem in draft.check():
            assert problem.found
            assert problem.expected
            assert problem.fix
            assert problem.file, problem
    finally:
        draft.group_vars = before


@pytest.mark.parametrize("key", sorted(fields()))
def test_every_variable_may_be_a_mapping_by_mistake(draft: Any, key: str) -> None:
    draft.group_vars["all"][key] = {"no": "such"}
    problems = [p for p in draft.check() if p.key.startswith(key) and p.is_error]
    ignored = key in {"railweld_switch_model", "railweld_rails"} or key.startswith("railweld_gpu_")
    # The groups' own values win over those of `all`.
    assert problems or ignored


def test_a_play_sees_what_the_check_sees(draft: Any) -> None:
    draft.group_vars["gpu_nodes"]["railweld_cache_path"] = "/data/{{ inventory_hostname }}"
    source = str(draft.write())
    alone, _ = build_site(load_inventory([source]))
    # What a running play has: facts and registered results lie beside the inventory's values.
    loader = DataLoader()
    manager = InventoryManager(loader, [source])
    variables = VariableManager(loader, manager)
    variables.set_nonpersistent_facts("gpu1", {"railweld_node": {"os": {}}, "railweld_todo": []})
    variables._extra_vars = {"railweld_reboot": "skip"}
    hostvars = HostVars(manager, variables, loader)
    played, problems = build_site(inventory_from_task_vars({"hostvars": hostvars}))
    assert alone is not None
    assert played is not None, problems
    assert played.hosts == alone.hosts
    assert played.host("gpu1").cache_path == "/data/gpu1"
    assert (alone.reboot, played.reboot) == ("allow", "skip")
