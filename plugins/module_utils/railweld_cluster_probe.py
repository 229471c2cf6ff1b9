# SPDX-License-Identifier: Apache-2.0
"""The cluster area of the probe: container runtime, kubelet, pod network, as the node shows them.

Runs on the node: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import re
import ssl
import time

KUBELET_CONF = "/etc/kubernetes/kubelet.conf"
ADMIN_CONF = "/etc/kubernetes/admin.conf"
CONTROLLERS = "/etc/kubernetes/manifests/kube-controller-manager.yaml"
KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"
CONTAINERD_CONFIG = "/etc/containerd/config.toml"
#: What kubeadm was doing here when it did not come to its end.
UNFINISHED = "/var/lib/railweld/kubeadm-unfinished"
IMAGES_RECORD = "/var/lib/railweld/images.json"
BRIDGE_CONFIG = "/etc/cni/net.d/10-railweld.conflist"
#: How long the API server may take to answer one question.
REQUEST_TIMEOUT = "--request-timeout=10s"
SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
)
#: kubeadm's own add-ons: Services and cluster DNS.
ADDONS = "k8s-app in (kube-proxy,kube-dns)"
#: Settings of the kubelet that follow from the description, as top-level lines of its file.
KUBELET_KEYS = (
    "cgroupDriver",
    "cpuManagerPolicy",
    "topologyManagerPolicy",
    "reservedSystemCPUs",
    "imageGCHighThresholdPercent",
)


def read_cluster(node, units, wanted=None):
    """Everything about this node as a member of a cluster, once it is as wanted or time is up."""
    if wanted:
        await_member(node, **wanted)
    return {
        "containerd": read_containerd(node, units),
        "kubelet": read_kubelet(node, units),
        "kubeadm": version_of(node, "kubeadm", "version", "-o", "short"),
        "kubectl": kubectl_version(node),
        "node": read_own_node(node),
        "api": read_api(node),
        "controllers": read_controllers(node),
        "certificates": read_certificates(node),
        "unfinished": node.read(UNFINISHED),
        "sysctls": {key: node.read("/proc/sys/" + key) for key in SYSCTLS},
        "nameservers": read_nameservers(node),
        "swap": [line.split()[0] for line in (node.read("/proc/swaps") or "").splitlines()[1:]],
        "pod_network": read_pod_network(node),
    }


def read_nameservers(node):
    """Name servers that pods of this node ask, from the file that kubeadm gives its kubelet."""
    stub = "/run/systemd/resolve/resolv.conf"
    name = stub if node.exists(stub) else "/etc/resolv.conf"
    found = re.findall(r"^nameserver\s+(\S+)", node.read(name) or "", re.MULTILINE)
    return {"file": name, "servers": found}


def version_of(node, *argv):
    """First version number in a command's output, None without the command."""
    match = re.search(r"v?(\d+\.\d+\.\d+)", node.output(*argv) or "")
    return match.group(1) if match else None


def kubectl_version(node):
    """Version of kubectl, without asking a server."""
    answer = node.json("kubectl", "version", "--client", "-o", "json") or {}
    version = (answer.get("clientVersion") or {}).get("gitVersion")
    return version.lstrip("v") if version else None


# --- container runtime -------------------------------------------------------------------------


def read_containerd(node, units):
    """Version, limits and effective settings of containerd, and the images that it has."""
    version = version_of(node, "containerd", "--version")
    state = units.get("containerd.service") or {}
    process = read_process(node, "containerd.service")
    found = {
        "version": version,
        "active": state.get("active") == "active",
        "enabled": state.get("enabled"),
        "memlock": process.get("Max locked memory"),
        "nofile": process.get("Max open files"),
        "stale": is_stale(node, process, [CONTAINERD_CONFIG, *dropins(node, "containerd")]),
        "images": [],
        "loaded": {},
    }
    dump = node.output("containerd", "config", "dump") if version else None
    found.update(parse_containerd(dump or ""))
    if found["active"]:
        listed = node.output("ctr", "--namespace", "k8s.io", "images", "list", "--quiet") or ""
        found["images"] = sorted(ref for ref in listed.split() if not ref.startswith("sha256:"))
    with contextlib.suppress(ValueError):
        found["loaded"] = json.loads(node.read(IMAGES_RECORD) or "{}")
    return found


def parse_containerd(dump):
    """Read what matters from `containerd config dump`, whose layout differs by major version."""

    def value(pattern):
        match = re.search(r"^\s*" + pattern + r"\s*=\s*['\"]?([^'\"\n]*)['\"]?\s*$", dump, re.M)
        return match.group(1) if match else None

    return {
        "systemd_cgroup": value("SystemdCgroup") == "true",
        "sandbox_image": value("sandbox_image") or value("sandbox"),
        "default_runtime": value("default_runtime_name"),
        "runtimes": sorted(set(re.findall(r"runtimes\.['\"]?([\w-]+)['\"]?\]\s*$", dump, re.M))),
        "cdi": value("enable_cdi") == "true",
        "registry_path": value("config_path"),
    }


