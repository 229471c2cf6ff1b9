"""The container runtime: as pinned, with the site's limits, the kubelet's cgroups, its images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from debian.debian_support import version_compare

from railweld.cluster.packages import in_place
from railweld.record import Check
from railweld.verify.context import Context
from railweld.verify.roles import chrony, nvidia_driver

ROLE: Final = "containerd"
_AGAIN: Final = "run playbooks/deploy-cluster.yml, or the containerd role alone, on this host"
#: From here on the CRI plugin hands CDI devices to containers.
_CDI_FROM: Final = "1.7.0"


def guard(ctx: Context) -> Iterator[Check]:
    """The clock is right, and a node with GPUs has the driver that its containers will use."""
    yield from chrony.gate(ctx)
    if ctx.wanted("is_gpu_node"):
        yield from nvidia_driver.running(ctx)
    yield from _running_pods(ctx)


def checks(ctx: Context) -> Iterator[Check]:
    """Packages, limits, settings and images."""
    yield from in_place(ctx, "containerd", role=ROLE)
    if ctx.pins("container_toolkit"):
        yield from in_place(ctx, "container_toolkit", role=ROLE)
    yield from running(ctx)
    if ctx.seen("cluster.containerd.active"):
        yield from _limits(ctx)
        yield from _settings(ctx)
        yield from _images(ctx)


def running(ctx: Context) -> Iterator[Check]:
    """What later roles ask for: a runtime that answers."""
    active = bool(ctx.seen("cluster.containerd.active"))
    yield ctx.judge(
        "containerd.active",
        ok=active,
        ran="systemctl status containerd",
        found=f"containerd {ctx.seen('cluster.containerd.version', 'not installed')}, "
        + ("active" if active else "not active"),
        expected="containerd active",
        fix=f"journalctl -u containerd shows why it does not run; {_AGAIN}",
        layer="cluster",
    )


def missing_images(ctx: Context) -> list[Mapping[str, Any]]:
    """Archives of which an image is absent, or that changed since they were loaded."""
    there = set(ctx.seen("cluster.containerd.images", []))
    loaded = ctx.seen("cluster.containerd.loaded", {})
    return [
        each
        for each in ctx.member("host.images", [])
        if loaded.get(each["file"]) != each["sha256"] or not set(each["images"]) <= there
    ]


def _running_pods(ctx: Context) -> Iterator[Check]:
    """Docker and containerd.io bring a runtime of their own under the same socket."""
    rival = ctx.installed_version("docker.io") or ctx.installed_version("docker-ce")
    yield ctx.judge(
        "containerd.alone",
        ok=not rival,
        ran="dpkg-query -W docker.io docker-ce",
        found=f"Docker {rival}" if rival else "no Docker",
        expected="containerd without Docker: both would own the same socket and settings",
        fix="apt-get remove docker.io docker-ce on this host, or take it out of the inventory",
        layer="cluster",
    )


def _limits(ctx: Context) -> Iterator[Check]:
    for name, key, wanted in (
        ("memlock", "memlock_kib", _bytes(ctx.member("memlock_kib"))),
        ("nofile", "nofile", ctx.member("nofile")),
    ):
        found = ctx.seen(f"cluster.containerd.{name}")
        yield ctx.judge(
            f"containerd.{name}",
            ok=found == wanted,
            ran="cat /proc/$(pidof containerd)/limits",
            found=found,
            expected=f"{wanted} (railweld_{key}): containers inherit it, and RDMA registers "
            "locked memory",
            fix=_AGAIN,
            layer="cluster",
        )


def _bytes(kib: object) -> object:
    return int(kib) * 1024 if isinstance(kib, int) else kib


def _settings(ctx: Context) -> Iterator[Check]:
    yield ctx.judge(
        "containerd.cgroup_driver",
        ok=bool(ctx.seen("cluster.containerd.systemd_cgroup")),
        ran="containerd config dump | grep SystemdCgroup",
        found="systemd" if ctx.seen("cluster.containerd.systemd_cgroup") else "cgroupfs",
        expected="systemd, as the kubelet: two managers of one cgroup tree lose pods under load",
        fix=_AGAIN,
        layer="cluster",
    )
    yield ctx.judge(
        "containerd.sandbox_image",
        ok=ctx.seen("cluster.containerd.sandbox_image") == ctx.member("pause_image"),
        ran="containerd config dump | grep sandbox",
        found=ctx.seen("cluster.containerd.sandbox_image"),
        expected=ctx.member("pause_image"),
        fix=_AGAIN,
        layer="cluster",
    )
    stale = bool(ctx.seen("cluster.containerd.stale"))
    yield ctx.judge(
        "containerd.current",
        ok=not stale,
        ran="systemctl show -p ActiveEnterTimestamp containerd; ls -l /etc/containerd/config.toml",
        found="running with older settings than its file" if stale else "started after its file",
        expected="running with the settings of its file",
        fix="systemctl restart containerd; containers keep running",
        layer="cluster",
    )
    yield from _gpus(ctx)


def _gpus(ctx: Context) -> Iterator[Check]:
    mode = ctx.member("host.gpu_runtime", "none")
    version = str(ctx.seen("cluster.containerd.version", "0"))
    if mode != "none":
        # With CDI too: pods that watch all GPUs (device plugin, exporter) go through it.
        found = "nvidia" in ctx.seen("cluster.containerd.runtimes", [])
        yield ctx.judge(
            "containerd.gpu_runtime",
            ok=found,
            ran="containerd config dump | grep -A3 nvidia",
            found=f"runtimes {', '.join(ctx.seen('cluster.containerd.runtimes', []))}",
            expected="runtime nvidia (railweld_gpu_runtime)",
            fix=_AGAIN,
            layer="cluster",
        )
    if mode == "cdi":
        able = version_compare(version, _CDI_FROM) >= 0
        yield ctx.judge(
            "containerd.cdi",
            ok=able and bool(ctx.seen("cluster.containerd.cdi")),
            ran="containerd --version; containerd config dump | grep cdi",
            found=f"containerd {version}, CDI "
            + ("on" if ctx.seen("cluster.containerd.cdi") else "off"),
            expected=f"containerd {_CDI_FROM} or newer with CDI on (railweld_gpu_runtime: cdi)",
            fix=_AGAIN if able else "choose railweld_gpu_runtime: runtime, or a newer containerd",
            layer="cluster",
        )


def _images(ctx: Context) -> Iterator[Check]:
    wanted = ctx.member("host.images", [])
    if not wanted:
        return
    missing = [str(each["file"]) for each in missing_images(ctx)]
    yield ctx.judge(
        "containerd.images",
        ok=not missing,
        ran="ctr --namespace k8s.io images list --quiet",
        found=f"not loaded: {', '.join(missing)}" if missing else f"{len(wanted)} archives loaded",
        expected="every archive of railweld_image_archives loaded",
        fix=_AGAIN,
        layer="cluster",
    )
