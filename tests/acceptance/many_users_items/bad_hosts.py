"""Item 1, first part: one bad host, or one job that can never run, stops nobody else; GPUs, checks, files."""

import base64
import contextlib
import datetime
import os
import stat
import time

from disks import fill, small_disk
from harness import binary, check, lenient, wait_until
from many_users_items.faults import fault
from many_users_items.shared_cluster import Others, SharedCluster

JOBS = 26


@fault("a worker with a full disk")
def full_disk(site):
    cluster = SharedCluster(site)
    place = small_disk(site, "small", "2m")
    # Without checks: this is about the jobs that such a host is given.
    cluster.add("n1", "--health-interval", 0, state=place / "state")
    fill(place)
    for name in ("n2", "n3"):
        cluster.add(name)
    jobs = [cluster.submit("ada", ["--max-restarts", 2] if i % 2 else [], "true") for i in range(JOBS)]
    cluster.succeeds(jobs)
    node = cluster.node("n1")
    check(node.get("quarantined"), f"n1 is {node.get('state')}")
    check("No space left on device" in node["drainedBecause"], node["drainedBecause"])
    filling = place / "filling"
    filling.unlink()
    cluster.ask("undrain", "n1")
    check(not cluster.node("n1").get("drained"), "undrain does not end the quarantine")
    return f"{JOBS} of {JOBS} jobs succeeded, the host is quarantined after {len(cluster.events(kind='PrepareFailed'))} refusals"


@fault("a disk that fills up is seen")
def unhealthy(site):
    cluster = SharedCluster(site)
    place = small_disk(site, "small", "8m")
    cluster.add("n1", "--health-interval", "200ms", "--least-free", "1M", state=place / "state")
    cluster.add("n2")
    filling = fill(place)
    seen = wait_until(lambda: cluster.node("n1")["state"] == "NODE_STATE_UNHEALTHY", 20, "n1 is UNHEALTHY")
    cluster.succeeds([cluster.submit("ada", [], "true") for _ in range(6)])
    check(not cluster.events(kind="PrepareFailed"), "jobs were still given to it")
    filling.unlink()
    back = wait_until(lambda: cluster.node("n1")["state"] == "NODE_STATE_HEALTHY", 20, "n1 is HEALTHY again")
    return f"seen within {seen:.1f} s, back within {back:.1f} s"


# An operator's: what it does is said by the files beside it.
HEALTH_CHECK = """#!/bin/sh
cd "$(dirname "$0")"
[ ! -e hangs ] || sleep 1000
[ ! -e ill ] || { echo "looking at $MESHRUN_NODE_NAME"; echo "/scratch is not mounted"; exit 1; }
"""


@fault("an operator's own --health-check fails, and then hangs")
def health_check(site):
    cluster = SharedCluster(site)
    program = site.script("health-check", HEALTH_CHECK)
    cluster.add("n1", "--health-check", program, "--health-interval", "200ms", "--health-check-timeout", "1s", "--label", "checked")
    cluster.add("n2")
    on_n1 = ["--constraint", "checked"]
    runs = cluster.submit("bob", on_n1, "sleep", 1000)
    cluster.wait_state(runs, "RUNNING", 20)
    figures = []
    with Others(cluster) as others:
        for name, said, most in (("ill", f"the health check {program} exited with 1: /scratch is not mounted", 5),
                                 ("hangs", f"the health check {program} has not ended within 1s", 6)):
            file = site.directory / name
            file.touch()
            seen = wait_until(lambda: cluster.node("n1")["state"] == "NODE_STATE_UNHEALTHY", lenient(most), f"n1 is UNHEALTHY: {name}")
            check(cluster.node("n1")["problems"] == [said], cluster.node("n1")["problems"])
            check("UNHEALTHY" in cluster.ask("nodes") and said in cluster.ask("describe", "n1"), "nodes and describe do not say it")
            waits = cluster.submit("bob", on_n1, "true")
            cluster.succeeds([cluster.submit("bob", [], "true")])
            job = cluster.job(waits)
            check(job["state"] == "JOB_STATE_QUEUED", f"a job for n1 is {job['state']}: {job.get('reason')}")
            file.unlink()
            back = wait_until(lambda: cluster.node("n1")["state"] == "NODE_STATE_HEALTHY", lenient(5), "n1 is HEALTHY again")
            cluster.succeeds([waits])
            figures.append(f"{name}: seen within {seen:.1f} s, back within {back:.1f} s")
        check(cluster.job(runs)["state"] == "JOB_STATE_RUNNING", "what ran there did not go on")
        cluster.run("bob", "cancel", "--now", runs)
    return f"{'; '.join(figures)}; {others}"


