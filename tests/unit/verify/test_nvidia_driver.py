"""The driver: what it refuses to start on, and what counts as installed and running."""

from __future__ import annotations

import pytest

from railweld.record import Status
from railweld.verify.roles import nvidia_driver

NEWER_KERNEL = "6.8.0-40-generic"


def test_converged_node_passes_guard_and_checks(observed, bad):
    ctx = observed()
    assert bad(nvidia_driver.guard(ctx)) == {}
    assert bad(nvidia_driver.checks(ctx)) == {}


# --- refused before anything is installed ---------------------------------------------------


def test_guard_asks_for_the_clock_first(observed, bad):
    assert list(bad(nvidia_driver.guard(observed({"node.time.offset_s": 0.8})))) == [
        "chrony.offset"
    ]


def test_guard_refuses_seven_of_eight_gpus(observed, bad):
    found = bad(nvidia_driver.guard(observed({"node.pci.gpus": 7})))
    assert list(found) == ["nvidia_driver.pci_gpus"]
    assert "found 7 GPUs on PCI, expected 8 GPUs" in found["nvidia_driver.pci_gpus"]


def test_guard_does_not_count_an_unseen_bus_as_empty(observed, bad, absent):
    found = bad(nvidia_driver.guard(observed({"node.pci": absent})))
    assert "no observation" in found["nvidia_driver.pci_gpus"]


def test_guard_refuses_a_kernel_that_is_not_the_newest(observed, bad):
    found = bad(nvidia_driver.guard(observed({"node.kernel.newest_installed": NEWER_KERNEL})))
    assert list(found) == ["nvidia_driver.kernel"]
    assert NEWER_KERNEL in found["nvidia_driver.kernel"]


def test_guard_names_the_headers_package_that_is_nowhere(observed, bad):
    found = bad(nvidia_driver.guard(observed({"node.kernel.headers_installed": False})))
    assert list(found) == ["nvidia_driver.headers"]
    assert "linux-headers-5.15.0-91-generic" in found["nvidia_driver.headers"]


def test_guard_accepts_headers_that_the_repository_has(observed, bad):
    changes = {
        "node.kernel.headers_installed": False,
        "node.apt.candidates": {
            "linux-headers-5.15.0-91-generic": {"installed": None, "candidate": "5.15.0-91.101"}
        },
    }
    assert bad(nvidia_driver.guard(observed(changes))) == {}


def test_guard_wants_no_headers_for_prebuilt_modules(observed, bad):
    changes = {
        "node.kernel.headers_installed": False,
        "host.packages.driver": [
            {
                "name": "linux-modules-nvidia-515-server-5.15.0-91-generic",
                "version": "5.15.0-91.101",
            }
        ],
    }
    assert bad(nvidia_driver.guard(observed(changes))) == {}


def test_guard_refuses_dkms_modules_under_secure_boot_and_says_the_ways_out(observed, bad):
    found = bad(nvidia_driver.guard(observed({"node.kernel.secure_boot": "on"})))
    assert list(found) == ["nvidia_driver.secure_boot"]
    sentence = found["nvidia_driver.secure_boot"]
    assert "mokutil --import" in sentence
    assert "railweld_secure_boot_signer" in sentence


@pytest.mark.parametrize("state", ["off", "unsupported"])
def test_guard_accepts_hosts_that_enforce_no_signatures(observed, bad, state):
    assert bad(nvidia_driver.guard(observed({"node.kernel.secure_boot": state}))) == {}


def test_guard_accepts_secure_boot_with_an_enrolled_signer(observed, bad):
    changes = {
        "node.kernel.secure_boot": "on",
        "node.kernel.secure_boot_keys": ["Example Site Module Key"],
        "host.secure_boot_signer": "Example Site Module Key",
    }
    assert bad(nvidia_driver.guard(observed(changes))) == {}


def test_guard_refuses_a_signer_that_the_firmware_does_not_know(observed, bad):
    changes = {
        "node.kernel.secure_boot": "on",
        "node.kernel.secure_boot_keys": ["Distribution Key"],
        "host.secure_boot_signer": "Example Site Module Key",
    }
    assert list(bad(nvidia_driver.guard(observed(changes)))) == ["nvidia_driver.secure_boot_key"]


def test_guard_does_not_guess_about_secure_boot(observed, bad, absent):
    found = bad(nvidia_driver.guard(observed({"node.kernel.secure_boot": absent})))
    assert list(found) == ["nvidia_driver.secure_boot"]


def test_guard_refuses_a_driver_that_a_container_brought(observed, bad):
    found = bad(nvidia_driver.guard(observed({"node.driver.container": True})))
    assert list(found) == ["nvidia_driver.host_owned"]
    assert "driver.enabled=false" in found["nvidia_driver.host_owned"]


