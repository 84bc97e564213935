"""A cluster of one host whose parts can be cut off, stopped and killed, and the journals of the ranks that run there."""

import json
import os
import pathlib
import signal
import ssl
import time

from harness import Short, alive, binary, check, meshrun, pid_of, running, wait_until
from proxy import Proxy

LEASE = 5.0


def now():
    """The journals' clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Node:
    def __init__(self, name, process, proxy):
        self.name, self.process, self.proxy = name, process, proxy


class Cluster:
    """Nodes n1, n2, ... call the coordinator through a proxy each. All that it starts is gone with the site."""

    # Path of a target's program.
    program = staticmethod(binary)

    def __init__(self, site, nodes=0, coordinator_flags=(), worker_flags=(), coordinator_env=None, state=None):
        self.site, self.nodes = site, {}
        self.worker_flags = ["--slots", 4, *worker_flags]
        self.coordinator_flags, self.coordinator_env = coordinator_flags, coordinator_env
        self.state = state or site.directory / "coordinator"
        self.address = f"unix:{site.directory}/control/c.sock"
        site.cleanup.callback(self._end)
        self.start_coordinator()
        for i in range(nodes):
            self.add(f"n{i + 1}")

    def _end(self):
        """Supervisors and ranks outlive their daemons; each names this site's directory, or descends from one that does."""
        for _ in range(50):
            left = [pid_of(entry) for entry in alive(str(self.site.directory))]
            if not left:
                return
            for pid in left:
                kill(pid)
            time.sleep(0.05)

    # --- the coordinator ---

    def start_coordinator(self, state=None, address=None):
        process, _ = self.site.daemon(
            [self.program("//coordinator:meshrun-coordinator"), "--listen", address or self.address, "--state-dir",
             state or self.state, *self.coordinator_flags], self.coordinator_env)
        if not address:
            self.coordinator = process
            self.site.env["MESHRUN_COORDINATOR"] = self.address
        return process

    def kill_coordinator(self):
        self.coordinator.kill()
        self.coordinator.wait()

    # --- nodes ---

    def add(self, name, flags=(), env=None, state=None):
        proxy = self.nodes[name].proxy if name in self.nodes else Proxy(self.site, name, self.address)
        process, _ = self.site.daemon(
            [self.program("//worker:meshrun-worker"), "--coordinator", proxy.address, "--state-dir", state or self.site.directory / name,
             "--name", name, *self.worker_flags, *flags], env)
        self.nodes[name] = Node(name, process, proxy)
        return self.nodes[name]

    def kill_daemon(self, name):
        self.nodes[name].process.kill()
        self.nodes[name].process.wait()

    def power_off(self, name):
        """Without a word to anybody: no connection ends."""
        self.nodes[name].proxy.hold()
        at = now()
        # Until none is found: those found first may just have started another one.
        for _ in range(50):
            left = [pid_of(entry) for entry in alive(f"{self.site.directory}/{name}")] + [entry["pid"] for entry in self.processes(name)]
            if not left:
                break
            for pid in left:
                kill(pid)
            time.sleep(0.01)
        self.nodes[name].process.wait()
        return at

    # --- jobs ---

    def ask(self, *words, timeout=30):
        code, out, err, _ = self.site.run([meshrun(), *words], timeout=timeout)
        check(code == 0, f"meshrun {' '.join(map(str, words))} exited {code}: {(err or out).strip()[-300:]}")
        return out

    def submit(self, flags, command):
        said = self.ask("submit", "-o", "json", "--working-dir", self.site.directory, *flags, "--", *command)
        return json.loads(said)["jobId"]

    def submit_journal(self, flags, *words):
        """Ranks that keep journals; see tests/acceptance/ranks."""
        self.journals.mkdir(exist_ok=True)
        return self.submit(flags, [binary("//tests/acceptance/ranks:journal_rank"), "--journal", self.journals, *words])

    def describe(self, job_id):
        return json.loads(self.ask("describe", job_id, "-o", "json"))

    def job(self, job_id):
        return self.describe(job_id)["job"]

    def events(self, job_id="", kind=""):
        """Events of a job; without one, of the cluster."""
        said = self.describe(job_id) if job_id else json.loads(self.ask("describe", "--events", 1000, "-o", "json"))
        return [event for event in said.get("events", []) if not kind or event["kind"] == kind]

    def node_states(self):
        return {node["name"]: node for node in json.loads(self.ask("nodes", "-o", "json")).get("nodes", [])}

    def wait_state(self, job_id, state, seconds, generation=None):
        def reached():
            job = self.job(job_id)
            return job["state"] == f"JOB_STATE_{state}" and (generation is None or int(job["generation"]) == generation)
        try:
            return wait_until(reached, seconds, f"{job_id} {state}")
        except Short as error:
            job = self.job(job_id)
            raise Short(f"{error}; it is {job['state']} in generation {job.get('generation')}: {job.get('reason')}")

    # --- journals ---

    @property
    def journals(self):
        return self.site.directory / "journals"

    def journal(self, **wanted):
        """All lines of all ranks in order of time; those alone whose fields equal these."""
        lines = []
        for path in sorted(pathlib.Path(self.journals).glob("*.jsonl")):
            # Whoever reads while a rank writes can meet the first half of a line.
            whole_lines, _, _ = path.read_text().rpartition("\n")
            for line in whole_lines.splitlines():
                entry = dict(json.loads(line), process=path.stem, pid=int(path.stem.rsplit("-", 1)[1]))
                if all(entry.get(key) == value for key, value in wanted.items()):
                    lines.append(entry)
        return sorted(lines, key=lambda entry: entry["at"])

    def processes(self, node=None):
        """The newest place of each living rank process, by node if asked."""
        places = {}
        for entry in self.journal(what="joined") if self.journals.exists() else []:
            places[entry["pid"]] = entry
        return [entry for entry in places.values() if running(entry["pid"]) and node in (None, entry["node"])]

    def rank(self, number, generation):
        found = [e for e in self.journal(what="joined", generation=generation, rank=number)]
        check(found, f"rank {number} of generation {generation} never joined")
        return found[-1]

    def stepping(self, generation, ranks):
        """When the last of so many ranks ended its first step in that generation; None where not all have."""
        first = {}
        for entry in self.journal(what="step", generation=generation):
            first.setdefault(entry["rank"], entry["at"])
        return max(first.values()) if len(first) == ranks else None

    def wait_stepping(self, generation, ranks, seconds, job_id=None):
        try:
            wait_until(lambda: self.stepping(generation, ranks), seconds, f"{ranks} ranks step in generation {generation}")
        except Short as error:
            job = self.job(job_id) if job_id else {}
            raise Short(f"{error}; {job.get('state')}, generation {job.get('generation')}: {job.get('reason')}; "
                        f"{self.site.log_tail()}")
        return self.stepping(generation, ranks)

    def lineage(self):
        """Commits in order; each must follow the one before it. Two writers would fork it."""
        commits = sorted(self.journal(what="commit"), key=lambda c: c["step"])
        # Taken, and the writer never learned it: the coordinator died before it said so, or the writer before it heard.
        unanswered = {entry["step"] for entry in self.journal(what="committing")} - {commit["step"] for commit in commits}
        newest = -1
        for commit in commits:
            follows = commit["after"]
            check(follows == newest or follows in unanswered and newest < follows < commit["step"],
                  f"the commit of step {commit['step']} by generation {commit['generation']} follows step {follows}, not {newest}: "
                  "two lineages")
            unanswered.discard(follows)
            newest = commit["step"]
        return commits


