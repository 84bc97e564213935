"""Item 1, second part, and item 2: peers that hold connections, send what no client sends, or ask without end."""

import contextlib
import json
import pathlib
import resource
import socket
import subprocess
import sys
import threading
import time

from harness import check, lenient
from programs import binary
from many_users_items.faults import fault
from many_users_items.shared_cluster import SharedCluster

SILENT = 1500


def memory_of(process):
    """Bytes that are resident."""
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


def slowest_submit(cluster, count):
    """Seconds of ada's slowest submit."""
    slowest = 0.0
    for _ in range(count):
        began = time.monotonic()
        cluster.submit("ada", ["--hold"], "true")
        slowest = max(slowest, time.monotonic() - began)
    return slowest


@contextlib.contextmanager
def silent_connections(cluster, count):
    """They say nothing; those that are closed are opened again by nobody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 512)), hard))
    host, port = cluster.site.env["MESHRUN_COORDINATOR"].rsplit(":", 1)
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(socket.create_connection((host, int(port)), timeout=lenient(10))) for _ in range(count)]


def silent_peers(site, limit):
    cluster = SharedCluster(site, coordinator_within=("prlimit", f"--nofile={limit}"))
    cluster.add("n1")
    cluster.succeeds([cluster.submit("ada", [], "true")])
    before = memory_of(cluster.coordinator)
    with silent_connections(cluster, SILENT):
        slowest = slowest_submit(cluster, 5)
        more = memory_of(cluster.coordinator) - before
    check(slowest < lenient(1), f"a submit took {slowest:.2f} s beside them")
    check(not cluster.events(kind="NodeLost"), "the worker's session was lost")
    check(more < 256 << 20, f"the coordinator grew by {more >> 20} MiB")
    cluster.succeeds([cluster.submit("ada", [], "true")])
    return f"submits within {slowest:.2f} s, {more >> 20} MiB more"


@fault("1,500 silent connections without a certificate, at a soft limit of 1,024 descriptors", alone=True)
def silent_peers_at_a_soft_limit(site):
    return silent_peers(site, "1024:")


@fault("the same where 1,024 is the hard limit", alone=True)
def silent_peers_at_a_hard_limit(site):
    return silent_peers(site, "1024:1024")


@fault("70 held jobs with a megabyte of arguments", alone=True)
def large_jobs(site):
    cluster = SharedCluster(site)
    cluster.add("n1")
    arguments = ["a" * 120_000] * 8
    for i in range(70):
        cluster.submit(("ada", "bob")[i % 2], ["--hold"], "true", *arguments)
    before = memory_of(cluster.coordinator)
    times = {}
    for words in (("ps",), ("ps", "-o", "json"), ("events",), ("describe",)):
        code, out, err, seconds = cluster.run("ada", *words)
        check(code == 0, f"{' '.join(words)} exited {code}: {err.strip()[-300:]}")
        times[" ".join(words)] = seconds
        if words == ("ps", "-o", "json"):
            listed = len(json.loads(out)["jobs"])
            check(listed == 70, f"ps lists {listed} of 70")
    slowest = max(times, key=times.get)
    return f"{slowest} takes {times[slowest]:.2f} s, the most of 4 commands; {memory_of(cluster.coordinator) - before >> 20} MiB more"


# Calls of good will that would end what others do: an operator may.
HARMFUL = ("DrainNode", "UndrainNode", "RemoveNode", "CancelJob", "SignalJob", "UpdateJob")
# As on another host: what is measured is the coordinator. The kernel shares out processors by sessions first.
ELSEWHERE = ("sh", "-c", 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@"', "sh")


def a_byte_a_second(cluster):
    """How long the coordinator bears a handshake of one byte a second."""
    host, port = cluster.site.env["MESHRUN_COORDINATOR"].rsplit(":", 1)
    began = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=lenient(10)) as connection:
        with contextlib.suppress(OSError):
            # A TLS record that promises 512 bytes.
            for byte in b"\x16\x03\x01\x02\x00" + b"\x01" * 95:
                connection.sendall(bytes([byte]))
                connection.settimeout(1)
                try:
                    if not connection.recv(1):
                        break
                except TimeoutError:
                    pass
    return time.monotonic() - began


class Peaks:
    """The coordinator's memory, looked at all the time."""

    def __init__(self, process):
        self.process, self.before, self.most = process, memory_of(process), 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.over.wait(0.05):
            self.most = max(self.most, memory_of(self.process))

    def more(self):
        self.over.set()
        self.thread.join()
        return self.most - self.before


def every_role_at_once(site, seconds, connections):
    """Returns (figures, whether they are within their bounds)."""
    # An operator submits too, who is no user of a host.
    cluster = SharedCluster(site, separate_users=False)
    cluster.add("n1")
    for name, role in (("carol", "read"), ("dora", "operate")):
        cluster.issue(name, "--role", role, "--user", name)
    cluster.issue("n9", "--role", "worker", "--node", "n9")
    cluster.succeeds([cluster.submit("ada", [], "true")])
    jobs = [cluster.submit(user, ["--hold"], "true") for user in ("ada", "bob")]
    hostile_caller = binary("//tests/coordinator/hostile:hostile_caller")
    peaks = Peaks(cluster.coordinator)
    until = time.monotonic() + seconds
    callers = []
    for name, role in (("bob", "submit"), ("carol", "read"), ("dora", "operate"), ("n9", "worker")):
        skipped = HARMFUL if role == "operate" else ()
        callers.append(site.start(
            [*ELSEWHERE, hostile_caller, "--coordinator", site.env["MESHRUN_COORDINATOR"],
             "--role", role, "--node", name, "--seconds", seconds, *cluster.tls(name),
             *(word for job in jobs for word in ("--job", job)), *(word for method in skipped for word in ("--skip", method))],
            stdout=subprocess.PIPE))
    callers.append(site.start(
        [*ELSEWHERE, sys.executable, pathlib.Path(__file__).with_name("rapid_reset.py"),
         *site.env["MESHRUN_COORDINATOR"].rsplit(":", 1), cluster.certificates / "carol", seconds], stdout=subprocess.PIPE))
    slow_peer = []
    thread = threading.Thread(target=lambda: slow_peer.append(a_byte_a_second(cluster)))
    with silent_connections(cluster, connections):
        # After the silent ones, which give way first.
        thread.start()
        waits = []
        while time.monotonic() < until:
            waits.append(slowest_submit(cluster, 1))
    *calls, resets = [caller.communicate(timeout=lenient(60))[0].strip() for caller in callers]
    recovery = slowest_submit(cluster, 1)
    more = peaks.more()
    thread.join()
    lost = [event["message"] for event in cluster.events(kind="NodeLost")]
    check(not any("n1" in text for text in lost), f"the honest worker was lost: {lost}")
    done = cluster.submit("ada", [], "true")
    cluster.succeeds([done])
    figures = (f"{len(waits)} submits of ada's within {max(waits):.2f} s (median {sorted(waits)[len(waits) // 2]:.2f}); "
               f"{more >> 20} MiB more; after it {recovery:.2f} s; {connections} silent connections, {resets} streams reset at once, "
               f"a handshake of a byte a second ended after {slow_peer[0]:.1f} s; calls by code: "
               + "; ".join(f"{role}: {text}" for role, text in zip(("submit", "read", "operate", "worker"), calls))
               + f" (operate without {', '.join(HARMFUL)}, by which an operator may end what others do; all at nice 19, as if elsewhere)")
    return figures, max(waits) < lenient(1) and more < 256 << 20 and recovery < lenient(5) and slow_peer[0] < lenient(15)