@fault("a program that one host lacks")
def missing_program(site):
    cluster = SharedCluster(site)
    programs = site.directory / "programs"
    programs.mkdir()
    site.script("programs/train", "#!/bin/sh\nexit 0\n")
    cluster.add("n1", before=f"mount -t tmpfs tmpfs {programs}")
    for name in ("n2", "n3"):
        cluster.add(name)
    cluster.succeeds([cluster.submit("ada", [], programs / "train") for _ in range(3)])
    wrong = cluster.submit("ada", [], programs / "trian")
    code, _, err, seconds = cluster.run("ada", "wait", wrong)
    check(code == 2, f"a program that no host has: exit code {code}: {err}")
    message = cluster.job(wrong)["failure"]["message"]
    check("trian" in message and "; so says n" in message, message)
    return f"3 of 3 jobs succeeded; a program that no host has fails within {seconds:.1f} s, and two hosts are named"


@fault("/tmp/meshrun-ports-UID of another user")
def squatted_ports(site):
    cluster = SharedCluster(site)
    theirs = site.directory / "theirs"
    theirs.mkdir()
    before = (f"mount -t tmpfs tmpfs /run && mkdir /run/meshrun && chown 65534 /run/meshrun && mkdir -p /tmp/meshrun-ports-0 && "
              f"chown 65534 {theirs} && mount --bind {theirs} /tmp/meshrun-ports-0")
    cluster.add("n1", "--port-range", "23600-23663", before=before)
    cluster.succeeds([cluster.submit("ada", [], "true") for _ in range(3)])
    # The one block is the first daemon's, wherever this one looks.
    cluster.add("n2", "--port-range", "23600-23663", "--label", "second", before=before)
    refused = cluster.submit("ada", ["--constraint", "second"], "true")
    cluster.run("ada", "wait", refused)
    reason = cluster.job(refused)["reason"]
    check("every block of ports from 23600 to 23663 belongs to a worker of this host" in reason, reason)
    return "3 of 3 jobs succeeded; a second daemon still gets no port of the first one's"


@fault("300 jobs that can never run here")
def impossible_jobs(site):
    cluster = SharedCluster(site)
    cluster.add("n1")
    cluster.succeeds([cluster.submit("ada", [], "true")])
    # Each is a shape of its own, and before the other in the queue.
    program = base64.b64encode(b"true").decode()
    requests = [{"spec": {"name": "true", "command": [program], "procsPerNode": {"count": 5 + i}}} for i in range(300)]
    answers = cluster.calls("bob", (("SubmitJob", request) for request in requests))
    check(all(answer["code"] == 0 for answer in answers), f"bob's submits: {[answer for answer in answers if answer['code']][:1]}")
    impossible = [answer["response"]["job"]["jobId"] for answer in answers]
    began = time.monotonic()
    cluster.succeeds([cluster.submit("ada", [], "true")])
    seconds = time.monotonic() - began
    check(seconds < lenient(5), f"it waited {seconds:.1f} s on an idle node")
    reason = cluster.job(impossible[-1])["reason"]
    check("n1 would have to give 304 slots, and 4 of 4 are free" in reason, reason)
    return f"a job behind 300 of them ended {seconds:.2f} s after its submit"