class SecureCluster(Cluster):
    """Over TLS, without proxies. A certificate each for the coordinator, the nodes and the client, and a deny list.
    coordinator_within: words before the command of the coordinator."""

    coordinator_within = ()

    def __init__(self, site, nodes, coordinator_flags=()):
        self.certificates, self.denied = site.directory / "certificates", site.directory / "denied"
        self.denied.touch()
        self.names = ["head", "client", *(f"n{i + 1}" for i in range(nodes))]
        self.site = site
        self.ask("ca", "init", "--ca", self.certificates / "ca")
        for name in self.names:
            role = {"head": ["--role", "coordinator", "--host", "127.0.0.1"], "client": ["--role", "operate"]}
            self.issue(name, *role.get(name, ["--role", "worker", "--node", name]))
        site.env.update(self.env_of("client"))
        super().__init__(site, nodes, coordinator_flags)

    def issue(self, name, *words):
        self.ask("ca", "issue", "--ca", self.certificates / "ca", "--out", self.certificates / name, *words)

    def env_of(self, name):
        """With it a command shows this certificate."""
        return {f"MESHRUN_{flag.strip('-').upper().replace('-', '_')}": str(path)
                for flag, path in zip(*[iter(self.tls(name))] * 2)}

    def tls(self, name):
        return [word for flag, file in (("cert", "tls.crt"), ("key", "tls.key"), ("ca", "ca.crt"))
                for word in (f"--tls-{flag}", self.certificates / name / file)]

    def certificate(self, name):
        return ssl._ssl._test_decode_cert(str(self.certificates / name / "tls.crt"))

    def deny(self, *serials):
        """The deny list is these from now on. Whole at each moment: a coordinator may read it at any."""
        fresh = self.denied.with_suffix(".new")
        fresh.write_text("".join(f"serial:{serial}\n" for serial in serials))
        fresh.replace(self.denied)

    def serial(self, name):
        return self.certificate(name)["serialNumber"]

    def name_of(self, name):
        """Common name of the certificate."""
        return next(value for part in self.certificate(name)["subject"] for key, value in part if key == "commonName")

    def start_coordinator(self, state=None, address="127.0.0.1:0"):
        self.coordinator, ready = self.site.daemon(
            [*self.coordinator_within, self.program("//coordinator:meshrun-coordinator"), "--listen", address,
             "--state-dir", state or self.state, "--tls-deny", self.denied, *self.tls("head"), *self.coordinator_flags], self.coordinator_env)
        self.site.env["MESHRUN_COORDINATOR"] = ready["address"]
        return self.coordinator

    def add(self, name, flags=(), env=None, state=None, within=()):
        """within: words before the command of the daemon."""
        process, _ = self.site.daemon(
            [*within, self.program("//worker:meshrun-worker"), "--coordinator", self.site.env["MESHRUN_COORDINATOR"], "--state-dir",
             state or self.site.directory / name, "--name", name, *self.tls(name), *self.worker_flags, *flags], env)
        self.nodes[name] = Node(name, process, None)
        return self.nodes[name]


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def longest_gap(entries):
    times = [entry["at"] for entry in entries]
    return max((b - a for a, b in zip(times, times[1:])), default=0.0)
