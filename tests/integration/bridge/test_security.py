"""What an ordinary user tries, and does not get: docs/bridge.md's rules, one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from railweld import names
from railweld.bridge.server import GUESTS
from tests.integration.bridge.slurmlab import wait_for
from tests.integration.bridge.world import LOG, World
from tests.integration.stack.plane import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.deep]

SLEEP = "#!/bin/bash\necho up\nsleep 300\n"

#: Sends frames to the daemon as whoever runs it, and prints what comes back.
FORGE = """
import json, socket, sys
from railweld.bridge.pod import wire
link = socket.socket(socket.AF_UNIX)
link.settimeout(20)
link.connect("/run/railweld/bridge.sock")
content = json.loads(sys.argv[1])
raw = bytes.fromhex(content.pop("raw", ""))
try:
    if raw:
        link.sendall(raw)
    else:
        link.sendall(wire.control(**content))
        link.sendall(wire.frame(wire.ENVIRONMENT, b"A=b"))
        link.sendall(wire.frame(wire.SCRIPT, b"#!/bin/sh\\nid\\n"))
except BrokenPipeError:
    pass  # refused by its first words; the answer is there
decoder = wire.Decoder()
try:
    while data := link.recv(65536):
        for kind, payload in decoder.feed(data):
            print(kind, payload.decode(errors="replace"))
except OSError as error:
    print("error", error)
