"""Item 6: a backup under load, and a coordinator that is restored from a copy, 0, 1 and 3 starts old, while jobs run."""

import json
import pathlib
import shutil
import threading
import time

from harness import check, wait_until
from many_users_items.shared_cluster import SharedCluster

# Says that it has begun, and ends when its file is gone. A rank that is killed by hand ends with another code, and its job is restarted.
PROGRAM = """
echo "$MESHRUN_GENERATION $RANK $$" >> {begun}
while [ -e {stays} ]; do sleep 0.05; done
"""


class LongJob:
    def __init__(self, cluster, name, flags, user="ada"):
        directory = cluster.home(user)
        self.cluster, self.begun, self.stays = cluster, directory / f"{name}.begun", directory / f"{name}.stays"
        self.stays.touch()
        self.id = cluster.submit(user, ["--name", name, *flags], "sh", "-c", PROGRAM.format(begun=self.begun, stays=self.stays))

    def starts(self):
        """(generation, rank, pid) of each process that has begun."""
        return [tuple(line.split()) for line in self.begun.read_text().splitlines()] if self.begun.exists() else []

    def running(self):
        return {pid for _, _, pid in self.starts() if pathlib.Path(f"/proc/{pid}").exists()}

    def end(self):
        self.stays.unlink()


def until_running(jobs):
    for job in jobs:
        job.cluster.wait_state(job.id, "RUNNING", 30)
        ranks = len(job.cluster.job(job.id)["ranks"])
        wait_until(lambda job=job, ranks=ranks: len(job.running()) == ranks, 20, f"{ranks} ranks of {job.id} run")


def load(cluster, stop, said):
    """Submits of bob's, one after another."""
    while not stop.is_set():
        said.append(cluster.submit("bob", ["--nproc-per-node", 1], "true"))


def backup_under_load(cluster, path):
    stop, said = threading.Event(), []
    threads = [threading.Thread(target=load, args=(cluster, stop, said)) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(said) > 5, 20, "submits are under way")
    began, before = time.monotonic(), set(said)
    for _ in range(5):
        code, _, err, _ = cluster.run("client", "backup", path)
        check(code == 0, f"backup exited {code}: {err}")
    took = (time.monotonic() - began) / 5
    stop.set()
    for thread in threads:
        thread.join()
    check(path.stat().st_mode & 0o777 == 0o600, f"the backup has mode {path.stat().st_mode & 0o777:o}")
    code, _, err, _ = cluster.run("ada", "backup", cluster.site.directory / "hers")
    check(code != 0 and "operate" in err, f"ada's backup exited {code}: {err}")
    return before, said, took


def of_a_copy(site, starts):
    """starts: how often the coordinator starts between the copy and the restore."""
    cluster = SharedCluster(site, coordinator_flags=["--lease", "2s", "--heartbeat", "300ms"])
    cluster.worker_flags = ["--slots", 8]
    for name in ("n1", "n2"):
        cluster.add(name)
    known = LongJob(cluster, "known", ["--nodes", 2, "--nproc-per-node", 1])
    ends = LongJob(cluster, "ends", ["--nproc-per-node", 1, "--max-restarts", 2])
    renewed = LongJob(cluster, "renewed", ["--nproc-per-node", 1, "--max-restarts", 3])
    until_running([known, ends, renewed])
    waits = LongJob(cluster, "waits", ["--hold"])
    copy = site.directory / "copy.sqlite"
    before, bobs, took = backup_under_load(cluster, copy)
    cluster.succeeds(bobs)

    # What the copy does not know.
    address = site.env["MESHRUN_COORDINATOR"]
    for _ in range(starts):
        cluster.kill_coordinator()
        cluster.start_coordinator(address=address)
        wait_until(lambda: all(cluster.node(name).get("state") == "NODE_STATE_HEALTHY" for name in ("n1", "n2")), 30, "hosts are back")
    younger = LongJob(cluster, "younger", ["--nodes", 2, "--nproc-per-node", 2, "--env", "TOKEN=hush"], user="bob")
    until_running([younger])
    cluster.run("ada", "release", waits.id)
    until_running([waits])
    ends.end()
    cluster.succeeds([ends.id])
    cluster.run("ada", "signal", renewed.id, "KILL")
    wait_until(lambda: len(renewed.starts()) == 2 and renewed.running(), 20, "the killed job runs again")
    go_on = [known, renewed, younger, waits]
    ranks = {job.id: (job.starts(), job.running()) for job in go_on}
    check([len(ranks[job.id][1]) for job in go_on] == [2, 1, 4, 1], f"{ranks}")

    cluster.kill_coordinator()
    cluster.state = site.directory / "restored"
    cluster.state.mkdir(mode=0o700)
    shutil.copy(copy, cluster.state / "state.sqlite")
    if starts > 1:
        # Without the flag it decides nothing, however often it is started: each start raises its term.
        for _ in range(starts + 1):
            cluster.start_coordinator(address=address)
            wait_until(lambda: "must be started with --restored" in cluster.run("client", "ps")[2], 20, "the old copy refuses everything")
            time.sleep(0.3)
            check(all(job.running() == ranks[job.id][1] for job in go_on), "an old copy ended what runs")
            cluster.kill_coordinator()
    began = time.monotonic()
    cluster.coordinator_flags = [*cluster.coordinator_flags, "--restored"]
    cluster.start_coordinator(address=address)
    cluster.coordinator_flags = cluster.coordinator_flags[:-1]
    wait_until(lambda: restored_event(cluster), 30, "the event says what was restored")
    seconds, summary = time.monotonic() - began, restored_event(cluster)
    time.sleep(3)
    for job in go_on:
        check((job.starts(), job.running()) == ranks[job.id], f"{job.id}: {job.starts()}, {job.running()} run, and not {ranks[job.id]}")
        state = cluster.job(job.id)
        check(state["state"] == "JOB_STATE_RUNNING", f"{job.id} is {state['state']}: {state.get('reason')}")
    check(cluster.job(younger.id)["submitter"] == "bob", "the younger job is another user's")
    check("hush" not in json.dumps(cluster.job(younger.id)), "the values of its environment are shown")
    held = cluster.job(ends.id)
    check(held["state"] in ("JOB_STATE_WAITING", "JOB_STATE_QUEUED") and "may have run and ended since" in held["reason"], held)
    check(len(ends.starts()) == 1, f"a job that had ended ran again: {ends.starts()}")

    # All goes on as before: jobs end well, a failure is survived, new ones are taken.
    cluster.run("ada", "signal", renewed.id, "KILL")
    wait_until(lambda: len(renewed.starts()) == 3 and renewed.running(), 20, "the killed job runs again, after the restore")
    for job in go_on:
        job.end()
    cluster.succeeds([known.id, younger.id, waits.id])
    check(cluster.run("client", "wait", renewed.id)[0] == 0, "the renewed job did not succeed")
    cluster.succeeds([cluster.submit("bob", ["--nodes", 2], "true")])
    cluster.run("ada", "cancel", ends.id)
    check(len(ends.starts()) == 1, f"a job that had ended ran again: {ends.starts()}")
    return (f"{starts} starts old: {summary} (in {seconds:.1f} s); nothing that ran died, nothing ran twice; "
            f"a backup took {took:.2f} s beside {len(bobs)} submits")


def restored_event(cluster):
    """What the roll call has come to; empty while the coordinator takes no call."""
    code, out, _, _ = cluster.run("client", "events", "-o", "json")
    events = [event for event in json.loads(out)["events"] if event["kind"] == "StateRestored"] if code == 0 else []
    return events[-1]["message"].split(": ")[0] if events else ""
