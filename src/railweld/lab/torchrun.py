#!/usr/bin/env python3
"""Stand-in of the lab for `torchrun`: a real rendezvous over TCP, and an all-reduce over it.

Takes torchrun's options and their PET_ variables. Every node's process meets the others at the
rendezvous endpoint, whose host is the one that is told so, or that has the address. Instead of the
user's script, each of the workers of each node takes part in a sum over all ranks; each node prints
what it got, and everything ends with 1 if the sum is wrong.

TORCHRUN_SECONDS: how long to compute. TORCHRUN_FAIL=RANK:STATUS: that rank ends so.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time

JOIN_SECONDS = 300.0


def option(parser: argparse.ArgumentParser, *names: str, default: str = "") -> None:
    """An option with torchrun's default from the environment."""
    variable = "PET_" + names[0].strip("-").replace("-", "_").upper()
    parser.add_argument(*names, default=os.environ.get(variable, default))


def arguments() -> argparse.Namespace:
    """The command line, as far as it matters here."""
    parser = argparse.ArgumentParser(prog="torchrun", description=__doc__)
    option(parser, "--nnodes", default="1")
    option(parser, "--nproc-per-node", "--nproc_per_node", default="1")
    option(parser, "--node-rank", "--node_rank", default="0")
    option(parser, "--rdzv-backend", "--rdzv_backend", default="static")
    option(parser, "--rdzv-endpoint", "--rdzv_endpoint")
    option(parser, "--rdzv-id", "--rdzv_id", default="none")
    option(parser, "--rdzv-conf", "--rdzv_conf")
    option(parser, "--master-addr", "--master_addr", default="127.0.0.1")
    option(parser, "--master-port", "--master_port", default="29500")
    parser.add_argument("script")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    return parser.parse_args()


def is_host(conf: str, address: str) -> bool:
    """Whether this node serves the rendezvous: told so, or by its own addresses as torch does."""
    told = dict(each.split("=", 1) for each in conf.split(",") if "=" in each)
    if "is_host" in told:
        return told["is_host"].lower() in ("1", "true", "t", "yes", "y")
    name = socket.gethostname()
    if address in ("localhost", name):
        return True
    try:
        return address in {each[4][0] for each in socket.getaddrinfo(name, None)}
    except OSError:
        return False


def receive(link: socket.socket) -> dict[str, int]:
    """One line of JSON."""
    data = b""
    while not data.endswith(b"\n"):
        piece = link.recv(4096)
        if not piece:
            raise ConnectionError("the other end has gone")
        data += piece
    found: dict[str, int] = json.loads(data)
    return found


def send(link: socket.socket, **content: object) -> None:
    """One line of JSON."""
    link.sendall(json.dumps(content).encode() + b"\n")


def serve(address: str, port: int, nodes: int, mine: int) -> tuple[int, int]:
    """Gather every node's number of ranks, give out ranks, sum; returns first rank and sum."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen(nodes)
        server.settimeout(JOIN_SECONDS)
        links = [server.accept()[0] for _ in range(nodes - 1)]
    counts = [mine, *(receive(link)["ranks"] for link in links)]
    world = sum(counts)
    for number, link in enumerate(links, 1):
        send(link, first=sum(counts[:number]), world=world)
    total = partial(0, mine) + sum(receive(link)["sum"] for link in links)
    for link in links:
        send(link, sum=total)
        link.close()
    check(total, world)
    return 0, world


def join(address: str, port: int, mine: int) -> tuple[int, int]:
    """Meet the host and take part; returns first rank and size of the world."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            link = socket.create_connection((address, port), timeout=JOIN_SECONDS)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    with link:
        send(link, ranks=mine)
        told = receive(link)
        send(link, sum=partial(told["first"], mine))
        check(receive(link)["sum"], told["world"])
        return told["first"], told["world"]


def partial(first: int, count: int) -> int:
    """Sum of this node's ranks."""
    time.sleep(float(os.environ.get("TORCHRUN_SECONDS", "0")))
    return sum(range(first, first + count))


def check(total: int, world: int) -> None:
    """Every rank has to have counted once."""
    if total != world * (world - 1) // 2:
        sys.exit(f"all-reduce: found {total}, expected {world * (world - 1) // 2}")


def main() -> int:
    """One node's part."""
    options = arguments()
    nodes = int(options.nnodes.rpartition(":")[2])
    mine = int(options.nproc_per_node)
    address, _, port = options.rdzv_endpoint.rpartition(":")
    if options.rdzv_backend == "static" or not port:
        address, port = options.master_addr, options.master_port
        host = int(options.node_rank) == 0
    else:
        host = is_host(options.rdzv_conf, address)
    if nodes == 1:
        first, world = 0, mine
    elif host:
        first, world = serve(address, int(port), nodes, mine)
    else:
        first, world = join(address, int(port), mine)
    last = first + mine - 1
    sys.stdout.write(f"ranks {first}-{last} of {world}: sum {world * (world - 1) // 2}\n")
    sys.stdout.flush()
    rank, _, status = os.environ.get("TORCHRUN_FAIL", "").partition(":")
    return int(status) if rank.isdecimal() and first <= int(rank) <= last else 0


if __name__ == "__main__":
    sys.exit(main())
