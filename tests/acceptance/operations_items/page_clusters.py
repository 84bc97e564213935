"""What the page is shown: a real cluster, or a fixture, which plays jobs of any size. page.py tells either what should happen, and compares
what stands on the page with what the API says."""

import contextlib
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request

from clusters import SecureCluster
from harness import ROOT, check, meshrun, skip_soak
from webdriver import free_ports

sys.path.append(str(ROOT / "tests/coordinator/page"))
from fixture_cluster import Cluster, now_text
from fixture_server import play, serving

UNITS = {f"/{path.name}": path for path in (ROOT / "tests/coordinator/page").glob("units*.js")}
LINES = ["Traceback (most recent call last):", '  File "train.py", line 12, in <module>', "RuntimeError: the mesh has a hole at row 12"]


MAP = ROOT / "docs/geoid.png"
# Reports and writes a step after the other; its loss is that of Real.loss. It ends before its last step once a file of its job's name is
# beside it. With the path of a picture the first rank shows it anew with each step.
RANK = """
import json, math, os, shutil, socket, sys, time
enough = os.path.join(os.path.dirname(sys.argv[0]), os.environ["MESHRUN_JOB_ID"])
rank, steps, pause, picture = os.environ["RANK"], int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
report = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
print(f"rank {rank} has read the mesh", file=sys.stderr, flush=True)
for step in range(1, steps + 1):
    time.sleep(pause)
    if os.path.exists(enough):
        break
    loss = math.exp(-step / 20) + 0.01
    said = {"step": step, "total_steps": steps, "loss": loss, "rate": 0.001 / step}
    report.sendto(json.dumps(said).encode(), os.environ["MESHRUN_REPORT"])
    print(f"step {step} loss {loss:.4f}", flush=True)
    if picture and rank == "0":
        shown = os.path.join(os.environ["MESHRUN_PICTURES"], os.path.basename(picture[0]))
        os.rename(shutil.copyfile(picture[0], os.path.join(os.path.dirname(shown), ".new.png")), shown)
"""


def page_behind(key):
    """Where the page is to which an address with a key leads, without the last slash."""
    with urllib.request.urlopen(key, timeout=30) as answer:
        found = re.search('href="(/s/[0-9a-f]{32})/"', answer.read().decode())
    check(found, f"{key} leads nowhere")
    return re.match("http://[^/]+", key)[0] + found[1]


class Real:
    """A coordinator over TLS and two nodes, seen through `meshrun page` with three certificates: an operator's at `address`, a reader's at
    `reader`, and at `stranger` that of somebody who may cancel jobs of his own alone."""

    def __init__(self, site):
        self.cluster = SecureCluster(site, 2, coordinator_flags=["--http", f"127.0.0.1:{free_ports(1)[0]}"])
        self.site = site
        self.script = site.script("rank.py", RANK, mode=0o644)
        for name, role in (("operator", "operate"), ("reader", "read"), ("stranger", "submit")):
            self.cluster.issue(name, "--role", role, "--user", name)
        self.keys = [self._door(name) for name in ("operator", "reader", "stranger")]
        self.address, self.reader, self.stranger = (page_behind(key) for key in self.keys)

    def _door(self, name):
        """The address with its key that `meshrun page` prints, called with this certificate."""
        page = self.site.start([meshrun(), "page", "--no-open", *self.cluster.tls(name)], stdout=subprocess.PIPE)
        ready, _, _ = select.select([page.stdout], [], [], 30)
        line = page.stdout.readline() if ready else ""
        found = re.search(r"http://127\.0\.0\.1:\d+/\S*", line)
        check(found, f"meshrun page prints {line!r}, not where the page is")
        return found[0]

    def _ask(self, command, *words):
        code, said, err, _ = self.site.run([meshrun(), command, *self.cluster.tls("operator"), *words])
        check(code == 0, f"meshrun {command} {' '.join(map(str, words))} exited {code}: {err}")
        return said.strip()

    def submit(self, name, steps, pause, fails=False):
        """Its 4 ranks take so many steps, with so many seconds between them."""
        return self._ask("submit", "--nodes", 2, "--nproc", 2, "--mesh", "dp=2,spatial=2", "--name", name, self.script, steps, pause)

    def learn(self):
        """A job that draws a map of what it learns, until `end`. In the soak run geoid: until its next map it waits a hundred times as
        long as it has drawn the last one, so that nobody waits for maps."""
        if skip_soak():
            return self._ask("submit", "--nodes", 2, "--nproc", 1, "--name", "learns", self.script, 400, 1.0, MAP)
        return self._ask("submit", "--nodes", 2, "--nproc", 1, "--name", "learns", "--job", "geoid", "--", "--steps", 1_000_000,
                         "--hidden", 32, "--features", 16, "--batch", 256, "--no-evaluation")

    def end(self, job):
        self._ask("cancel", job)

    def succeed(self, job):
        """Its ranks take no more steps."""
        (self.site.directory / job).touch()

    def kill(self, job, rank):
        ranks = json.loads(self._ask("describe", job, "--output", "json"))["job"]["ranks"]
        os.kill(ranks[rank]["pid"], signal.SIGKILL)
        return f"rank {rank} has read the mesh"

    def loss(self, step):
        return math.exp(-step / 20) + 0.01

    @contextlib.contextmanager
    def away(self):
        self.cluster.kill_coordinator()
        yield
        self.cluster.start_coordinator(address=self.site.env["MESHRUN_COORDINATOR"])


