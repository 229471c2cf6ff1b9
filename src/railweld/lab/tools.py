"""Programs that the lab builds from source, because no Debian package has them in these versions.

Each has a folder `tools/NAME` with a go.mod and a go.sum that say exactly what is built. Results
are kept in the cache under the hash of all that decides them, so demo, tests and CI share one
build. On a real site nothing here is used: nodes install the projects' own packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from railweld.lab.process import LabError, Report, Result, remove_tree, run
from railweld.state import cache_dir, held

#: Changes when the way of building changes and earlier results must not be used.
RECIPE: Final = 2


@dataclass(frozen=True, kw_only=True)
class Tool:
    """What one folder of `tools/` makes.

    Attributes:
        module: the Go module whose version in go.mod is the tool's version; empty for our own.
        programs: file name to package.
        ldflags: linker flags, beyond stripping, for a version.
        prepare: writes what the main package embeds; gets the source folder and the version.
    """

    module: str
    programs: Mapping[str, str]
    ldflags: Callable[[str], str] = lambda _version: ""
    prepare: Callable[[Path, str], None] = lambda _source, _version: None


def _kubernetes_ldflags(version: str) -> str:
    major, minor = version.removeprefix("v").split(".")[:2]
    stamps = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    return " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in stamps.items())


def _embed_provider_schema(source: Path, version: str) -> None:
    """Make the two files that the provider embeds; its module has only their sources."""
    module = "github.com/pulumi/pulumi-kubernetes/provider/v4"
    _go(source, "mod", "download", module)
    folder = Path(_go(source, "list", "-m", "-f", "{{.Dir}}", module).stdout.strip())
    program = folder / "cmd" / "pulumi-resource-kubernetes"
    schema = json.loads((program / "schema.json").read_text())
    mapping = json.loads((program / "terraform-mapping.json").read_text())
    schema["version"] = version
    for name, content in (("schema", schema), ("terraform-mapping", mapping)):
        (source / f"{name}-embed.json").write_text(json.dumps(content, separators=(",", ":")))


_KUBERNETES: Final = Tool(
    module="k8s.io/kubernetes",
    programs={
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-proxy",
            "kubelet",
            "kubeadm",
            "kubectl",
        )
    },
    ldflags=_kubernetes_ldflags,
)
_CNI: Final = "github.com/containernetworking/plugins"
_CNI_PLUGINS: Final = (
    *("ipam/host-local", "ipam/static"),
    *("main/bridge", "main/dummy", "main/host-device", "main/ipvlan", "main/loopback"),
    *("main/macvlan", "main/ptp", "main/tap", "main/vlan"),
    *("meta/bandwidth", "meta/firewall", "meta/portmap", "meta/sbr", "meta/tuning", "meta/vrf"),
)
_NFD: Final = "sigs.k8s.io/node-feature-discovery"
#: The provider's module has a pseudo-version; this is what the Python SDK asks for.
_PROVIDER_VERSION: Final = "4.25.0"

TOOLS: Final[Mapping[str, Tool]] = {
    "kubernetes": _KUBERNETES,
    # The minor version before, from which the upgrade suite starts.
    "kubernetes-1.35": _KUBERNETES,
    "etcd": Tool(
        module="go.etcd.io/etcd/server/v3",
        programs={
            "etcd": "go.etcd.io/etcd/server/v3",
            "etcdctl": "go.etcd.io/etcd/etcdctl/v3",
        },
    ),
    "coredns": Tool(module="github.com/coredns/coredns", programs={"coredns": "."}),
    "cni-plugins": Tool(
        module=_CNI,
        programs={path.partition("/")[2]: f"{_CNI}/plugins/{path}" for path in _CNI_PLUGINS},
        ldflags=lambda version: f"-X {_CNI}/pkg/utils/buildversion.BuildVersion={version}",
    ),
    "cri-tools": Tool(
        module="sigs.k8s.io/cri-tools",
        programs={"crictl": "sigs.k8s.io/cri-tools/cmd/crictl"},
        ldflags=lambda version: f"-X sigs.k8s.io/cri-tools/pkg/version.Version={version}",
    ),
    "pause": Tool(module="", programs={"pause": "."}),
    "device-plugin": Tool(module="", programs={"device-plugin": "."}),
    # Made for the images of the stack; the guard is no stand-in and runs on real sites too.
    "clock-guard": Tool(module="", programs={"clock-guard": "."}),
    "dcgm-exporter": Tool(module="", programs={"dcgm-exporter": "."}),
    # Not part of the lab: they judge what the stack hands them, in its deep suite.
    "nfd": Tool(
        module=_NFD,
        programs={name: f"{_NFD}/cmd/{name}" for name in ("nfd-master", "nfd-worker", "nfd-gc")},
        ldflags=lambda version: f"-X {_NFD}/pkg/version.version={version}",
    ),
    "rdma-shared-device-plugin": Tool(
        module="github.com/Mellanox/k8s-rdma-shared-dev-plugin",
        programs={
            "k8s-rdma-shared-dp": "github.com/Mellanox/k8s-rdma-shared-dev-plugin"
            "/cmd/k8s-rdma-shared-dp"
        },
    ),
    "kwok": Tool(module="sigs.k8s.io/kwok", programs={"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    "pulumi": Tool(
        module="github.com/pulumi/pulumi/pkg/v3",
        programs={"pulumi": "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"},
        ldflags=lambda version: (
            f"-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version={version}"
        ),
    ),
    "pulumi-resource-kubernetes": Tool(
        module="github.com/pulumi/pulumi-kubernetes/provider/v4",
        programs={"pulumi-resource-kubernetes": "."},
        ldflags=lambda version: (
            "-X github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version.Version="
            f"{version.removeprefix('v')}"
        ),
        prepare=_embed_provider_schema,
    ),
}


def tools_directory() -> Path:
    """Folder of the tools' Go modules: `$RAILWELD_TOOLS`, the installed package's, the checkout's.

    Raises:
        LabError: none of them is there.
    """
    given = os.environ.get("RAILWELD_TOOLS")
    here = Path(__file__).resolve()
    candidates = [
        *([Path(given)] if given else []),
        here.parents[1] / "tools",
        *(parent / "tools" for parent in here.parents[2:5]),
    ]
    for candidate in candidates:
        if (candidate / "kubernetes" / "go.mod").is_file():
            return candidate
    raise LabError(
        f"tools: found no kubernetes/go.mod in {', '.join(map(str, candidates))}; "
        "set RAILWELD_TOOLS to the folder `tools` of railweld's sources"
    )


def tool_version(name: str) -> str:
    """Version of a tool as its project writes it (`v1.36.3`); empty for the lab's own programs."""
    tool = _known(name)
    if name == "pulumi-resource-kubernetes":
        return f"v{_PROVIDER_VERSION}"
    if not tool.module:
        return ""
    text = (tools_directory() / name / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require )?{re.escape(tool.module)} (v\S+)", text, re.MULTILINE)
    if found is None:
        raise LabError(f"tools/{name}/go.mod: found no {tool.module}, expected it to be required")
    return found[1]