def test_guard_wants_ofed_before_the_driver_in_peermem_mode(observed, bad):
    assert list(bad(nvidia_driver.guard(observed({"site.gpudirect": "peermem"})))) == ["rdma.ofed"]
    with_ofed = observed({"site.gpudirect": "peermem", "node.rdma.ofed": "OFED-internal-24.10"})
    assert bad(nvidia_driver.guard(with_ofed)) == {}


# --- what counts as installed ------------------------------------------------------------------


def test_package_moved_by_hand_is_named_with_both_versions(observed, bad):
    package = {"version": "515.105.01-0ubuntu1", "status": "ii", "hold": False}
    found = bad(nvidia_driver.checks(observed({"node/packages/nvidia-utils-515": package})))
    assert "515.105.01-0ubuntu1" in found["nvidia_driver.package.nvidia-utils-515"]
    assert "515.86.01-0ubuntu1" in found["nvidia_driver.package.nvidia-utils-515"]
    assert "nvidia-utils-515" in found["nvidia_driver.held"]


def test_half_configured_package_is_not_installed(observed, bad):
    package = {"version": "515.86.01-0ubuntu1", "status": "iF", "hold": True}
    found = bad(nvidia_driver.checks(observed({"node/packages/nvidia-dkms-515-open": package})))
    assert "iF" in found["nvidia_driver.package.nvidia-dkms-515-open"]


def test_package_of_another_branch_is_a_stray(observed, bad):
    package = {"version": "470.256.02-0ubuntu1", "status": "ii", "hold": True}
    ctx = observed({"node/packages/libnvidia-compute-470": package})
    assert list(bad(nvidia_driver.checks(ctx))) == ["nvidia_driver.one_branch"]
    assert nvidia_driver.strays(ctx) == {"libnvidia-compute-470": "470.256.02-0ubuntu1"}


def test_unbranched_package_of_another_branch_is_a_stray(observed):
    package = {"version": "580.173.02-1ubuntu1", "status": "ii", "hold": True}
    ctx = observed({"node/packages/nvidia-persistenced": package})
    assert list(nvidia_driver.strays(ctx)) == ["nvidia-persistenced"]


@pytest.mark.parametrize("version", ["515.65.01-0ubuntu1", "20220217+3~deb12u1"])
def test_unbranched_package_of_this_branch_or_of_its_own_versioning_is_no_stray(observed, version):
    package = {"version": version, "status": "ii", "hold": True}
    assert nvidia_driver.strays(observed({"node/packages/nvidia-settings": package})) == {}


def test_module_package_of_the_other_flavour_is_a_stray(observed):
    package = {"version": "515.86.01-0ubuntu1", "status": "ii", "hold": True}
    ctx = observed({"node/packages/nvidia-kernel-source-515": package})
    assert list(nvidia_driver.strays(ctx)) == ["nvidia-kernel-source-515"]


@pytest.mark.parametrize(
    "name",
    ["nvidia-fabricmanager-470", "libnvidia-nscq-470", "libnvidia-container1", "cuda-toolkit-11-8"],
)
def test_packages_of_other_roles_are_no_strays(observed, name):
    package = {"version": "470.256.02-1", "status": "ii", "hold": False}
    assert nvidia_driver.strays(observed({f"node/packages/{name}": package})) == {}


def test_removed_package_with_leftover_configuration_is_no_stray(observed):
    package = {"version": "470.256.02-1", "status": "rc", "hold": False}
    assert nvidia_driver.strays(observed({"node/packages/libnvidia-compute-470": package})) == {}


def test_dkms_build_that_failed_behind_dpkgs_back_is_found(observed, bad):
    lines = ["nvidia/515.86.01: added"]
    found = bad(nvidia_driver.checks(observed({"node.driver.dkms": lines})))
    assert list(found) == ["nvidia_driver.module_built.5.15.0-91-generic"]


def test_second_kernel_without_a_module_is_found_before_anybody_boots_it(observed, bad):
    changes = {
        "node.kernel.installed": ["5.15.0-91-generic", NEWER_KERNEL],
        "node.kernel.newest_installed": NEWER_KERNEL,
    }
    found = bad(nvidia_driver.checks(observed(changes)))
    assert list(found) == [f"nvidia_driver.module_built.{NEWER_KERNEL}"]
    assert (
        f"do not reboot into {NEWER_KERNEL}" in found[f"nvidia_driver.module_built.{NEWER_KERNEL}"]
    )


def test_older_kernel_without_a_module_is_a_warning(observed, bad):
    installed = ["5.15.0-60-generic", "5.15.0-91-generic"]
    checks = list(nvidia_driver.checks(observed({"node.kernel.installed": installed})))
    assert bad(checks) == {}
    warned = [check.id for check in checks if check.status is Status.WARN]
    assert warned == ["nvidia_driver.module_built.5.15.0-60-generic"]


def test_older_dkms_spelling_counts_too(observed, bad):
    lines = ["nvidia, 515.86.01, 5.15.0-91-generic, x86_64: installed"]
    assert bad(nvidia_driver.checks(observed({"node.driver.dkms": lines}))) == {}