def dropins(node, unit):
    """Files that change a unit."""
    return node.glob(f"/etc/systemd/system/{unit}.service.d/*.conf")


def read_process(node, unit):
    """Limits and start time of a unit's main process, empty when it does not run."""
    text = node.output("systemctl", "show", "--property=MainPID", "--value", unit) or ""
    pid = text.strip()
    if not pid.isdecimal() or pid == "0":
        return {}
    found = parse_limits(node.read(f"/proc/{pid}/limits") or "")
    with contextlib.suppress(OSError):
        found["started"] = node.path(f"/proc/{pid}").stat().st_mtime
    return found


def parse_limits(text):
    """Soft limits of a process by name: a number, or `unlimited`."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"(Max [a-z ]+?)\s{2,}(\S+)\s+(\S+)", line)
        if match:
            value = match.group(2)
            found[match.group(1)] = int(value) if value.isdecimal() else value
    return found


def is_stale(node, process, files):
    """True when a process runs on settings that are older than its files."""
    started = process.get("started")
    if started is None:
        return False
    for name in files:
        try:
            # A file that is written in the second of the start may or may not have been read.
            if node.path(name).stat().st_mtime > started + 1:
                return True
        except OSError:
            continue
    return False


# --- kubelet and API ---------------------------------------------------------------------------


def read_kubelet(node, units):
    """Version, state and settings of the kubelet."""
    state = units.get("kubelet.service") or {}
    process = read_process(node, "kubelet.service")
    text = node.read(KUBELET_CONFIG) or ""
    settings = {}
    for key in KUBELET_KEYS:
        match = re.search(r"^" + key + r":\s*(\S+)\s*$", text, re.MULTILINE)
        settings[key] = match.group(1).strip("\"'") if match else None
    settings["systemReserved"] = read_block(text, "systemReserved")
    return {
        "version": version_of(node, "kubelet", "--version"),
        "active": state.get("active") == "active",
        "enabled": state.get("enabled"),
        "configured": bool(text),
        "settings": settings,
        "stale": is_stale(node, process, [KUBELET_CONFIG, *dropins(node, "kubelet")]),
    }


def read_block(text, key):
    """Texts below a top-level key of the kubelet's file, by name; empty without the key.

    There is no YAML parser on a node. kubeadm writes the file, so its layout is always the same.
    """
    match = re.search(r"^" + key + r":\s*\n((?:[ \t]+\S.*\n?)+)", text, re.MULTILINE)
    if not match:
        return {}
    pairs = re.findall(r"^\s+([\w.-]+):\s*(\S+)\s*$", match.group(1), re.MULTILINE)
    return {name: value.strip("\"'") for name, value in pairs}


def await_member(node, seconds, ready=False, kubelet_version=None, steady=0):
    """Look once a second until this node is registered, or Ready, for `steady` seconds in a row.

    Not reaching it in time is no error here: what was found then is judged as everything else.
    """
    deadline = time.monotonic() + seconds
    since = None
    while time.monotonic() < deadline:
        found = read_own_node(node)
        if found is None:
            return
        if (
            not found["error"]
            and (not ready or (found["ready"] and not found["waiting_pods"]))
            and kubelet_version in (None, found["kubelet_version"])
        ):
            since = since or time.monotonic()
            if time.monotonic() - since >= steady:
                return
        else:
            since = None
        time.sleep(1)


def read_own_node(node):
    """The node's own object, read with the kubelet's credentials; null when it is no member.

    `error` says why a member could not be read.
    """
    if not node.exists(KUBELET_CONF):
        return None
    name = own_name(node)
    server = read_server(node)
    answer, error = ask(node, "get", "node", name)
    if answer is None:
        return {"name": name, "server": server, "error": error}
    found = {"server": server, **parse_node(answer)}
    of_node = ("--field-selector", f"spec.nodeName={name}", "--selector", ADDONS)
    answer, error = ask(node, "get", "pods", "--namespace", "kube-system", *of_node)
    found["waiting_pods"] = {"kube-system": error} if answer is None else waiting_pods(answer)
    return found


def read_server(node):
    """`HOST:PORT` of the API server that the kubelet talks to, null when its file names none."""
    match = re.search(r"^\s*server:\s*https://(\S+?)/?\s*$", node.read(KUBELET_CONF) or "", re.M)
    return match.group(1) if match else None


def ask(node, *words):
    """Answer of the API server to the kubelet's credentials, and why there is none."""
    code, out, err = node.run(
        ["kubectl", "--kubeconfig", KUBELET_CONF, REQUEST_TIMEOUT, *words, "-o", "json"]
    )
    if code != 0:
        return None, last_line(err) or last_line(out) or "no answer"
    try:
        return json.loads(out), ""
    except ValueError:
        return None, "an answer that is not JSON"


