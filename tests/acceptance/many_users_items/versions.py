"""Item 8: hosts and a coordinator of two versions, while the one takes the other's place."""

import json
import pathlib
import shutil
import sqlite3
import subprocess
import tempfile
import time

from clusters import kill
from harness import ROOT, NotHere, bazel, binary, check, wait_until
from many_users_items.restore import LongJob, until_running
from many_users_items.shared_cluster import SharedCluster

# The last commit before the state's schema, or what workers and coordinator say to each other, changed its meaning. Whoever changes them
# again writes the commit before the change here.
PREVIOUS = "4fda80768d41"
PROGRAMS = ("//coordinator:meshrun-coordinator", "//worker:meshrun-worker", "//client:meshrun", "//tests/acceptance/ranks:journal_rank")


class Previous:
    """The programs of PREVIOUS, built beside this tree. 4 minutes on two cores; later runs take what Bazel's disk cache has."""

    def __init__(self, site):
        self.tree = pathlib.Path(tempfile.mkdtemp(prefix="mrt-previous-"))
        site.cleanup.callback(shutil.rmtree, self.tree, ignore_errors=True)
        git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if git("cat-file", "-e", f"{PREVIOUS}^{{commit}}").returncode != 0:
            raise NotHere(f"this clone does not have the commit {PREVIOUS}")
        done = git("archive", "--output", str(self.tree / "tree.tar"), PREVIOUS)
        check(done.returncode == 0, f"git archive: {done.stderr.strip()}")
        subprocess.run(["tar", "xf", "tree.tar"], cwd=self.tree, check=True)
        for file in ROOT.glob("user.bazelrc"):
            shutil.copy(file, self.tree)
        self.bazel = lambda *words: subprocess.run(bazel(*words, suffix="previous"), cwd=self.tree, capture_output=True, text=True, check=False)
        site.cleanup.callback(self.bazel, "shutdown")
        began = time.monotonic()
        done = self.bazel("build", "--noshow_progress", *PROGRAMS)
        check(done.returncode == 0, f"{PREVIOUS} does not build: {' | '.join(done.stderr.splitlines()[-8:])}")
        self.seconds = time.monotonic() - began
        # The site's end stops the server, and another run may take the output base.
        bin_directory = pathlib.Path(self.bazel("info", "bazel-bin").stdout.strip())
        self.paths = {label: bin_directory / label[2:].replace(":", "/") for label in PROGRAMS}

    def binary(self, label):
        """As harness.binary."""
        return str(self.paths[label])


class MixedCluster(SharedCluster):
    """Each part has the version that it was started with."""

    # The last job that trained wrote there.
    journals = None

    def __init__(self, site, version, **options):
        self.program = version
        # `works` submits as the operator, who is no user of a host.
        super().__init__(site, separate_users=False, **options)

    def start_with(self, version, start, *arguments):
        self.program = version
        return start(*arguments)

    def restart_worker(self, name, version):
        """As an upgrade does: the ranks live on."""
        self.kill_daemon(name)
        self.start_with(version, self.start, name)
        self.wait_healthy(name)

    def wait_healthy(self, *names):
        wait_until(lambda: all(self.node(name).get("state") == "NODE_STATE_HEALTHY" for name in names), 30, f"{names} are there")

    def works(self, client, what):
        """A job over both hosts runs and shows what it does, to this client."""
        words = ["--nodes", 2, "--nproc-per-node", 1]
        run = lambda *command, **options: self.site.run([client("//client:meshrun"), *command], **options)
        code, _, err, _ = run("submit", "--follow", *words, "--working-dir", self.site.directory, "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE", timeout=60)
        check(code == 0, f"{what}: submit --follow exited {code}: {err.strip()[-300:]}")
        code, out, err, _ = run("submit", "-o", "json", *words, "--max-restarts", 1, "--working-dir", self.site.directory, "--",
                                "sh", "-c", "echo hello $RANK; test $MESHRUN_GENERATION = 2")
        check(code == 0, f"{what}: submit exited {code}: {err.strip()[-300:]}")
        job = json.loads(out)["jobId"]
        for command, wanted in ((["wait", job], ""), (["logs", job], "hello 1"), (["describe", job], job), (["ps", "--all"], job), (["nodes"], "n2"),
                                (["events"], "NodeJoined")):
            code, out, err, _ = run(*command, timeout=60)
            check(code == 0 and wanted in out, f"{what}: {command[0]} exited {code}: {(err or out).strip()[-300:]}")

    def trains(self, rank, what):
        """Ranks that were linked with this version of the library rendezvous, step and commit; one is killed, and the others go on with
        another in its place."""
        self.journals = pathlib.Path(tempfile.mkdtemp(dir=self.site.directory))
        program = [rank("//tests/acceptance/ranks:journal_rank"), "--journal", self.journals, "--in-process", "--steps", 60, "--commit-every", 5]
        job = super(SharedCluster, self).submit(["--nodes", 2, "--nproc-per-node", 2, "--max-restarts", 2], program)
        wait_until(lambda: len({entry["rank"] for entry in self.journal(what="step", generation=1)}) == 4, 30, f"{what}: four ranks step")
        kill(next(entry["pid"] for entry in self.journal(what="joined") if entry["rank"] == 3))
        self.wait_state(job, "SUCCEEDED", 60)
        check(self.journal(what="commit"), f"{what}: nothing was committed")
        check(self.job(job)["restarts"] == 1, f"{what}: {self.job(job).get('restarts')} restarts")
        processes = {entry["pid"] for entry in self.journal(what="joined")}
        check(len(processes) == 5, f"{what}: {len(processes)} processes; the survivors do not go on in theirs")