def test_prebuilt_module_counts_as_built(observed, bad):
    name = "linux-modules-nvidia-515-server-5.15.0-91-generic"
    package = {"version": "5.15.0-91.101", "status": "ii", "hold": True}
    ctx = observed({"node.driver.dkms": [], f"node/packages/{name}": package})
    assert bad(nvidia_driver.checks(ctx)) == {}


def test_other_flavour_on_disk_is_refused(observed, bad):
    found = bad(nvidia_driver.checks(observed({"node.driver.disk_flavour": "proprietary"})))
    assert list(found) == ["nvidia_driver.flavour"]


def test_unsigned_module_under_secure_boot_is_refused(observed, bad):
    changes = {"node.kernel.secure_boot": "on", "host.secure_boot_signer": "Example Site Key"}
    assert "unsigned" in bad(nvidia_driver.checks(observed(changes)))["nvidia_driver.signer"]
    changes["node.driver.signer"] = "Example Site Key"
    assert bad(nvidia_driver.checks(observed(changes))) == {}


def test_blacklist_has_to_name_nova_too(observed, bad):
    found = bad(nvidia_driver.checks(observed({"node.nouveau.rivals_blacklisted": ["nouveau"]})))
    assert "nova_core" in found["nvidia_driver.blacklist"]


def test_blacklist_has_to_be_in_the_initramfs(observed, bad):
    found = bad(nvidia_driver.checks(observed({"node.nouveau.in_initramfs": False})))
    assert list(found) == ["nvidia_driver.blacklist"]
    assert "initramfs" in found["nvidia_driver.blacklist"]


# --- what counts as running -----------------------------------------------------------------


def test_driver_that_waits_for_the_reboot_is_installed_but_not_running(observed, bad):
    ctx = observed({"node.driver.loaded": "510.108.03"})
    assert bad(nvidia_driver.installed(ctx)) == {}
    found = bad(nvidia_driver.booted(ctx))
    assert list(found) == ["nvidia_driver.loaded"]
    assert "found driver 510.108.03, expected driver 515.86.01" in found["nvidia_driver.loaded"]
    assert "reboot" in found["nvidia_driver.loaded"]


def test_nouveau_on_the_gpus_is_a_matter_of_the_reboot(observed, bad):
    ctx = observed({"node.nouveau.rivals_loaded": ["nouveau"], "node.driver.loaded": None})
    assert bad(nvidia_driver.installed(ctx)) == {}
    assert list(bad(nvidia_driver.booted(ctx))) == ["nvidia_driver.nouveau", "nvidia_driver.loaded"]


def test_driver_that_was_never_installed_sends_to_the_role(observed, bad):
    ctx = observed({"node.driver.loaded": None, "node.driver.on_disk": None})
    sentence = bad(nvidia_driver.running(ctx))["nvidia_driver.loaded"]
    assert "no NVIDIA driver loaded" in sentence
    assert "nvidia_driver role" in sentence


def test_library_mismatch_carries_nvidia_smis_own_words(observed, bad):
    smi = {"ok": False, "error": "Failed to initialize NVML: Driver/library version mismatch"}
    found = bad(nvidia_driver.checks(observed({"node.driver.smi": smi})))
    assert "Driver/library version mismatch" in found["nvidia_driver.smi"]


def test_gpu_that_is_on_pci_but_does_not_answer_is_missed(observed, bad):
    ctx = observed()
    ctx.node["gpus"].pop()
    assert list(bad(nvidia_driver.checks(ctx))) == ["nvidia_driver.gpu_count"]


def test_other_gpu_model_is_named(observed, bad):
    ctx = observed({"host.gpu.model": "H100-SXM5-80GB"})
    found = bad(nvidia_driver.checks(ctx))
    assert "A100-SXM4-80GB" in found["nvidia_driver.gpu_model"]


@pytest.mark.parametrize(("mode", "value"), [("persistence", False), ("ecc", False), ("mig", True)])
def test_mode_that_differs_on_one_gpu_is_named_with_the_gpu(observed, bad, mode, value):
    ctx = observed()
    ctx.node["gpus"][3][mode] = value
    found = bad(nvidia_driver.checks(ctx))
    assert list(found) == [f"nvidia_driver.{mode}"]
    assert "GPU 3" in found[f"nvidia_driver.{mode}"]


def test_gpu_without_mig_counts_as_mig_off(observed, bad):
    ctx = observed()
    for gpu in ctx.node["gpus"]:
        gpu["mig"] = None
    assert bad(nvidia_driver.checks(ctx)) == {}


def test_dead_persistence_daemon_is_found(observed, bad):
    found = bad(nvidia_driver.checks(observed({"node.driver.persistence_unit": False})))
    assert list(found) == ["nvidia_driver.persistenced"]