def waiting_pods(found):
    """Pods that are not ready, with the reason that the kubelet gives."""
    waiting = {}
    for pod in found.get("items") or []:
        status = pod.get("status") or {}
        states = {each["type"]: each for each in status.get("conditions") or []}
        if (states.get("Ready") or {}).get("status") == "True":
            continue
        reasons = [
            (each.get("state") or {}).get("waiting", {}).get("reason")
            for each in status.get("containerStatuses") or []
        ]
        waiting[pod["metadata"]["name"]] = next(filter(None, reasons), status.get("phase", ""))
    return waiting


def own_name(node):
    """Name under which this node registered: the kubelet's certificate says it."""
    text = node.read("/var/lib/kubelet/kubeadm-flags.env") or ""
    match = re.search(r"--hostname-override=([^\s\"]+)", text)
    return match.group(1) if match else (node.read("/proc/sys/kernel/hostname") or "").lower()


def parse_node(found):
    """Keep what checks ask for; the whole object lists every image."""
    spec, status = found.get("spec") or {}, found.get("status") or {}
    ready = [each for each in status.get("conditions") or [] if each.get("type") == "Ready"]
    return {
        "name": found["metadata"]["name"],
        "error": "",
        "labels": found["metadata"].get("labels") or {},
        "taints": spec.get("taints") or [],
        "unschedulable": bool(spec.get("unschedulable")),
        "pod_cidr": spec.get("podCIDR"),
        "ready": bool(ready) and ready[0].get("status") == "True",
        "ready_reason": ready[0].get("message", "") if ready else "no condition yet",
        "kubelet_version": (status.get("nodeInfo") or {}).get("kubeletVersion", "").lstrip("v"),
        "allocatable": status.get("allocatable") or {},
        "capacity": status.get("capacity") or {},
    }


def read_api(node):
    """The API server of a control-plane node: described, and answering; null on other nodes."""
    if not node.exists("/etc/kubernetes/manifests/kube-apiserver.yaml"):
        return None
    manifest = node.read("/etc/kubernetes/manifests/kube-apiserver.yaml") or ""
    image = re.search(r"image:\s*\S+:v(\S+)", manifest)
    found = {"described": image.group(1) if image else None, "version": None, "error": ""}
    code, out, err = node.run(
        ["kubectl", "--kubeconfig", ADMIN_CONF, REQUEST_TIMEOUT, "version", "-o", "json"]
    )
    if code != 0:
        found["error"] = last_line(err) or "no answer"
        return found
    try:
        found["version"] = json.loads(out)["serverVersion"]["gitVersion"].lstrip("v")
    except (ValueError, KeyError):
        found["error"] = "an answer without a server version"
    return found


def read_controllers(node):
    """Arguments of kube-controller-manager by name, as described to the kubelet; null elsewhere."""
    text = node.read(CONTROLLERS)
    if text is None:
        return None
    return dict(re.findall(r"^\s*- --([\w-]+)=(.*?)\s*$", text, re.MULTILINE))


def last_line(text):
    """The last line of a text: where kubectl says what is wrong."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def read_certificates(node):
    """Seconds until each certificate ends, by file."""
    found = {}
    names = [
        *node.glob("/etc/kubernetes/pki/*.crt"),
        *node.glob("/etc/kubernetes/pki/etcd/*.crt"),
        "/var/lib/kubelet/pki/kubelet-client-current.pem",
    ]
    for name in names:
        if node.exists(name):
            found[name] = seconds_left(str(node.path(name)))
    return found


def seconds_left(path):
    """Seconds until a certificate file ends, None when it cannot be read as one."""
    try:
        # The only certificate parser of the standard library; unchanged since Python 3.
        text = ssl._ssl._test_decode_cert(path)["notAfter"]
        ends = calendar.timegm(time.strptime(text, "%b %d %H:%M:%S %Y GMT"))
    except (AttributeError, KeyError, OSError, ValueError):
        return None
    return int(ends - time.time())


# --- pod network -------------------------------------------------------------------------------


def read_pod_network(node):
    """Configuration files, plugins and routes of the pod network, and railweld's own bridge."""
    routes, links = {}, {}
    for route in node.json("ip", "-json", "-4", "route", "show") or []:
        if route.get("gateway"):
            routes[route["dst"]] = route["gateway"]
        elif route.get("dev"):
            links[route["dst"]] = route["dev"]
    plugins = [folder for folder in ("/opt/cni/bin", "/usr/lib/cni") if node.names(folder)]
    files = node.glob("/etc/cni/net.d/*.conf*")
    runtime = read_process(node, "containerd.service")
    return {
        "files": files,
        # containerd does not notice a file that was moved into its folder.
        "unread": [name for name in files if is_stale(node, runtime, [name])],
        "plugins": {folder: node.names(folder) for folder in plugins},
        "subnet": read_bridge_subnet(node),
        "routes": routes,
        "links": links,
    }


def read_bridge_subnet(node):
    """Addresses that pods get by the file of role cni; None without it."""
    try:
        plugins = json.loads(node.read(BRIDGE_CONFIG) or "{}").get("plugins", [])
        return plugins[0]["ipam"]["ranges"][0][0]["subnet"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