def newer_state(site):
    """A coordinator on the state of a newer one says so, and leaves it as it is."""
    cluster = SharedCluster(site)
    cluster.kill_coordinator()
    with sqlite3.connect(cluster.state / "state.sqlite") as state:
        (schema,) = state.execute("PRAGMA user_version").fetchone()
        state.execute(f"PRAGMA user_version = {schema + 1}")
    code, _, err, seconds = site.run([binary("//coordinator:meshrun-coordinator"), "--listen", f"unix:{site.directory}/other/c.sock",
                                      "--state-dir", cluster.state], timeout=30)
    check(code != 0 and f"has schema {schema + 1}" in err, f"it exited {code}: {err.strip()[-300:]}")
    return f"schema {schema + 1} is refused in {seconds:.2f} s"


def upgrade_in_place(site, previous):
    """Coordinator first, then one worker after the other, under a job that runs on all of it."""
    old, new = previous.binary, binary
    cluster = MixedCluster(site, old, coordinator_flags=["--lease", "3s"])
    cluster.worker_flags = ["--slots", 8]
    for name in ("n1", "n2"):
        cluster.add(name)
    cluster.works(old, "all of it old")
    runs = LongJob(cluster, "runs", ["--nodes", 2, "--nproc-per-node", 1])
    until_running([runs])
    waits = LongJob(cluster, "waits", ["--hold"])
    ranks = runs.running()
    address = site.env["MESHRUN_COORDINATOR"]

    cluster.kill_coordinator()
    cluster.start_with(new, cluster.start_coordinator, None, address)
    cluster.wait_healthy("n1", "n2")
    cluster.works(new, "a new coordinator, old workers, a new client")
    cluster.works(old, "a new coordinator, old workers, an old client")
    cluster.trains(old, "a new coordinator, old workers, old ranks")
    cluster.run("ada", "release", waits.id)
    until_running([waits])
    cluster.restart_worker("n1", new)
    cluster.works(new, "a new worker beside an old one")
    cluster.trains(old, "old ranks on a new worker and an old one")
    cluster.restart_worker("n2", new)
    cluster.works(old, "all of it new, an old client")
    cluster.trains(old, "all of it new, old ranks")
    for job in (runs, waits):
        check(job.running() and len(job.starts()) == len(job.running()), f"{job.id} began again")
    check(runs.running() == ranks, "ranks were started anew")
    for job in (runs, waits):
        job.end()
    cluster.succeeds([runs.id, waits.id])
    cluster.kill_coordinator()
    code, _, err, _ = site.run([old("//coordinator:meshrun-coordinator"), "--listen", f"unix:{site.directory}/other/c.sock",
                                "--state-dir", cluster.state], timeout=30)
    check(code != 0 and "schema" in err, f"the old coordinator on the new state exited {code}: {err.strip()[-300:]}")
    return f"{PREVIOUS} becomes this version under 2 jobs: coordinator, then worker after worker, and no rank notices"


def workers_first(site, previous):
    """The other order, and back: new workers with an old coordinator."""
    old, new = previous.binary, binary
    cluster = MixedCluster(site, old, coordinator_flags=["--lease", "3s"])
    cluster.worker_flags = ["--slots", 8]
    cluster.start_with(new, cluster.add, "n1")
    cluster.start_with(old, cluster.add, "n2")
    cluster.works(old, "an old coordinator, a new worker and an old one")
    cluster.works(new, "an old coordinator, a new client")
    cluster.trains(new, "an old coordinator, new ranks on a new worker and an old one")
    runs = LongJob(cluster, "runs", ["--nodes", 2, "--nproc-per-node", 1])
    until_running([runs])
    ranks = runs.running()
    cluster.restart_worker("n1", old)
    check(runs.running() == ranks, "the older worker did not take its ranks over")
    cluster.kill_coordinator()
    cluster.start_with(old, cluster.start_coordinator, None, site.env["MESHRUN_COORDINATOR"])
    cluster.wait_healthy("n1", "n2")
    check(runs.running() == ranks, "the job did not go on")
    runs.end()
    cluster.succeeds([runs.id])
    return "its coordinator commands new workers, and its workers take over ranks of new ones"
