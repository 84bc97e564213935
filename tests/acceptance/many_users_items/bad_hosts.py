"""Item 1, first part: one bad host, or one job that can never run, stops nobody else."""

import base64
import time

from disks import fill, small_disk
from harness import check, wait_until
from many_users_items.faults import fault
from many_users_items.shared_cluster import SharedCluster

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
    check(seconds < 5, f"it waited {seconds:.1f} s on an idle node")
    reason = cluster.job(impossible[-1])["reason"]
    check("n1 would have to give 304 slots, and 4 of 4 are free" in reason, reason)
    return f"a job behind 300 of them ended {seconds:.2f} s after its submit"


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