"""


def forge(world: World, user: str, **content: Any) -> str:
    """What the daemon says to a request that somebody made by hand."""
    done = world.slurm.run(
        "env",
        f"PYTHONPATH={ROOT}/src",
        "python3",
        "-c",
        FORGE,
        json.dumps(content),
        user=user,
        check=False,
    )
    return done.stdout + done.stderr


def attach(world: World, user: str, job: int = 1, **more: Any) -> str:
    request = {
        "op": "attach",
        "version": 1,
        "job": str(job),
        "restart": "0",
        "arguments": [],
        "directory": "/home/bob",
        "umask": 18,
        "apart": False,
        "created": None,
        "written": [],
        **more,
    }
    return forge(world, user, **request)


def test_nobody_attaches_to_somebody_elses_job(world: World) -> None:
    job = world.slurm.script(SLEEP)
    world.has_said(job, "up\n")
    pods = [pod["metadata"]["uid"] for pod in world.pods(job)]
    assert "is not yours" in attach(world, "bob", job)
    # A name of an object that the real client may show does not help either.
    assert "is not yours" in attach(world, "bob", job, created=f"slurm-lab-{job}-r0")
    assert [pod["metadata"]["uid"] for pod in world.pods(job)] == pods
    assert world.slurm.state(job) == "RUNNING"


def test_the_owner_gets_no_second_batch_step(world: World) -> None:
    job = world.slurm.script(SLEEP)
    world.has_said(job, "up\n")
    assert "attached already" in attach(world, "alice", job)
    assert world.output(job).count("up\n") == 1


def test_a_client_of_another_release_is_told_so_and_the_job_runs_on(world: World) -> None:
    job = world.slurm.script(SLEEP)
    world.has_said(job, "up\n")
    assert "found version 99 of the bridge's protocol" in attach(world, "alice", job, version=99)
    assert world.slurm.state(job) == "RUNNING"
    assert len(world.live_pods(job)) == 1


def test_no_pod_without_a_running_job_of_a_bridge_partition(world: World) -> None:
    slurm = world.slurm
    assert "no such job" in attach(world, "bob", 4_000_000)
    held = slurm.script("#!/bin/sh\ntrue\n", "--hold", user="bob")
    assert "expected RUNNING" in attach(world, "bob", held)
    plain = slurm.script(SLEEP, "--partition=plain", user="bob")
    slurm.wait_state(plain, "RUNNING")
    assert "found it in partition plain" in attach(world, "bob", plain)
    done = slurm.script("#!/bin/sh\ntrue\n", user="bob")
    slurm.wait_state(done, "COMPLETED")
    before = len(world.objects("jobs", done))
    # Replayed after its end: nothing runs a second time.
    answer = attach(world, "bob", done)
    assert "expected RUNNING" in answer or "nothing of it is left" in answer
    assert len(world.objects("jobs", done)) == before
    assert world.objects("jobs", held) == world.objects("jobs", plain) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"job": "1 or 1=1"}, "expected a number"),
        ({"restart": "-1"}, "expected a number"),
        ({"directory": "relative"}, "no batch step sends"),
        ({"arguments": [1]}, "no batch step sends"),
        ({"outputs": ["relative"]}, "no batch step sends"),
        ({"outputs": {"1": "/x"}}, "no batch step sends"),
        ({"op": "delete"}, "found the operation"),
        ({"op": "epilog", "node": "gpu1"}, "for Slurm's own processes"),
        ({"version": 99}, "different releases"),
        ({"raw": "ffffffff01"}, ""),
        ({"raw": "00000003017b7b"}, ""),
        ({"raw": "0000000203" + "00"}, ""),
    ],
)
def test_malformed_requests_are_refused_and_the_daemon_lives(
    world: World, change: dict[str, Any], said: str
) -> None:
    before = world.metric("refused_total", by="client")
    answer = (forge if "raw" in change else attach)(world, "bob", **change)
    assert said in answer
    wait_for(lambda: world.metric("refused_total", by="client") > before)
    assert world.get("/readyz") == "ok\n"


def test_system_accounts_and_root_get_no_pods(world: World) -> None:
    world.slurm.sh("mkdir -p /home/system; chown system /home/system")
    for user, home in (("system", "/home/system"), ("root", "/data")):
        argv = ("sbatch", "--parsable", f"--output={home}/%j.out", f"--chdir={home}")
        job = int(world.slurm.run(*argv, user=user, stdin="#!/bin/sh\nid\n").stdout)
        world.slurm.wait_state(job, "FAILED")
        assert "system accounts do not run here" in world.slurm.read(f"{home}/{job}.out")
        assert world.objects("jobs", job) == []


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("evil.example/x:1", "expected one from registry.site/ml"),
        ("registry.site/ml-evil/x:1", "expected one from registry.site/ml"),
        ("registry.site/ml/../x:1", "expected REGISTRY/PATH:TAG"),
        ("registry.site/ml/x:latest", "a tag other than latest"),
        ("registry.site/ml/x", "a tag other than latest"),
    ],
)
def test_images_come_from_the_allowed_places_only(world: World, image: str, said: str) -> None:
    world.restart_daemon("TERM", registries=["registry.site/ml"])
    try:
        job = world.slurm.script(f"#!/bin/sh\n#BRIDGE image={image}\necho ran\n")
        world.slurm.wait_state(job, "FAILED")
        assert said in world.output(job)
        assert world.objects("jobs", job) == []
    finally:
        world.restart_daemon("TERM", registries=[])


def test_a_script_cannot_ask_for_more_than_mode_and_image(world: World) -> None:
    job = world.slurm.script("#!/bin/sh\n#BRIDGE hostPath=/etc privileged=yes\ntrue\n")
    world.slurm.wait_state(job, "FAILED")
    assert "expected mode=... or image=..." in world.output(job)


def test_the_pod_is_the_users_and_has_no_way_into_the_cluster(world: World) -> None:
    job = world.slurm.script(
        "#!/bin/bash\nid -u\nls /var/run/secrets/kubernetes.io 2>&1\n"
        "touch /run/railweld/job/x 2>&1; cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n' | "
        "grep -ci token\nsleep 1\n",
        user="bob",
    )
    world.slurm.wait_state(job, "COMPLETED")
    output = world.output(job, "bob")
    assert output.splitlines()[0] == "2002"
    assert "No such file or directory" in output
    assert "Read-only file system" in output or "Permission denied" in output
    assert output.splitlines()[-1] == "0"
    spec = world.pods(job)[0]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["containers"][0]["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_users_read_no_secret_and_make_no_pod(world: World) -> None:
    def may(verb: str, what: str, *who: str) -> str:
        argv = ("auth", "can-i", verb, what, "-n", names.NAMESPACE_JOBS, *who)
        return world.plane.kubectl(*argv, check=False).stdout.strip()

    user = ("--as=alice", "--as-group=railweld:users", "--as-group=system:authenticated")
    assert may("get", "pods", *user) == "yes"
    for verb, what in (
        ("get", "secrets"),
        ("create", "pods"),
        ("create", "jobs.batch"),
        ("create", "pods/exec"),
        ("patch", "jobs.batch"),
    ):
        assert may(verb, what, *user) == "no", (verb, what)
    account = f"system:serviceaccount:{names.NAMESPACE_SYSTEM}:{names.SERVICE_ACCOUNT_BRIDGE}"
    argv = ("auth", "can-i", "create", "pods", "-n", "kube-system", f"--as={account}")
    assert world.plane.kubectl(*argv, check=False).stdout.strip() == "no"


def test_the_environment_smuggles_nothing(world: World) -> None:
    job = world.slurm.script(
        "#!/bin/bash\nenv\n",
        "--export=ALL,LD_PRELOAD=/tmp/x.so,KUBECONFIG=/tmp/k,FINE=yes",
        env={"PYTHONPATH": "/tmp/evil", "PYTHONSTARTUP": "/tmp/evil.py", "BASH_ENV": "/tmp/e"},
    )
    world.slurm.wait_state(job, "COMPLETED")
    output = world.output(job)
    assert "FINE=yes" in output
    for name in ("LD_PRELOAD=", "KUBECONFIG=", "PYTHONPATH=", "PYTHONSTARTUP=", "BASH_ENV="):
        assert name not in output


def test_the_output_file_is_opened_as_the_user_and_follows_no_rights(world: World) -> None:
    slurm = world.slurm
    before = slurm.read("/etc/slurm/slurm.conf")
    slurm.sh("ln -sf /etc/slurm/slurm.conf link.out; ln -sf /root/new.out new.out", user="alice",
             cwd="/home/alice")  # fmt: skip
    for path in ("link.out", "new.out", "/root/direct.out"):
        job = slurm.script("#!/bin/sh\necho pwned\n", f"--output={path}")
        wait_for(lambda j=job: slurm.state(j) not in ("PENDING", "RUNNING", "CONFIGURING",
                                                      "COMPLETING"))  # fmt: skip
        assert slurm.state(job) != "COMPLETED"
        assert world.objects("jobs", job) == []
    assert slurm.read("/etc/slurm/slurm.conf") == before
    assert slurm.sh("ls /root/new.out /root/direct.out 2>/dev/null; true") == ""


def test_an_agent_without_the_jobs_key_is_hung_up_on(world: World) -> None:
    job = world.slurm.script(SLEEP)
    world.has_said(job, "up\n")
    log = world.slurm.sh(f"grep '\"serving\"' {LOG} | tail -n 1")
    port = json.loads(log)["hub"]
    text = (
        "import socket, json, struct, hashlib\n"
        f"link = socket.create_connection(('127.0.0.1', {port}), 20)\n"
        "link.recv(4096)\n"
        f"words = json.dumps(dict(job='slurm-lab-{job}-r0', node=0, nonce='00' * 16, "
        "proof='00' * 32)).encode()\n"
        "link.sendall(struct.pack('!IB', len(words) + 1, 1) + words)\n"
        "print(link.recv(4096))\n"
    )
    before = world.metric("refused_total", by="agent")
    assert world.slurm.run("python3", "-c", text, user="bob").stdout.strip() == "b''"
    assert world.metric("refused_total", by="agent") == before + 1
    assert world.slurm.state(job) == "RUNNING"


#: Holds so many connections to the daemon that say nothing, and opens them again.
IDLE = """
import select, socket, sys, time
held, count = {}, int(sys.argv[1])
poll = select.poll()
while True:
    while len(held) < count:
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        try:
            link.connect("/run/railweld/bridge.sock")
        except OSError:
            link.close()
            break
        held[link.fileno()] = link
        poll.register(link, select.POLLIN)
    for number, _ in poll.poll():
        poll.unregister(number)
        held.pop(number).close()
    time.sleep(5)