# Says in a file that it has begun and which GPUs it has, and ends at once when it is asked to.
KEEPS_ITS_GPUS = 'echo "$MESHRUN_NODE_NAME $CUDA_VISIBLE_DEVICES" >> {}; trap "exit 143" TERM; while [ -e {} ]; do sleep 0.05; done'


@fault("a preempted job with a GPU, and a host without one that is idle")
def keeps_its_gpus(site):
    # An operator's job runs too, who is no user of the hosts.
    cluster = SharedCluster(site, separate_users=False)
    driver = site.directory / "driver"
    driver.mkdir()
    (driver / "libnvidia-ml.so.1").symlink_to(binary("//tests/acceptance/ranks:libtest_gpus.so"))
    # The GPU has no device that a cgroup could keep from others.
    cluster.add("n1", "--limits", "none", env={"LD_LIBRARY_PATH": str(driver), "CUDA_VISIBLE_DEVICES": "0"})
    check(len(cluster.node("n1")["resources"].get("gpus", [])) == 1, "n1 does not offer its GPU")
    begun, stays, first = (site.directory / name for name in ("begun", "stays", "first"))
    stays.touch()
    first.touch()
    low = cluster.submit("bob", ["--max-restarts", 1], "sh", "-c", KEEPS_ITS_GPUS.format(begun, stays))
    lines = lambda: begun.read_text().splitlines() if begun.exists() else []
    wait_until(lambda: len(lines()) == 1, 20, "bob's job runs")
    # It offers no GPU; from now on there are free slots that the job could have.
    cluster.add("n2", env={"CUDA_VISIBLE_DEVICES": ""})
    with Others(cluster) as others:
        high = cluster.submit("client", ["--priority", 5, "--gpus-per-proc", 1], "sh", "-c", f"while [ -e {first} ]; do sleep 0.05; done")
        cluster.wait_state(high, "RUNNING", 20)
        cluster.succeeds([cluster.submit("ada", [], "true")])
        time.sleep(0.5)
        job = cluster.job(low)
        check(job["state"] == "JOB_STATE_WAITING" and len(lines()) == 1, f"the preempted job is {job['state']}, and had {lines()}")
        reason = job["reason"]
        first.unlink()
        back = wait_until(lambda: len(lines()) == 2, 10, "the preempted job runs again")
        stays.unlink()
        check(cluster.run("bob", "wait", low)[0] == 0, "the preempted job did not succeed")
    check(lines() == ["n1 0"] * 2, f"it had {lines()}")
    check(not cluster.job(low).get("restarts"), "the preemption was charged")
    return f"it waits ('{reason}'), and runs with its GPU {back:.2f} s after the other's end; {others}"


@fault("a cancel makes way")
def cancel_makes_way(site):
    cluster = SharedCluster(site)
    cluster.add("n1")
    # None of them could run here; they are before all others in the queue.
    cluster.submit("client", ["--array", "0-299", "--nodes", 50, "--priority", 9], "true")

    def start_after_cancel(user, cancelled, waiting):
        """Seconds by the coordinator's clock."""
        check(cluster.job(waiting)["state"] == "JOB_STATE_QUEUED", f"{waiting} does not wait")
        code, _, err, _ = cluster.run(user, "cancel", cancelled)
        check(code == 0, f"cancel exited {code}: {err}")
        cluster.succeeds([waiting])
        asked = cluster.events(cancelled, "CancelRequested")[0]["at"]
        began, started = (datetime.datetime.fromisoformat(at) for at in (asked, cluster.job(waiting)["startedAt"]))
        took = (started - began).total_seconds()
        check(0 <= took < lenient(1), f"a job started {took:.2f} s after the cancel of what was in its way")
        return took

    slots = cluster.submit("bob", ["--nproc-per-node", 4], "sleep", 1000)
    cluster.wait_state(slots, "RUNNING", 20)
    waiting = cluster.submit("ada", [], "true")
    running = start_after_cancel("bob", slots, waiting)
    # The head of the queue is in the way of what has room beside the job that runs.
    one = cluster.submit("bob", [], "sleep", 1000)
    cluster.wait_state(one, "RUNNING", 20)
    head = cluster.submit("client", ["--nproc-per-node", 4, "--priority", 5], "true")
    waiting = cluster.submit("ada", [], "true")
    queued = start_after_cancel("client", head, waiting)
    check(cluster.job(one)["state"] == "JOB_STATE_RUNNING", "bob's job does not run any more")
    cluster.run("bob", "cancel", "--now", one)
    return f"ada's job starts {running:.3f} s after the cancel of a running one, {queued:.3f} s after that of a queued one"