class Fixture:
    """A cluster of 4 nodes, seen by an operator at `address`, by a reader at `reader`, and at `stranger` by somebody who may cancel jobs of
    his own alone."""

    # It asks for none.
    keys = ()

    def __init__(self, cleanup):
        self.cluster = Cluster(nodes=4, slots=8)
        self._operator = cleanup.enter_context(serving(self.cluster))
        reader = cleanup.enter_context(serving(self.cluster, role="read"))
        stranger = cleanup.enter_context(serving(self.cluster, role="submit", user="ann"))
        self.address, self.reader, self.stranger = self._operator.address, reader.address, stranger.address
        self._servers = [self._operator, reader, stranger]

    def submit(self, name, steps, pause, fails=False):
        """Its 4 ranks take so many steps, with so many seconds between them; fails: one of them ends it before."""
        job = self.cluster.submit(name, nodes=2, procs=2, mesh=[("dp", 2), ("spatial", 2)])
        self.cluster.start(job)

        def run():
            with contextlib.suppress(StopIteration):
                play(self.cluster, job, steps, pause)
                if not fails and not self.cluster.jobs[job].ended:
                    self.cluster.succeed(job)

        threading.Thread(target=run, daemon=True).start()
        return job

    def learn(self):
        """A job that draws a map of what it learns, until `end`."""
        job = self.submit("learns", steps=400, pause=0.2)

        def draw():
            while not self.cluster.jobs[job].ended:
                at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                for server in self._servers:
                    server.pictures = [{"rank": 0, "name": "geoid.png", "bytes": MAP.stat().st_size, "modifiedAt": at}]
                time.sleep(2)

        threading.Thread(target=draw, daemon=True).start()
        return job

    def end(self, job):
        self.cluster.cancel(job)

    def succeed(self, job):
        self.cluster.succeed(job)

    def kill(self, job, rank):
        for line in LINES:
            self.cluster.log(job, rank, line + "\n", "LOG_STREAM_STDERR")
        self.cluster.kill(job, rank, LINES)
        return LINES[-1]

    def loss(self, step):
        """What a rank reports at that step; None: nothing to compare with."""
        return None

    @contextlib.contextmanager
    def away(self):
        for server in self._servers:
            server.away = "this coordinator stands by: it leads nothing"
        yield
        for server in self._servers:
            server.away = ""


def large(jobs, ranks):
    """A cluster with so many jobs, one of which has so many ranks."""
    cluster = Cluster(nodes=max(2, ranks // 8), slots=8)
    big = cluster.submit("large", nodes=ranks // 8, procs=8, mesh=[("dp", ranks // 8), ("spatial", 8)])
    cluster.start(big)
    for i in range(jobs - 1):
        reason = "" if i % 2 else "needs 2 nodes, and 1 of 2 can take it"
        job = cluster.submit(f"job{i}", nodes=2, procs=4, user=f"user{i % 7}", reason=reason)
        if i % 2:
            cluster.start(job)
    return cluster, big