"""
#: Shows the job's own key as its agent, and has much to tell. Writes down how much was taken.
TELLS = f"""
import os, socket, sys, time
sys.path.insert(0, "{names.POD_AGENT}")
from railweld.bridge.pod import wire
key = open("{names.POD_JOB}/key", "rb").read()
agent = open("/proc/1/environ").read().split("\\0")
agent = dict(each.split("=", 1) for each in agent if "=" in each)
job, rank, sent = agent["{names.POD_VARIABLE_JOB}"], 0, 0
host, port = agent["RAILWELD_HUB"].rsplit(":", 1)

def frames(link):
    decoder = wire.Decoder()
    while data := link.recv(65536):
        for _, payload in decoder.feed(data):
            yield wire.parse_control(payload)

note = "x" * 490
while True:
    try:
        with socket.create_connection((host, int(port)), 10) as link:
            heard = frames(link)
            theirs, mine = bytes.fromhex(next(heard)["nonce"]), os.urandom(wire.NONCE_BYTES)
            session = wire.session(key, job, rank, theirs, mine)
            proof = wire.proof(session, b"agent")
            link.sendall(wire.control(job=job, node=rank, nonce=mine.hex(), proof=proof))
            next(heard)
            seal = wire.Seal(session, server=False)
            pod = agent["RAILWELD_POD_UID"]
            link.sendall(seal.control(state="started", pod=pod, address="", port=0))
            link.setblocking(True)
            while True:
                link.sendall(b"".join(seal.control(note=note) for _ in range(1000)))
                sent += 1000 * len(note)
                open("/data/told", "w").write(str(sent))
    except (OSError, StopIteration):
        time.sleep(0.1)
