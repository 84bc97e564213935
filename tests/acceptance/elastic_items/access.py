#!/usr/bin/env python3
"""Item 8 of the elastic control plane: every method refuses callers that may not call it, and bytes of any kind at every port and
socket neither crash a process nor make it grow. What another local user gets: builds_and_machines_items/other_user.py."""

import contextlib
import json
import os
import pathlib
import random
import re
import socket
import ssl
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from builds_and_machines_items.other_user import family
from harness import binary, check, item, main, passed, skip_soak, wait_until
from programs import fuzzed, tested

COORDINATOR = "//coordinator:meshrun-coordinator"
WORKER = "//worker:meshrun-worker"
METHODS = [f"/meshrun.v1.{name}" for name in (
    "JobService/SubmitJob", "JobService/GetJob", "JobService/ListJobs", "JobService/WatchJob", "JobService/ReadLogs",
    "JobService/ReadPictures", "JobService/CancelJob", "ClusterService/ListNodes", "SessionService/OpenSession", "SessionService/UploadLog",
    "StoreService/SetValues", "StoreService/EnterBarrier", "AgentService/RegisterRank", "AgentService/WatchGeneration",
    "NoService/NoMethod")]
# Beyond what allocators keep and threads take at the first calls.
MOST_GROWTH = 48 << 20
# Time for each parser, in seconds.
FUZZED = 60


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name, value):
    """HPACK: literal, without indexing."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def a_call(rng):
    """A call over HTTP/2 with a message of no meaning: the server parses the message itself."""
    headers = b"".join(header(*pair) for pair in (
        (":method", "POST"), (":scheme", "http"), (":path", rng.choice(METHODS)), (":authority", "localhost"),
        ("te", "trailers"), ("content-type", "application/grpc"), ("meshrun-token", "x" * rng.randrange(30))))
    body = b"".join(bytes([rng.randrange(1, 30) << 3 | rng.choice((0, 1, 2, 5))]) + rng.randbytes(rng.randrange(9))
                    for _ in range(rng.randrange(40)))
    length = len(body) if rng.random() < 0.8 else rng.randrange(1 << 32)
    return (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers) +
            frame(0, rng.choice((0, 1)), 1, b"\0" + struct.pack(">I", length) + body))


def mutated(rng, data):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 12)):
        at = rng.randrange(len(data) + 1)
        way = rng.randrange(3)
        if way == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif way == 1:
            del data[at:at + rng.randrange(20)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(20))
    return bytes(data)


def an_input(rng):
    way = rng.randrange(3)
    return rng.randbytes(rng.randrange(2000)) if way == 0 else a_call(rng) if way == 1 else mutated(rng, a_call(rng))


def send(connect, data):
    """Whether it was sent; what is answered is read and thrown away."""
    with contextlib.suppress(OSError), connect() as s:
        s.settimeout(0.02)
        s.sendall(data)
        with contextlib.suppress(OSError):
            s.recv(1 << 16)
        return True
    return False


def unix(path, kind=socket.SOCK_STREAM):
    def connect():
        s = socket.socket(socket.AF_UNIX, kind)
        s.settimeout(1)
        s.connect(str(path))
        return s

    return connect


def figures(pids):
    """Resident bytes and descriptors of each."""
    out = {}
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/status").read_text()
        rss = int(fields.split("VmRSS:")[1].split()[0]) * 1024
        out[pid] = (rss, len(os.listdir(f"/proc/{pid}/fd")))
    return out


def daemon(site, command):
    read_end, write_end = os.pipe()
    process = site.start([*map(str, command), "--ready-fd", str(write_end)], pass_fds=[write_end],
                         stderr=open(site.directory / "daemons.log", "a"))
    os.close(write_end)
    with os.fdopen(read_end) as ready:
        line = ready.readline()
    check(line, f"{command[0]} did not start: {(site.directory / 'daemons.log').read_text()[-500:]}")
    return process, json.loads(line)


def tables():
    """The tests that call every method with each kind of credential."""
    count = 0
    for target in ("//tests/core:core_test", "//tests/coordinator/server:access_test", "//tests/worker:daemon_access_test"):
        names, _ = tested(target, "RolesTest.*:AccessTest.*:DaemonAccessTest.*")
        count += len(names)
    check(count >= 15, f"only {count} tests of who may call what passed")
    return count


def fuzz_targets(site):
    """Each parser of bytes from outside under libFuzzer, for a minute: what is said of them."""
    _, said = tested("//tests/fuzz:fixed_inputs_test", "*")
    names = re.findall(r"^(\w+): \d+ inputs$", said, re.MULTILINE)
    check(names, f"//tests/fuzz:fixed_inputs_test names no parser: {said[-300:]}")
    return fuzzed(site, names, FUZZED)


def run(site):
    called = "" if skip_soak() else f"{tables()} tests call every method with each kind of credential; "
    fuzzed = "" if skip_soak() else f"; {fuzz_targets(site)}"
    meshrun, state = binary("//client:meshrun"), site.directory

    def call(*words):
        code, out, err, _ = site.run([meshrun, *words])
        check(code == 0, f"meshrun {' '.join(map(str, words))} exited {code}: {out}{err}")
        return out

    call("ca", "init", "--ca", state / "ca")
    for name, words in (("head", ["--role", "coordinator"]), ("reader", ["--role", "read", "--user", "reader"])):
        call("ca", "issue", "--ca", state / "ca", "--out", state / name, *words)
    tls = [word for flag, file in (("cert", "tls.crt"), ("key", "tls.key"), ("ca", "ca.crt"))
           for word in (f"--tls-{flag}", state / "head" / file)]
    secure, ready = daemon(site, [binary(COORDINATOR), "--listen", "127.0.0.1:0", "--state-dir", state / "secure", *tls])
    port = int(ready["address"].rsplit(":", 1)[1])
    local = state / "run"
    local.mkdir(mode=0o700)
    plain, _ = daemon(site, [binary(COORDINATOR), "--listen", f"unix:{local}/c.sock", "--state-dir", state / "plain"])
    worker, _ = daemon(site, [binary(WORKER), "--coordinator", f"unix:{local}/c.sock", "--state-dir", state / "w"])
    rank = site.script("rank", f"#!/bin/sh\necho $MESHRUN_AGENT $MESHRUN_REPORT > {state}/up.$RANK\nexec sleep 600\n")
    job = json.loads(call("submit", "--coordinator", f"unix:{local}/c.sock", "-o", "json", "--procs-per-node", "2", "--", rank))
    job_id = job.get("jobId") or job["job"]["jobId"]
    wait_until(lambda: all((state / f"up.{r}").exists() and (state / f"up.{r}").read_text().endswith("\n") for r in (0, 1)),
               30, "the ranks run")
    agent, report = (state / "up.0").read_text().split()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(state / "reader/ca.crt")
    context.load_cert_chain(state / "reader/tls.crt", state / "reader/tls.key")
    context.set_alpn_protocols(["h2"])

    def tcp():
        return socket.create_connection(("127.0.0.1", port), timeout=1)

    targets = {"the TLS port": tcp, "inside TLS": lambda: context.wrap_socket(tcp()), "the Unix socket": unix(local / "c.sock"),
               "the daemon's socket": unix(state / "w/agent.sock"), "the agent's socket": unix(agent.removeprefix("unix:")),
               "the report socket": unix(report, socket.SOCK_DGRAM)}
    processes = family(secure.pid, plain.pid, worker.pid)
    rng, sent = random.Random(8), dict.fromkeys(targets, 0)

    def fuzz(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name, connect in targets.items():
                sent[name] += send(connect, an_input(rng))

    seconds = 4 if skip_soak() else 60
    fuzz(seconds / 4)
    # Without those that were on their way out, or on their way to another program.
    processes &= family(secure.pid, plain.pid, worker.pid)
    before = figures(processes)
    fuzz(seconds)
    check(all(count > 0 for count in sent.values()), f"nothing was sent to some: {sent}")

    def settled():
        return all(now[1] <= before[pid][1] + 4 for pid, now in figures(processes).items())

    check(family(secure.pid, plain.pid, worker.pid) >= processes, "a process has ended")
    wait_until(settled, 20, "descriptors are given back")
    grown = {pid: now[0] - before[pid][0] for pid, now in figures(processes).items()}
    check(max(grown.values()) < MOST_GROWTH, f"processes have grown: {grown}")
    described = json.loads(call("describe", "--coordinator", f"unix:{local}/c.sock", job_id, "-o", "json"))
    check(described["job"]["state"] == "JOB_STATE_RUNNING", f"the job is {described['job']['state']}")
    flags = ["--tls-cert", state / "reader/tls.crt", "--tls-key", state / "reader/tls.key", "--tls-ca", state / "reader/ca.crt"]
    call("nodes", "--coordinator", f"127.0.0.1:{port}", *flags)
    return passed(f"{called}{sum(sent.values())} inputs at "
                  f"{len(targets)} ports and sockets in {seconds:.0f} s: {len(processes)} processes live, the largest growth "
                  f"is {max(grown.values()) >> 10} KiB{fuzzed}", left_out="a minute of inputs, libFuzzer" if skip_soak() else "")


if __name__ == "__main__":
    item(8, "who may call what; bytes of any kind")(run)
    sys.exit(main(__doc__))