def ensure(name: str, report: Report | None = None) -> Path:
    """Return the folder that has a tool's programs; build them when the cache has not got them.

    One build at a time on a machine: a Go build uses every core by itself.

    Args:
        name: one of `TOOLS`.
        report: called with a line per program built.

    Raises:
        LabError: unknown tool, no usable Go, or the build failed.
    """
    tool = _known(name)
    tell: Report = report or (lambda _line: None)
    source = tools_directory() / name
    folder = cache_dir("tools", name) / _digest(tool, source)
    if folder.is_dir():
        return folder
    with _build_lock(tell):
        if not folder.is_dir():
            _build(name, tool, source, folder, tell)
    return folder


def _build(name: str, tool: Tool, source: Path, folder: Path, report: Report) -> None:
    version = tool_version(name)
    label = f"{name} {version}".strip()
    partial = folder.with_name(f"{folder.name}.partial")
    work = folder.with_name(f"{folder.name}.source")
    for leftover in (partial, work):
        remove_tree(leftover)
    partial.mkdir()
    shutil.copytree(source, work)
    started = time.monotonic()
    try:
        tool.prepare(work, version)
        for number, (program, package) in enumerate(tool.programs.items(), 1):
            report(f"tools: building {label} from source: {program}, "
                   f"{number} of {len(tool.programs)}")  # fmt: skip
            flags = f"-s -w {tool.ldflags(version)}".strip()
            _go(
                work,
                *("build", "-trimpath", "-ldflags", flags, "-o", str(partial / program), package),
            )
    finally:
        remove_tree(work)
    partial.rename(folder)
    report(f"tools: {label} built in {time.monotonic() - started:.0f} s, kept for later")


def _digest(tool: Tool, source: Path) -> str:
    """Hash of everything that decides what a build gives."""
    if shutil.which("go") is None:
        raise LabError(_no_go(source))
    hashed = hashlib.sha256(f"{RECIPE} {go_version(source)} {tool.programs}".encode())
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        hashed.update(f"{path.relative_to(source.parent)}\0".encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:16]


def go_version(folder: Path) -> str:
    """Version of Go that builds a module: the one on PATH, or the toolchain that go.mod asks for.

    Raises:
        LabError: Go is too old for the module and may not fetch a newer one.
    """
    return _go(folder, "env", "GOVERSION").stdout.strip()


def _go(folder: Path, *arguments: str) -> Result:
    """Run Go in a module without cgo: programs that run in any node and in an empty image."""
    done = run(
        ["go", *arguments],
        cwd=folder,
        check=False,
        environment={
            "CGO_ENABLED": "0",
            "GOWORK": "off",
            "GOFLAGS": "-mod=readonly -buildvcs=false",
        },
    )
    if not done.ok:
        tail = "\n".join(done.text.splitlines()[-15:])
        raise LabError(
            f"tools: `go {arguments[0]}` in {folder} failed, expected exit 0:\n{tail}\n"
            "Fix: modules that cannot be downloaded need GOPROXY set to a mirror of them; for a Go "
            "that is too old install a newer one from https://go.dev/dl"
        )
    return done


def _no_go(source: Path) -> str:
    found = re.search(r"^go (\S+)", (source / "go.mod").read_text(), re.MULTILINE)
    wanted = found[1] if found else "1.26"
    return (
        f"tools: found no `go` on PATH, expected Go {wanted} or newer to build {source.name} for "
        "the lab. Fix: install it from https://go.dev/dl and put its bin folder on PATH"
    )


@contextmanager
def _build_lock(report: Report) -> Iterator[None]:
    waiting = "tools: another build is under way, waiting for it"
    with held(cache_dir("tools") / "build.lock", lambda: report(waiting)):
        yield


def _known(name: str) -> Tool:
    if name not in TOOLS:
        raise LabError(f"tools: found {name!r}, expected one of {', '.join(TOOLS)}")
    return TOOLS[name]
