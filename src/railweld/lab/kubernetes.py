"""Kubernetes for the lab, the way an air-gapped site gets it: packages on the mirror, image files.

Everything is built from source (tools.py). Packages carry the names, versions and relations of
pkgs.k8s.io, so the roles install them as they do on a real site. Images are made of the programs
alone and lie as archives in the lab's state folder, from where a role loads them into the nodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from railweld.lab import images, mirror
from railweld.lab.access import lab_state_dir
from railweld.lab.debs import Deb, build_deb, index_repository, signing_key
from railweld.lab.image import Base, cache_lock, digest, ensure_base
from railweld.lab.process import LabError, Report, remove_tree
from railweld.lab.tools import TOOLS, ensure, tool_version
from railweld.state import cache_dir
from railweld.versions import Package

REPOSITORY: Final = "kubernetes"
TOOLKIT_REPOSITORY: Final = "container_toolkit"
IMAGES_FOLDER: Final = "images"
#: Changes when packages or images are made in another way.
RECIPE: Final = 1

#: Revision of every package of pkgs.k8s.io that the version sets name for these releases.
_REVISION: Final = "1.1"

_KUBELET_UNIT = """[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
"""

_KUBEADM_DROPIN = """[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS \
$KUBELET_EXTRA_ARGS
"""

#: Where NVIDIA's runtime adds the driver, this one adds what the lab's stand-ins answer from.
_STANDIN_RUNTIME = """#!/usr/bin/python3
# railweld lab: stand-in of NVIDIA's container runtime.
import json
import os
import sys

STATE = "/var/lib/railweld-lab"


def bundle(words):
    for index, word in enumerate(words):
        if word in ("-b", "--bundle"):
            return words[index + 1]
        if word.startswith("--bundle="):
            return word.partition("=")[2]
    return os.getcwd()


def add_gpus(path):
    with open(path) as file:
        config = json.load(file)
    given = [word.partition("=")[2] for word in config["process"]["env"]
             if word.startswith("NVIDIA_VISIBLE_DEVICES=")]
    if given and given[-1] not in ("", "void", "none"):
        config["mounts"].append({"destination": STATE, "type": "bind", "source": STATE,
                                 "options": ["rbind", "ro"]})
        with open(path, "w") as file:
            json.dump(config, file)


if "create" in sys.argv:
    add_gpus(os.path.join(bundle(sys.argv), "config.json"))
os.execvp("runc", ["runc", *sys.argv[1:]])
"""
_STANDIN_CTK = """#!/bin/sh
# railweld lab: stand-in of NVIDIA's container toolkit.
[ "$1" = --version ] && { echo "NVIDIA Container Toolkit CLI (railweld lab)"; exit 0; }
echo "nvidia-ctk: this stand-in of the railweld lab only knows --version" >&2
exit 1
"""

#: What kube-proxy calls, with the libraries that Debian's packages bring for it.
_PROXY_PACKAGES: Final = (
    "iptables",
    "libc6",
    "libip4tc2",
    "libip6tc2",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "libxtables12",
    "netbase",
)
#: On a system the choice between iptables' two back ends is a link that no package has in its list.
_PROXY_LINKS: Final = {
    f"/usr/sbin/{name}": "xtables-nft-multi"
    for family in ("iptables", "ip6tables")
    for name in (family, f"{family}-save", f"{family}-restore")
}


@dataclass(frozen=True, kw_only=True)
class Release:
    """One Kubernetes release with what kubeadm runs beside it.

    Attributes:
        tool: the folder of `tools/` that builds it.
        pause: tag of the sandbox image that this kubeadm asks for.
        coredns: tag of CoreDNS that this kubeadm asks for.
    """

    tool: str
    pause: str
    coredns: str

    @property
    def version(self) -> str:
        """`1.36.3`."""
        return tool_version(self.tool).removeprefix("v")

    @property
    def etcd_tag(self) -> str:
        """Tag of the etcd image: the release that is built, as kubeadm writes tags."""
        return f"{tool_version('etcd').removeprefix('v')}-0"


#: CoreDNS is built once; kubeadm of the older release finds it under the tag that it knows.
RELEASES: Final = (
    Release(tool="kubernetes", pause="3.10.2", coredns="v1.14.2"),
    Release(tool="kubernetes-1.35", pause="3.10.1", coredns="v1.13.1"),
)


def release_of(version: str) -> Release:
    """The release that the lab can build under a version.

    Raises:
        LabError: it has no such release.
    """
    for release in RELEASES:
        if release.version == version:
            return release
    known = ", ".join(release.version for release in RELEASES)
    raise LabError(
        f"Kubernetes {version}: found no module that builds it, expected one of {known}; "
        "set railweld_version_overrides.kubernetes, or add a folder below tools/"
    )


def provide(site: str, versions: Sequence[str], toolkit: Sequence[Package], report: Report) -> None:
    """Give a lab everything that its nodes need to become a cluster.

    Builds what the cache has not got, serves the packages as the mirror's repository `kubernetes`
    and lays the image archives beside the lab's keys. A second call changes nothing.

    Args:
        site: the lab.
        versions: Kubernetes versions; the mirror offers all of them.
        toolkit: packages of NVIDIA's container toolkit, of which stand-ins are served.
        report: called with a line per step.
    """
    releases = [release_of(version) for version in dict.fromkeys(versions)]
    base = ensure_base(report)
    mirror.serve(
        site,
        {
            REPOSITORY: repository(releases, report),
            TOOLKIT_REPOSITORY: toolkit_repository(toolkit, report),
        },
    )
    folder = lab_state_dir(site) / IMAGES_FOLDER
    publish_images(image_archives(releases, base, report), folder)
    report(f"lab {site}: Kubernetes {', '.join(r.version for r in releases)} on its mirror, "
           f"image files in {folder}")  # fmt: skip


def packages(release: Release, programs: Mapping[str, Path]) -> list[Deb]:
    """The five packages of a release, as pkgs.k8s.io names and relates them.

    Args:
        release: which one.
        programs: tool to the folder of its programs.
    """
    binaries = programs[release.tool]
    cni_version = tool_version("cni-plugins").removeprefix("v")
    cri_version = tool_version("cri-tools").removeprefix("v")
    kubelet_dir = "/usr/lib/systemd/system"
    plugins = {
        f"/opt/cni/bin/{name}": (programs["cni-plugins"] / name).read_bytes()
        for name in TOOLS["cni-plugins"].programs
    }
    return [
        _deb(
            "kubelet",
            release.version,
            "Node agent of Kubernetes",
            {
                "/usr/bin/kubelet": (binaries / "kubelet").read_bytes(),
                f"{kubelet_dir}/kubelet.service": _KUBELET_UNIT,
                "/etc/default/kubelet": "KUBELET_EXTRA_ARGS=\n",
            },
            depends="iptables (>= 1.4.21), kubernetes-cni (>= 1.2.0), mount, util-linux",
            conffiles="/etc/default/kubelet\n",
        ),
        _deb(
            "kubeadm",
            release.version,
            "Command-line utility for administering a Kubernetes cluster",
            {
                "/usr/bin/kubeadm": (binaries / "kubeadm").read_bytes(),
                f"{kubelet_dir}/kubelet.service.d/10-kubeadm.conf": _KUBEADM_DROPIN,
            },
            depends="cri-tools (>= 1.30.0)",
        ),
        _deb(
            "kubectl",
            release.version,
            "Command-line utility for interacting with a Kubernetes cluster",
            {"/usr/bin/kubectl": (binaries / "kubectl").read_bytes()},
        ),
        _deb("kubernetes-cni", cni_version, "Binaries of the CNI plugins", plugins),
        _deb(
            "cri-tools",
            cri_version,
            "Command-line utilities for container runtimes",
            {"/usr/bin/crictl": (programs["cri-tools"] / "crictl").read_bytes()},
        ),
    ]


def _deb(
    name: str,
    version: str,
    description: str,
    files: Mapping[str, str | bytes],
    *,
    depends: str = "",
    conffiles: str = "",
) -> Deb:
    scripts = {"conffiles": conffiles} if conffiles else {}
    if any(path.startswith("/usr/lib/systemd/") for path in files):
        scripts["postinst"] = (
            "#!/bin/sh\nset -e\n[ ! -d /run/systemd/system ] || systemctl daemon-reload\n"
        )
    return Deb(
        name=name,
        version=f"{version}-{_REVISION}",
        description=description,
        fields={"Section": "admin", **({"Depends": depends} if depends else {})},
        files=files,
        executable=frozenset(path for path in files if "/bin/" in path),
        scripts=scripts,
    )


def repository(releases: Sequence[Release], report: Report) -> str:
    """Build the signed apt repository once; return its path below the mirror's root."""
    tools = ["cni-plugins", "cri-tools", *(release.tool for release in releases)]
    programs = {name: ensure(name, report) for name in tools}
    key = signing_key()
    recipe = json.dumps(
        [RECIPE, _KUBELET_UNIT, _KUBEADM_DROPIN, sorted(map(str, programs.values()))]
    )

    def build(folder: Path) -> None:
        for release in releases:
            report(f"mirror: packing Kubernetes {release.version} as Debian packages")
            for deb in packages(release, programs):
                build_deb(deb, folder)
        index_repository(folder, key, label=REPOSITORY)

    with cache_lock("mirror", report):
        return mirror.built(REPOSITORY, key, recipe, build)


def toolkit_packages(wanted: Sequence[Package]) -> list[Deb]:
    """Stand-ins of NVIDIA's container toolkit: exact names and versions, a runtime that is runc."""
    programs = {
        "/usr/bin/nvidia-container-runtime": _STANDIN_RUNTIME,
        "/usr/bin/nvidia-ctk": _STANDIN_CTK,
    }
    return [
        Deb(
            name=each.name,
            version=each.version,
            description="Stand-in of NVIDIA's container toolkit for the railweld lab",
            files=programs if each.name == "nvidia-container-toolkit-base" else {},
            executable=frozenset(programs),
        )
        for each in wanted
    ]


def toolkit_repository(wanted: Sequence[Package], report: Report) -> str:
    """Build the stand-ins' signed repository once; return its path below the mirror's root."""
    key = signing_key()
    recipe = json.dumps([RECIPE, _STANDIN_RUNTIME, _STANDIN_CTK, [str(each) for each in wanted]])

    def build(folder: Path) -> None:
        for deb in toolkit_packages(wanted):
            build_deb(deb, folder)
        index_repository(folder, key, label=TOOLKIT_REPOSITORY)

    with cache_lock("mirror", report):
        return mirror.built(TOOLKIT_REPOSITORY, key, recipe, build)


def cluster_images(
    release: Release, programs: Mapping[str, Path], base: Base
) -> dict[str, tuple[str, images.Image]]:
    """Images of a release: archive name to (nodes that need it, image).

    Nodes are `control_plane` or `node`; a control-plane node needs both kinds.
    """
    registry = "registry.k8s.io"
    found: dict[str, tuple[str, images.Image]] = {}
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        path = f"/usr/local/bin/{name}"
        found[name] = (
            "control_plane",
            images.Image(
                ref=f"{registry}/{name}:v{release.version}",
                programs={path: programs[release.tool] / name},
                entrypoint=(path,),
            ),
        )
    proxy = "/usr/local/bin/kube-proxy"
    found["kube-proxy"] = (
        "node",
        images.Image(
            ref=f"{registry}/kube-proxy:v{release.version}",
            programs={proxy: programs[release.tool] / "kube-proxy"},
            members=images.members_of_packages(base.folder / "root.tar", _PROXY_PACKAGES),
            links=_PROXY_LINKS,
            entrypoint=(proxy,),
        ),
    )
    found["etcd"] = (
        "control_plane",
        images.Image(
            ref=f"{registry}/etcd:{release.etcd_tag}",
            programs={
                f"/usr/local/bin/{name}": programs["etcd"] / name for name in ("etcd", "etcdctl")
            },
            entrypoint=("/usr/local/bin/etcd",),
        ),
    )
    found["coredns"] = (
        "node",
        images.Image(
            ref=f"{registry}/coredns/coredns:{release.coredns}",
            programs={"/coredns": programs["coredns"] / "coredns"},
            entrypoint=("/coredns",),
        ),
    )
    found["pause"] = (
        "node",
        images.Image(
            ref=f"{registry}/pause:{release.pause}",
            programs={"/pause": programs["pause"] / "pause"},
            entrypoint=("/pause",),
        ),
    )
    return found


def image_archives(releases: Sequence[Release], base: Base, report: Report) -> list[Path]:
    """Build the image archives of the releases once; return their folders in the cache."""
    folders = []
    for release in releases:
        tools = (release.tool, "etcd", "coredns", "pause")
        programs = {name: ensure(name, report) for name in tools}
        recipe = json.dumps(
            [
                RECIPE,
                base.digest,
                _PROXY_PACKAGES,
                _PROXY_LINKS,
                release.pause,
                release.coredns,
                sorted(map(str, programs.values())),
            ]
        )
        folder = cache_dir("lab", "kubernetes-images") / digest(recipe)
        folders.append(folder)
        with cache_lock("kubernetes-images", report):
            if folder.is_dir():
                continue
            report(f"images: packing Kubernetes {release.version} as image archives")
            partial = folder.with_name(f"{folder.name}.partial")
            remove_tree(partial)
            partial.mkdir()
            listed = []
            for name, (nodes, image) in cluster_images(release, programs, base).items():
                path = partial / f"{name}-{release.version}.tar"
                images.write_archive(image, path)
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                listed.append(
                    {"file": path.name, "images": [image.ref], "nodes": nodes, "sha256": content}
                )
            (partial / "index.json").write_text(json.dumps(listed, indent=1) + "\n")
            partial.rename(folder)
    return folders


def publish_images(folders: Iterable[Path], target: Path) -> None:
    """Lay archives of several folders into one, with one index of them all.

    Files that another part put there (the stack's own images) stay in the index.
    """
    target.mkdir(mode=0o755, exist_ok=True)
    index_path = target / "index.json"
    known: list[dict[str, object]] = (
        json.loads(index_path.read_text()) if index_path.is_file() else []
    )
    entries = {str(each["file"]): each for each in known if (target / str(each["file"])).exists()}
    for folder in folders:
        for each in json.loads((folder / "index.json").read_text()):
            link = target / each["file"]
            if not link.is_symlink() or link.readlink() != folder / each["file"]:
                link.unlink(missing_ok=True)
                link.symlink_to(folder / each["file"])
            entries[each["file"]] = each
    text = json.dumps([entries[name] for name in sorted(entries)], indent=1) + "\n"
    if not index_path.is_file() or index_path.read_text() != text:
        index_path.write_text(text)
