"""Three control-plane nodes behind one address: what one of them may take along when it dies.

The address is that of a load balancer, here a relay in this process on the lab network's gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator, Sequence

import pytest

from tests.integration.cluster.helpers import Cluster, eventually, provide
from tests.labs import running_lab, write_inventory

pytestmark = [pytest.mark.lab, pytest.mark.deep]

OCTET = 26
PORT = 6443
ENDPOINT = f"10.213.{OCTET}.1"
PLANES = {"head1": 10, "head2": 42, "head3": 43}
NODES = (*PLANES, "gpu1")


class Relay:
    """A load balancer: each connection goes to the next API server that says that it is ready.

    One that starts takes connections before it knows who may do what.
    """

    def __init__(self, listen: str, backends: Sequence[str]) -> None:
        self._listen, self._backends, self._turn = listen, list(backends), 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        starting = asyncio.start_server(self._serve, self._listen, PORT)
        asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @staticmethod
    async def _end() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._turn += 1
        for number in range(len(self._backends)):
            backend = self._backends[(self._turn + number) % len(self._backends)]
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(_is_ready(backend), 3)
                there = await asyncio.open_connection(backend, PORT)
                await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))
                return
        writer.close()


async def _is_ready(backend: str) -> None:
    """Return when an API server says so; raise ConnectionError if it does not."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(backend, PORT, ssl=context)
    writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
    answer = await reader.readline()
    writer.close()
    if b" 200 " not in answer:
        raise ConnectionError(answer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The nodes with their base, and the load balancer, whose API servers are still to come."""
    inventory = write_inventory(
        tmp_path_factory.mktemp("planes"),
        site="planes",
        third_octet=OCTET,
        gpu_nodes=1,
        more_control_planes=len(PLANES) - 1,
        variables={"railweld_control_plane_endpoint": f"{ENDPOINT}:{PORT}"},
    )
    backends = [f"10.213.{OCTET}.{last}" for last in PLANES.values()]
    with running_lab(inventory) as lab, Relay(ENDPOINT, backends):
        provide(inventory)
        lab.play().assert_ok()
        yield Cluster(lab)


def etcd_members(cluster: Cluster) -> set[str]:
    """Names of the members that etcd itself knows, asked with the API server's own certificate."""
    certificates = "/etc/kubernetes/pki/etcd"
    listing = cluster.kubectl(
        *("exec", "--namespace", "kube-system", "etcd-head1", "--", "etcdctl"),
        *("--cacert", f"{certificates}/ca.crt", "--cert", f"{certificates}/peer.crt"),
        *("--key", f"{certificates}/peer.key", "member", "list", "--write-out", "simple"),
    )
    return {line.split(", ")[2] for line in listing.splitlines()}


def test_three_nodes_carry_the_api_behind_its_address(cluster: Cluster) -> None:
    cluster.deploy().assert_ok()
    assert cluster.ready() == dict.fromkeys(NODES, True)
    assert f"server: https://{ENDPOINT}:{PORT}" in cluster.kubeconfig.read_text()
    assert f"https://{ENDPOINT}:{PORT}" in cluster.lab.node(
        "gpu1", "cat", "/etc/kubernetes/kubelet.conf"
    )
    assert etcd_members(cluster) == set(PLANES)


def test_second_run_changes_nothing(cluster: Cluster) -> None:
    assert set(cluster.deploy().assert_ok().changed().values()) == {0}


def test_death_of_the_first_node_takes_nothing_along(cluster: Cluster) -> None:
    cluster.lab.fault("power-cut", "head1", "seconds=-1")
    eventually(cluster.ready, lambda found: not found["head1"])
    assert cluster.run("while-away", "print('runs')", node="gpu1").strip() == "runs"
    cluster.lab.clear("power-cut", "head1")
    eventually(cluster.ready, lambda found: found == dict.fromkeys(NODES, True))
    assert set(cluster.deploy().assert_ok().changed().values()) == {0}


def test_removed_member_leaves_etcd_too_and_joins_again(cluster: Cluster) -> None:
    run = cluster.lab.play("-e", "node=head3", playbook="playbooks/remove-node.yml", timeout=1200)
    run.assert_ok()
    assert etcd_members(cluster) == {"head1", "head2"}
    cluster.deploy().assert_ok()
    assert etcd_members(cluster) == set(PLANES)
    assert cluster.ready() == dict.fromkeys(NODES, True)


def test_member_that_never_came_back_is_taken_out_of_etcd_and_made_anew(cluster: Cluster) -> None:
    cluster.lab.fault("power-cut", "head2", "seconds=-1")
    run = cluster.lab.play("-e", "node=head2", playbook="playbooks/remove-node.yml", timeout=1200)
    assert "was not reset" in run.assert_ok().output
    assert etcd_members(cluster) == {"head1", "head3"}
    cluster.lab.clear("power-cut", "head2")
    cluster.deploy().assert_ok()
    assert etcd_members(cluster) == set(PLANES)
    assert cluster.ready() == dict.fromkeys(NODES, True)


def test_second_cluster_is_never_started_beside_the_first(cluster: Cluster) -> None:
    """The node that started the cluster lost its disk; the others still are that cluster."""
    cluster.lab.node("head1", "kubeadm", "reset", "--force")
    run = cluster.deploy()
    assert run.returncode != 0
    assert "head2" in run.output
    assert not cluster.lab.node("head1", "sh", "-c", "ls /var/lib/etcd/member 2>/dev/null || true")