@fault("files of the coordinator and of a worker that others could read", alone=True)
def private_files(site):
    audit, backup = site.directory / "audit.jsonl", site.directory / "backup.sqlite"

    def private():
        """Names of all files; checks that only their owner has rights to them."""
        places = [cluster.state, site.directory / "n1"]
        found = [path for place in places for path in place.rglob("*")] + [audit, backup]
        modes = {path: path.stat().st_mode for path in [*places, *found]}
        loose = [f"{path.name} {mode & 0o777:o}" for path, mode in modes.items() if mode & 0o077 and not stat.S_ISSOCK(mode)]
        check(not loose, f"others have rights to {', '.join(loose)}")
        return {path.name for path in found if path.is_file()}

    with contextlib.ExitStack() as cleanup:
        # All programs inherit it.
        cleanup.callback(os.umask, os.umask(0))
        cluster = SharedCluster(site, coordinator_flags=["--audit-file", audit])
        cluster.add("n1")
        with Others(cluster) as others:
            cluster.succeeds([cluster.submit("ada", [], "true")])
            cluster.ask("backup", backup)
        names = private()
        wanted = {"state.sqlite", "state.sqlite-wal", "state.sqlite-shm", "lock", "node.json", audit.name, backup.name}
        check(names >= wanted, f"there is no {', '.join(wanted - names)}")
        # As a version before has left them, with a crash of both.
        cluster.kill_coordinator()
        cluster.kill_daemon("n1")
        for path in [*(cluster.state / name for name in wanted), site.directory / "n1" / "node.json", backup]:
            if path.exists():
                path.chmod(0o644)
        cluster.start_coordinator(address=site.env["MESHRUN_COORDINATOR"])
        cluster.start("n1")
        cluster.succeeds([cluster.submit("ada", [], "true")])
        cluster.ask("backup", backup)
        names |= private()
    return f"{len(names)} files, all 0600 with a umask of 0, also those that were 0644 before; {others}"


@fault("a user's output removes another's")
def logs_of_users(site):
    cluster = SharedCluster(site)
    cluster.add("n1", "--keep-logs", "4M")
    adas = cluster.submit("ada", [], "sh", "-c", "echo ada; head -c 1000000 /dev/zero | tr '\\0' a")
    cluster.succeeds([adas])
    bobs = []
    for _ in range(6):
        bobs.append(cluster.submit("bob", [], "sh", "-c", "head -c 1500000 /dev/zero | tr '\\0' b"))
        cluster.succeeds(bobs[-1:])
    wait_until(lambda: cluster.events(kind="LogsRemoved"), 20, "an event says that logs were removed")
    check("ada" in cluster.run("ada", "logs", adas)[1], "ada's are gone")
    code, _, err, _ = cluster.run("bob", "logs", bobs[0])
    check(code == 2 and "were removed at 20" in err and "those of bob the most" in err, f"exit code {code}: {err}")
    return f"ada's stay; bob is told: {err.strip().splitlines()[-1]}"
