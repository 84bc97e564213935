"""A cluster of three coordinators over three members of etcd, with TLS, on one host. Everything that a coordinator says and
hears passes through proxies of its own, so that each can be cut off."""

import datetime
import json
import os
import signal
import subprocess
import sys
import time

from clusters import SecureCluster
from harness import ROOT, binary, check, get, meshrun, wait_until
from proxy import Proxy

sys.path.append(str(ROOT / "tests/etcd"))
from members import Failed, Members, free_ports

NAMES = "abc"


class Standbys(SecureCluster):
    """Coordinators a, b and c; nodes n1, n2, ... Commands and workers know all three."""

    def __init__(self, site, nodes, coordinator_flags=()):
        self.processes_of = {}
        super().__init__(site, nodes, coordinator_flags)

    # --- starting ---

    def start_coordinator(self, state=None, address=None):
        """All of them: what SecureCluster calls once."""
        self.issue("etcd", "--role", "coordinator", "--host", "127.0.0.1")
        head = self.certificates / "etcd"
        self.etcd_tls = (head / "tls.crt", head / "tls.key", head / "ca.crt")
        self.etcd = Members(self.site.directory / "etcd", self.etcd_tls)
        self.site.cleanup.callback(self.etcd.close)
        ports = free_ports(2 * len(NAMES))
        self.ports, self.http = dict(zip(NAMES, ports)), dict(zip(NAMES, ports[len(NAMES):]))
        self.doors = {name: Proxy(self.site, name, f"127.0.0.1:{self.ports[name]}") for name in NAMES}
        self.ways = {name: [Proxy(self.site, f"{name}-etcd{i}", endpoint) for i, endpoint in enumerate(self.etcd.endpoints)]
                     for name in NAMES}
        for name in NAMES:
            self.start(name)
        self.site.env["MESHRUN_COORDINATOR"] = ",".join(self.doors[name].address for name in NAMES)
        wait_until(self.leader, 20, "one of the coordinators leads")

    def start(self, name):
        state = "etcd://" + ",".join(way.address for way in self.ways[name]) + "/meshrun"
        cert, key, ca = self.etcd_tls
        self.processes_of[name], _ = self.site.daemon(
            [self.program("//coordinator:meshrun-coordinator"), "--listen", f"127.0.0.1:{self.ports[name]}",
             "--http", f"127.0.0.1:{self.http[name]}", "--name", name,
             "--advertise", self.doors[name].address, "--state", state, "--etcd-cert", cert, "--etcd-key", key, "--etcd-ca", ca,
             *self.tls("head"), *self.coordinator_flags])

    # --- looking ---

    def cluster(self, timeout=30):
        """What `meshrun describe` says; None where no coordinator leads."""
        code, out, _, _ = self.site.run([meshrun(), "describe", "-o", "json"], timeout=timeout)
        return json.loads(out) if code == 0 else None

    def leader(self):
        """(name, term) of the one that leads; None where none does."""
        said = self.cluster()
        leaders = [one["name"] for one in said.get("coordinators", []) if one.get("leads")] if said else []
        return (leaders[0], int(said["term"])) if leaders else None

    def is_standby(self, name):
        """It lives, and is not ready."""
        def serves(*words):
            tls = self.tls("client")
            done = subprocess.run([str(word) for word in [binary("//deploy/probe:meshrun-probe"), self.doors[name].address, *words, *tls]],
                                  capture_output=True, text=True)
            return done.stdout.strip()
        return serves() == "SERVING" and serves("--service", "meshrun.ready") == "NOT_SERVING"

    def told_prometheus(self):
        """Who says at its HTTP port that it leads; every coordinator answers there."""
        told = {}
        for name in NAMES:
            status, body = get(f"https://127.0.0.1:{self.http[name]}/metrics", self.certificates / "client")
            check(status == 200, f"metrics of {name}: {status} {body[:200]}")
            told[name] = "\nmeshrun_coordinator_leader 1\n" in body
        return [name for name, leads in told.items() if leads]

    # --- faults ---

    def kill(self, name):
        self.processes_of[name].kill()
        self.processes_of[name].wait()

    def stop(self, name):
        os.kill(self.processes_of[name].pid, signal.SIGSTOP)

    def go_on(self, name):
        os.kill(self.processes_of[name].pid, signal.SIGCONT)

    def cut_off(self, name):
        """From etcd, workers and clients; no connection ends."""
        for proxy in [self.doors[name], *self.ways[name]]:
            proxy.hold()

    def heal(self, name):
        for proxy in [self.doors[name], *self.ways[name]]:
            proxy.heal()

    def await_takeover(self, term, began):
        """Seconds from `began` until a client has an answer of a leader in a higher term, and from the moment in which it led until
        all nodes had their session with it; and (name, term) of that leader."""
        found = []

        def other():
            leader = self.leader()
            if leader and leader[1] > term:
                found.append(leader)
            return bool(found)
        wait_until(other, 30, f"a leader after term {term}")
        elected = time.monotonic() - began
        wait_until(lambda: all(node["state"] == "NODE_STATE_HEALTHY" for node in self.node_states().values()), 30, "all nodes are healthy")
        leads = lambda: self.logged(f"info coordinator: leads term={found[-1][1]}")
        wait_until(leads, 10, "the leader's log says so")
        return elected, self.joined(found[-1][1]) - leads()[0], found[-1]

    def joined(self, term):
        """When the last of the nodes joined that term's leader. A leader calls a node healthy before the node has read its welcome."""
        def times():
            return self.logged(f"info worker: joined the coordinator term={term}")
        wait_until(lambda: len(times()) >= len(self.nodes), 30, f"all nodes join the leader of term {term}")
        return times()[len(self.nodes) - 1]

    def logged(self, text):
        """When the daemons logged lines that say this and nothing else, in seconds."""
        lines = (self.site.directory / "daemons.log").read_text(errors="replace").splitlines()
        return [datetime.datetime.fromisoformat(line.split()[0]).timestamp() for line in lines if line.partition(" ")[2] == text]


def unreachable(cluster, *words, timeout):
    """What a command says that no coordinator serves."""
    code, out, err, seconds = cluster.site.run([meshrun(), *words], timeout=timeout)
    check(code == 75, f"meshrun {words[0]} exited {code} without a leader: {(err or out).strip()[-300:]}")
    return err.strip(), seconds
