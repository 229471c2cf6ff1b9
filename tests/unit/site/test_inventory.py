"""Inventories of every kind are read as Ansible reads them, and say where a value came from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.vault import VaultLib, VaultSecret

from railweld.errors import ExitCode, UsageError
from railweld.site import SiteError, ValueProblem, load_inventory, parse_extra_vars

Files = Callable[[dict[str, str]], Path]


def problems_of(*sources: Path, **options: Any) -> list[Any]:
    with pytest.raises(SiteError) as caught:
        load_inventory([str(source) for source in sources], **options)
    return list(caught.value.problems)


# --- kinds of inventory ------------------------------------------------------------------------


def test_yaml_inventory(files: Files) -> None:
    folder = files(
        {"hosts.yml": "all: {children: {gpu_nodes: {hosts: {gpu1: {ansible_host: 10.0.0.1}}}}}\n"}
    )
    raw = load_inventory([str(folder / "hosts.yml")])
    assert raw.groups["gpu_nodes"] == ("gpu1",)
    assert raw.hosts["gpu1"].groups == ("gpu_nodes",)
    assert raw.hosts["gpu1"]["ansible_host"] == "10.0.0.1"
    assert raw.hosts["gpu1"].origin("ansible_host") == f"{folder}/hosts.yml:1"


def test_ini_inventory_with_groups_of_groups(files: Files) -> None:
    folder = files(
        {
            "hosts": "[rack1]\ngpu1 railweld_gpu_count=8\n[gpu_nodes:children]\nrack1\n"
            "[gpu_nodes:vars]\nrailweld_gpu_model=A100\nrailweld_mmu=True\n"
        }
    )
    host = load_inventory([str(folder / "hosts")]).hosts["gpu1"]
    assert host.groups == ("gpu_nodes", "rack1")
    assert (host["railweld_gpu_count"], host["railweld_gpu_model"]) == (8, "A100")
    assert host["railweld_mmu"] is True
    assert host.origin("railweld_gpu_model") == f"{folder}/hosts:6"


def test_ranges_expand(files: Files) -> None:
    folder = files({"hosts": "[gpu_nodes]\ngpu[01:12]\n"})
    raw = load_inventory([str(folder / "hosts")])
    assert raw.groups["gpu_nodes"][0] == "gpu01"
    assert raw.groups["gpu_nodes"][-1] == "gpu12"
    assert len(raw.hosts) == 12


def test_folder_joins_its_files_and_vars(files: Files) -> None:
    folder = files(
        {
            "01-nodes": "[gpu_nodes]\ngpu1\n",
            "02-switches.yml": "leaves: {hosts: {leaf1: }}\n",
            "group_vars/all/10-base.yml": "railweld_site: first\nrailweld_reboot: skip\n",
            "group_vars/all/20-more.yml": "railweld_site: second\n",
            "host_vars/gpu1.yml": "railweld_gpu_count: 4\n",
        }
    )
    raw = load_inventory([str(folder)])
    host = raw.hosts["gpu1"]
    assert set(raw.hosts) == {"gpu1", "leaf1"}
    assert (host["railweld_site"], host["railweld_gpu_count"]) == ("second", 4)
    assert host.origin("railweld_site") == f"{folder}/group_vars/all/20-more.yml:1"
    assert host.origin("railweld_gpu_count") == f"{folder}/host_vars/gpu1.yml:1"


def test_several_inventories_add_up_and_the_last_wins(files: Files) -> None:
    folder = files(
        {
            "a/hosts": "[gpu_nodes]\ngpu1 railweld_gpu_count=4\n",
            "b/hosts": "[gpu_nodes]\ngpu1 railweld_gpu_count=8\ngpu2\n",
        }
    )
    raw = load_inventory([str(folder / "a"), str(folder / "b")])
    assert set(raw.hosts) == {"gpu1", "gpu2"}
    assert raw.hosts["gpu1"]["railweld_gpu_count"] == 8


def test_comma_list_is_an_inventory() -> None:
    assert set(load_inventory(["gpu1,gpu2"]).hosts) == {"gpu1", "gpu2"}


def test_dynamic_inventory_script(files: Files) -> None:
    listing = {
        "gpu_nodes": {"hosts": ["gpu1"], "vars": {"railweld_gpu_model": "A100"}},
        "_meta": {"hostvars": {"gpu1": {"railweld_gpu_count": 8}}},
    }
    folder = files({"inventory.sh": f"#!/bin/sh\ncat <<'END'\n{json.dumps(listing)}\nEND\n"})
    script = folder / "inventory.sh"
    script.chmod(0o755)
    host = load_inventory([str(script)]).hosts["gpu1"]
    assert (host["railweld_gpu_count"], host["railweld_gpu_model"]) == (8, "A100")
    assert str(script) in host.origin("railweld_gpu_model")


def test_constructed_inventory_plugin(files: Files) -> None:
    folder = files(
        {
            "10-hosts": "gpu1 kind=gpu\nhead1 kind=head\n",
            "20-groups.yml": "plugin: ansible.builtin.constructed\nstrict: true\n"
            "groups: {gpu_nodes: kind == 'gpu'}\n",
        }
    )
    assert load_inventory([str(folder)]).groups["gpu_nodes"] == ("gpu1",)


def test_files_added_between_two_loads_are_seen(files: Files) -> None:
    folder = files({"hosts": "[gpu_nodes]\ngpu1\n"})
    assert "railweld_site" not in load_inventory([str(folder)]).hosts["gpu1"]
    files({"group_vars/all.yml": "railweld_site: lab\n"})
    assert load_inventory([str(folder)]).hosts["gpu1"]["railweld_site"] == "lab"


# --- values ------------------------------------------------------------------------------------


def test_templates_see_other_variables_and_other_hosts(files: Files) -> None:
    folder = files(
        {
            "hosts": "[gpu_nodes]\ngpu1 number=1\ngpu2 number=2\n",
            "group_vars/all.yml": "base: 10.0.0\n"
            'address: "{{ base }}.{{ number }}"\n'
            'first: "{{ hostvars[groups.gpu_nodes[0]].address }}"\n'
            'me: "{{ inventory_hostname }} in {{ group_names[0] }}"\n',
        }
    )
    hosts = load_inventory([str(folder)]).hosts
    assert [host["address"] for host in hosts.values()] == ["10.0.0.1", "10.0.0.2"]
    assert [host["first"] for host in hosts.values()] == ["10.0.0.1", "10.0.0.1"]
    assert hosts["gpu2"]["me"] == "gpu2 in gpu_nodes"


def test_template_of_a_group_is_not_shared_when_a_lookup_may_see_the_host(files: Files) -> None:
    folder = files(
        {
            "hosts": "[gpu_nodes]\ngpu1 number=1\ngpu2 number=2\n",
            "group_vars/all.yml": "which: number\n"
            "by_lookup: \"{{ lookup('vars', which) }}\"\n"
            'by_vars: "{{ vars[which] }}"\n',
        }
    )
    hosts = load_inventory([str(folder)]).hosts
    assert [int(host["by_lookup"]) for host in hosts.values()] == [1, 2]


def test_template_of_a_group_is_shared_when_hosts_cannot_differ(files: Files) -> None:
    folder = files(
        {
            "hosts": "[gpu_nodes]\ngpu1\ngpu2 mirror=http://other\n",
            "group_vars/all.yml": 'mirror: http://mirror\nurl: "{{ mirror }}/cuda"\n',
        }
    )
    hosts = load_inventory([str(folder)]).hosts
    assert hosts["gpu1"].read("url")[0] == "http://mirror/cuda"
    assert hosts["gpu2"].read("url")[0] == "http://other/cuda"
    assert hosts["gpu1"].read("url")[1] != hosts["gpu2"].read("url")[1]


def test_values_are_plain_python(files: Files) -> None:
    folder = files(
        {
            "hosts": "[gpu_nodes]\ngpu1\n",
            "group_vars/all.yml": "plain: [{a: 1, b: text, c: null}]\n"
            'rendered: "{{ plain }}"\nnested: {x: "{{ plain[0].b }}"}\n',
        }
    )
    host = load_inventory([str(folder)]).hosts["gpu1"]
    for key, expected in (
        ("plain", [{"a": 1, "b": "text", "c": None}]),
        ("rendered", [{"a": 1, "b": "text", "c": None}]),
        ("nested", {"x": "text"}),
    ):
        value = host[key]
        assert value == expected
        assert type(value) in (list, dict)
    assert type(host["plain"][0]["b"]) is str


def test_origin_reaches_into_a_value(files: Files) -> None:
    folder = files(
        {
            "hosts": "[gpu_nodes]\ngpu1\n",
            "group_vars/all.yml": "rails:\n  - hca: mlx5_0\n    up: true\n  - hca: mlx5_1\n",
        }
    )
    host = load_inventory([str(folder)]).hosts["gpu1"]
    base = f"{folder}/group_vars/all.yml"
    assert host.origin("rails", (1, "hca")) == f"{base}:4"
    # `true` carries no tag; its key does.
    assert host.origin("rails", (0, "up")) == f"{base}:3"
    assert host.origin("rails", (0, "missing")) == f"{base}:2"


def test_origin_of_a_value_that_carries_no_tag_is_its_keys(files: Files) -> None:
    folder = files(
        {
            "hosts.yml": "gpu_nodes:\n  hosts: {gpu1: {d: null}}\n  vars: {b: false, c: false}\n",
            "group_vars/all.yml": "a: true\nb: true\n",
            "group_vars/gpu_nodes.yml": "\na: false\n",
        }
    )
    host = load_inventory([str(folder)]).hosts["gpu1"]
    # Ansible ranks every group_vars file above what the inventory file says of groups.
    assert (host["a"], host["b"], host["c"], host["d"]) == (False, True, False, None)
    assert host.origin("a") == f"{folder}/group_vars/gpu_nodes.yml:2"
    assert host.origin("b") == f"{folder}/group_vars/all.yml:2"
    assert host.origin("c") == f"{folder}/hosts.yml:3"
    assert host.origin("d") == f"{folder}/hosts.yml:2"


def test_extra_variables_win_and_say_so(files: Files) -> None:
    folder = files({"hosts": "[gpu_nodes]\ngpu1\n", "group_vars/all.yml": "a: 1\nb: 2\nname: x\n"})
    extra = parse_extra_vars(["a=5", '{"b": true}', "name={{ inventory_hostname }}"])
    host = load_inventory([str(folder)], extra).hosts["gpu1"]
    assert (host["a"], host["b"], host["name"]) == ("5", True, "gpu1")
    assert host.origin("a") == "-e (extra variables)"
    assert host.origin("b") == "-e (extra variables)"


def test_extra_variables_from_a_file(files: Files) -> None:
    folder = files({"extra.yml": "railweld_version_set: current\n"})
    assert parse_extra_vars([f"@{folder}/extra.yml"]) == {"railweld_version_set": "current"}


@pytest.mark.parametrize("option", ["no equals sign", "[1, 2]", "@/does/not/exist.yml", "{broken"])
def test_extra_variables_that_are_none_are_wrong_usage(option: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_extra_vars([option])
    assert caught.value.exit_code is ExitCode.USAGE


def test_undefined_variable_is_a_value_problem_with_its_place(files: Files) -> None:
    folder = files(
        {"hosts": "[gpu_nodes]\ngpu1\n", "group_vars/all.yml": 'x: 1\ny: "{{ nope }}"\n'}
    )
    host = load_inventory([str(folder)]).hosts["gpu1"]
    assert host["x"] == 1
    with pytest.raises(ValueProblem) as caught:
        host["y"]
    assert caught.value.problem.file == f"{folder}/group_vars/all.yml:2"
    assert "nope" in caught.value.problem.found


# --- vault -------------------------------------------------------------------------------------


def encrypt(text: str, password: str, *, name: str = "") -> str:
    """Encrypt; with a name as an inline value, else as a whole file."""
    secret = VaultSecret(password.encode())
    sealed = str(VaultLib([("default", secret)]).encrypt(text, secret).decode())
    if not name:
        return sealed
    return f"{name}: !vault |\n" + "".join(f"  {line}\n" for line in sealed.splitlines())


@pytest.fixture
def vaulted(files: Files) -> Path:
    """An inventory with an encrypted file and an encrypted value."""
    return files(
        {
            "password": "right\n",
            "wrong": "wrong\n",
            "site/hosts": "[gpu_nodes]\ngpu1\n",
            "site/group_vars/all/secret.yml": encrypt("whole: canary-1\n", "right"),
            "site/group_vars/all/plain.yml": encrypt("canary-2", "right", name="inline"),
        }
    )


def test_vault_opens_with_its_password(vaulted: Path) -> None:
    raw = load_inventory([str(vaulted / "site")], vault_password_file=str(vaulted / "password"))
    host = raw.hosts["gpu1"]
    assert (host["whole"], host["inline"]) == ("canary-1", "canary-2")


def test_encrypted_file_without_password_is_refused(vaulted: Path) -> None:
    (problem,) = problems_of(vaulted / "site")
    assert problem.id == "inventory.vault"
    assert problem.file == f"{vaulted}/site/group_vars/all/secret.yml"
    assert "--vault-password-file" in problem.fix


def test_encrypted_file_with_the_wrong_password_is_refused(vaulted: Path) -> None:
    (problem,) = problems_of(vaulted / "site", vault_password_file=str(vaulted / "wrong"))
    assert problem.id == "inventory.vault"
    assert problem.file == f"{vaulted}/site/group_vars/all/secret.yml"
    assert "canary" not in problem.sentence()


def test_encrypted_value_without_password_is_refused_when_read(vaulted: Path) -> None:
    (vaulted / "site/group_vars/all/secret.yml").unlink()
    host = load_inventory([str(vaulted / "site")]).hosts["gpu1"]
    with pytest.raises(ValueProblem) as caught:
        host["inline"]
    assert caught.value.problem.id == "inventory.vault"
    assert caught.value.problem.file == f"{vaulted}/site/group_vars/all/plain.yml:1"


def test_missing_password_file_is_wrong_usage(vaulted: Path) -> None:
    with pytest.raises(UsageError, match="vault password"):
        load_inventory([str(vaulted / "site")], vault_password_file=str(vaulted / "nowhere"))


# --- what cannot be read -----------------------------------------------------------------------


def test_missing_inventories_are_all_named(tmp_path: Path) -> None:
    problems = problems_of(tmp_path / "a", tmp_path / "b")
    assert [problem.id for problem in problems] == ["inventory.missing"] * 2
    assert [problem.file for problem in problems] == [f"{tmp_path}/a", f"{tmp_path}/b"]


def test_broken_yaml_inventory_is_refused_with_its_line(files: Files) -> None:
    folder = files({"hosts.yml": "all:\n  hosts: {gpu1: {a: [1}}\n"})
    problems = problems_of(folder / "hosts.yml")
    assert problems[0].id == "inventory.unreadable"
    assert problems[0].file == f"{folder}/hosts.yml:2"


def test_broken_variables_file_is_refused_with_its_line(files: Files) -> None:
    folder = files({"hosts": "[gpu_nodes]\ngpu1\n", "group_vars/all.yml": "a: 1\nb: [1\n"})
    (problem,) = problems_of(folder)
    assert problem.id == "inventory.unreadable"
    assert problem.file.startswith(f"{folder}/group_vars/all.yml:")


def test_failing_inventory_script_is_refused_with_what_it_said(files: Files) -> None:
    folder = files({"inventory.sh": "#!/bin/sh\necho no credentials >&2\nexit 3\n"})
    (folder / "inventory.sh").chmod(0o755)
    problems = problems_of(folder / "inventory.sh")
    assert problems[0].id == "inventory.unreadable"
    assert "non-zero exit code 3" in problems[0].found


def test_inventory_without_hosts_is_refused(files: Files) -> None:
    folder = files({"hosts.yml": "all: {children: {gpu_nodes: }}\n"})
    (problem,) = problems_of(folder / "hosts.yml")
    assert problem.id == "inventory.empty"


def test_duplicate_yaml_key_is_explained(files: Files) -> None:
    folder = files({"hosts": "[gpu_nodes]\ngpu1\n", "group_vars/all.yml": "a: 1\nb: 2\na: 3\n"})
    (problem,) = load_inventory([str(folder)]).problems
    assert (problem.severity, problem.id) == ("warning", "inventory.warning")
    assert "duplicate mapping key" in problem.found
    assert problem.file.startswith(f"{folder}/group_vars/all.yml:")
