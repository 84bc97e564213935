"""Item 2: a job of Python ranks under `run --nnodes 1:3 --grow at-once` on three hosts grows, shrinks, is left, and loses node 0.
Each change has a line on every node."""

import itertools
import re
import signal
import subprocess
import sys
import time

from harness import check, lenient, meshrun, not_applicable, passed, wait_until
from namespaces import Namespaces, NotPermitted
from terminal_and_scripts_items.several_runs import secret_of

PORT = 29531
COUNT = itertools.count()
LEASE = 5.0
GROWS_WITHIN = 10.0
# Takes no other generation in its process: it is started anew.
RANK = """
import os, time
print("world", os.environ["WORLD_SIZE"], flush=True)
time.sleep(600)
"""


class Node:
    """`meshrun run` on one host, with a registry of its own, as on a host of its own."""

    def __init__(self, site, hosts, host, number, *flags, secret=None):
        self.site, self.hosts, self.host, self.said = site, hosts, host, site.directory / f"said-{next(COUNT)}"
        runtime = site.directory / f"runtime-{host}"
        runtime.mkdir(mode=0o700, exist_ok=True)
        self.env = {"XDG_RUNTIME_DIR": str(runtime), **({"MESHRUN_RDZV_SECRET": secret} if secret else {})}
        command = [meshrun(), "run", "--nnodes", "1:3", "--nproc-per-node", 1, "--node-rank", number, "--grow", "at-once",
                   "--max-restarts", 3, "--master-addr", hosts.addresses["a"], "--master-port", PORT, *flags,
                   sys.executable, "rank.py"]
        with open(self.said, "w") as output:
            self.process = site.start(hosts.on(host, command), self.env, stdout=output, stderr=subprocess.STDOUT)

    def text(self):
        return self.said.read_text()

    def world(self):
        """Of its newest rank; 0: it has none yet."""
        found = re.findall(r"world (\d)", self.text())
        return int(found[-1]) if found else 0

    def run(self, *words):
        return self.site.run(self.hosts.on(self.host, [meshrun(), *words]), env=self.env)


def change(nodes, size, seconds, what, action=lambda: None):
    """Does something, and waits until the ranks of all these nodes are in a world of that size. How long it took."""
    before = {node: len(re.findall("world", node.text())) for node in nodes}
    began = time.monotonic()
    action()
    wait_until(lambda: all(node.world() == size and len(re.findall("world", node.text())) > before[node] for node in nodes),
               lenient(seconds), f"{what}: {[node.text()[-300:] for node in nodes]}")
    return time.monotonic() - began


def lines(nodes, pattern, what):
    for node in nodes:
        wait_until(lambda: re.search(pattern, node.text()), lenient(20), lambda: f"{what}: no line {pattern!r} in {node.text()[-600:]!r}")


def leave(node):
    code, out, err, _ = node.run("leave")
    check(code == 0 and re.search(r"has left \S+, which goes on with 1 rank", out), f"meshrun leave: {code} {out} {err} {node.text()[-500:]}")


def run(site):
    try:
        hosts = Namespaces(site, "abc")
    except NotPermitted as reason:
        return not_applicable(f"namespaces: {reason}")
    site.script("rank.py", RANK)
    a = Node(site, hosts, "a", 0)
    secret = secret_of(a.said)
    wait_until(lambda: a.world() == 1, lenient(30), "node 0 runs alone")
    # No work is lost by a restart within the first seconds, but ranks have them to say that they go on in process.
    time.sleep(5)
    joined = []

    def join(host, number, *flags):
        joined.append(Node(site, hosts, host, number, *flags, secret=secret))

    began = time.monotonic()
    join("b", 1)
    b = joined[-1]
    change([a, b], 2, GROWS_WITHIN, "two nodes")
    second = time.monotonic() - began
    lines([a], r"2 ranks now, 1 before; node1-\S+ joined", "the second node")
    time.sleep(5)
    began = time.monotonic()
    join("c", 2)
    c = joined[-1]
    change([a, b, c], 3, GROWS_WITHIN, "three nodes")
    third = time.monotonic() - began
    lines([a, b], r"3 ranks now, 2 before; node2-\S+ joined", "the third node")

    lost = change([a, b], 2, LEASE + 5, "a node that is killed", lambda: c.process.send_signal(signal.SIGKILL))
    lines([a, b], r"2 ranks now, 3 before; node2-\S+ is gone: ", "the killed node")

    restarts = len(re.findall(r"restart \d+ of 3", a.text()))
    left = change([a], 1, 10, "a node that leaves", lambda: leave(b))
    check(b.process.wait(timeout=lenient(20)) == 0, f"the run that left ended with {b.process.returncode}: {b.text()[-500:]}")
    lines([b], r"has left \S+, which goes on with 1 rank", "the node that leaves")
    lines([a], r"1 rank now, 2 before; node1-\S+ is gone: moved away from", "the others")
    check(len(re.findall(r"restart \d+ of 3", a.text())) == restarts, f"leaving is charged: {a.text()[-600:]}")

    code, _, err, _ = a.run("leave")
    check(code == 2 and "the job's coordinator runs here" in err, f"leave on node 0: {code} {err}")

    time.sleep(5)
    join("c", 2, "--leave-on-signal")
    c = joined[-1]
    change([a, c], 2, GROWS_WITHIN + 5, "a node comes back")
    change([a], 1, 10, "SIGTERM with --leave-on-signal", lambda: c.process.terminate())
    check(c.process.wait(timeout=lenient(20)) == 0, f"--leave-on-signal: {c.process.returncode}: {c.text()[-500:]}")

    time.sleep(5)
    join("b", 1)
    b = joined[-1]
    change([a, b], 2, GROWS_WITHIN + 5, "a node comes once more")
    began = time.monotonic()
    a.process.send_signal(signal.SIGKILL)
    check(b.process.wait(timeout=lenient(LEASE + 10)) == 1, f"node 0 killed: {b.process.returncode}: {b.text()[-500:]}")
    ended = time.monotonic() - began
    check("--coordinator" in b.text(), f"the line names no coordinator that outlives the node: {b.text()[-600:]}")
    return passed(f"2 ranks {second:.1f} s after the second node, 3 after {third:.1f} s; a killed node is gone after {lost:.1f} s "
                  f"(lease {LEASE:g} s), one that leaves after {left:.1f} s, uncharged; node 0 killed: exit 1 after {ended:.1f} s")