"""


@pytest.fixture
def idle(world: World) -> Iterator[None]:
    """An ordinary user who holds more connections than the daemon has descriptors."""
    argv = ("python3", "-c", IDLE, "10500")
    pids = [
        world.slurm.background(*argv, log=f"/tmp/idle-{number}.log", user="bob")
        for number in range(2)
    ]
    yield
    world.slurm.signal("KILL", *pids)


def descriptors(world: World) -> int:
    return int(world.slurm.sh(f"ls /proc/{world.pid}/fd | wc -l"))


@pytest.mark.usefixtures("idle")
def test_a_user_who_holds_connections_keeps_nobody_elses_job_from_running(world: World) -> None:
    wait_for(lambda: descriptors(world) > GUESTS)
    job = world.slurm.script("#!/bin/sh\necho ran\n")
    # Its epilogs, too, get through: they hold the job in COMPLETING until they are answered.
    world.slurm.wait_state(job, "COMPLETED", seconds=45)
    assert "ran\n" in world.output(job)
    assert GUESTS < descriptors(world) < GUESTS + 500
    assert world.get("/readyz") == "ok\n"


def test_what_a_job_tells_a_stopped_client_does_not_pile_up(world: World) -> None:
    world.restart_daemon("TERM")
    world.slurm.sh("rm -f /data/told")
    text = f"#!/bin/bash\necho up\nsleep 3\nexec python3 - <<'END'\n{TELLS}\nEND\n"
    job = world.slurm.script(text)
    world.has_said(job, "up\n")
    clients = world.slurm.pids("/usr/libexec/railweld/exec .*slurm_script")
    world.slurm.signal("STOP", *clients)
    try:
        before = world.metric("resident_bytes")
        wait_for(
            lambda: int(world.slurm.sh("cat /data/told", check=False) or 0) > 150_000_000,
            what=lambda: world.output(job) + world.log(),
        )
        assert world.metric("resident_bytes") - before < 50_000_000
    finally:
        world.slurm.signal("CONT", *clients)
    world.has_said(job, "lines of the bridge were left out")
