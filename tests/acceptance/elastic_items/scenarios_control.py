"""Scenarios of faults of the coordinator, of its disk and of its clients: 8 to 10, 14, 20."""

import json
import re
import shutil
import signal
import subprocess
import time

from clusters import LEASE, Cluster, SecureCluster, kill, now
from disks import fill, small_disk
from harness import binary, check, interrupt, meshrun, wait_until
from elastic_items.report import whole
from elastic_items.scenarios import scenario
from elastic_items.scenarios_hosts import go_on, nothing_happened
from elastic_items.scenarios_ranks import RESTARTS
from proxy import Proxy


def numbers(text):
    """Of whole lines: the last one may be half written."""
    return [int(n) for n in re.findall(r"line (\d+)\b.*\n", text)]


@scenario(8, "kill -9 of the coordinator while a job runs")
def coordinator_killed(site, report):
    cluster = Cluster(site, 2)
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS], "--print")
    cluster.wait_stepping(1, 2, 20, job)
    said = site.directory / "followed"
    with open(said, "w") as out:
        site.start([meshrun(), "logs", "-f", job, "--ranks", "0", "--stream", "stdout"], stdout=out, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(numbers(said.read_text())) > 5, 10, "the log is followed")
    for _ in range(2):
        cluster.kill_coordinator()
        go_on(cluster, 1)
        cluster.start_coordinator()
        wait_until(lambda: cluster.node_states()["n1"]["state"] == "NODE_STATE_HEALTHY", 10, "the worker is back")
    gap = go_on(cluster, 1)
    nothing_happened(cluster, job, 2)
    check(len({e["pid"] for e in cluster.journal(what="joined")}) == 2, "a rank was started anew")
    report.time("longest step", gap, 1.0)
    newest = max(e["step"] for e in cluster.journal(what="step", rank=0))
    wait_until(lambda: newest in numbers(said.read_text()), 20, f"the follower shows line {newest}")
    lines = numbers(said.read_text())
    check(lines == list(range(1, lines[-1] + 1)), f"the follower shows {len(lines)} lines of {lines[-1]}, in another order or twice")
    report.say(f"{len(lines)} log lines, each once")


@scenario(9, "the coordinator dies at many points of a generation change")
def coordinator_dies_in_change(site, report):
    cluster = Cluster(site, 2)
    job = cluster.submit_journal(["--nodes", 2, "--max-restarts", 100, "--kill-grace", "1s"], "--in-process", "--commit-every", 5)
    cluster.wait_stepping(1, 2, 20, job)
    generation = 1
    delays = whole((0, 0.01, 0.03), (0, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.045, 0.07, 0.1, 0.15, 0.2))
    for delay in delays:
        kill(cluster.rank(1, generation)["pid"])
        time.sleep(delay)  # chooses the point: what follows waits for what it leads to
        cluster.kill_coordinator()
        cluster.start_coordinator()
        def steps_in(last=generation):
            """The generation in which the job is and steps; None: it is in none after `last`. One may soon be followed by another."""
            view = cluster.job(job)
            number = int(view["generation"])
            return number if number > last and view["state"] == "JOB_STATE_RUNNING" and cluster.stepping(number, 2) else None
        found = []
        wait_until(lambda: found.append(steps_in()) or found[-1], 30, f"a generation after {generation} steps")
        generation = found[-1]
    # One process for each rank of a generation, one world size.
    places = {}
    for entry in cluster.journal(what="joined"):
        key = (entry["generation"], entry["rank"])
        check(places.setdefault(key, entry["pid"]) == entry["pid"], f"rank {key[1]} of generation {key[0]} was started twice")
        check(entry["world"] == 2, f"generation {key[0]} has {entry['world']} ranks")
    cluster.lineage()
    report.say(f"{len(delays)} kills, {generation - 1} further generations, no rank started twice, one lineage")


@scenario(10, "the coordinator is stopped, another one takes over, the first one wakes up")
def coordinator_stopped(site, report):
    cluster = Cluster(site, 2)
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS])
    cluster.wait_stepping(1, 2, 20, job)
    old = cluster.coordinator
    interrupt(old, signal.SIGSTOP)
    code, _, err, _ = site.run([str(old.args[0]), "--listen", f"unix:{site.directory}/second.sock", "--state-dir", cluster.state])
    check(code == 75, f"a second coordinator on the directory of a stopped one exits {code}: {err.strip()}")
    go_on(cluster, whole(LEASE + 1, 60))
    interrupt(old, signal.SIGCONT)
    cluster.wait_state(job, "RUNNING", 10)
    go_on(cluster, 1.5)
    nothing_happened(cluster, job, 2)
    # The state as it was goes to another one, with a higher term.
    interrupt(old, signal.SIGSTOP)
    copy = site.directory / "coordinator-2"
    shutil.copytree(cluster.state, copy)
    for lock in copy.glob("*.sock"):
        lock.unlink()
    first, second = cluster.address, f"unix:{site.directory}/control/d.sock"
    cluster.start_coordinator(copy, second)
    for node in cluster.nodes.values():
        node.proxy.target = second.removeprefix("unix:")
        node.proxy.cut()
    site.env["MESHRUN_COORDINATOR"] = second
    wait_until(lambda: all(n["state"] == "NODE_STATE_HEALTHY" for n in cluster.node_states().values()), 15, "the new one has the workers")
    nothing_happened(cluster, job, 2)
    interrupt(old, signal.SIGCONT)
    proxy = cluster.nodes["n2"].proxy
    proxy.target = first.removeprefix("unix:")
    proxy.cut()
    since = now()
    wait_until(lambda: "another one has taken over" in (site.directory / "daemons.log").read_text(), 15, "n2 refuses the old one")
    report.time("the old one is refused after", now() - since, 5)
    proxy.target = second.removeprefix("unix:")
    proxy.cut()
    wait_until(lambda: cluster.node_states()["n2"]["state"] == "NODE_STATE_HEALTHY", 15, "n2 is back")
    check(len(cluster.processes()) == 2 and int(cluster.job(job)["generation"]) == 1, "the ranks did not go on as they were")
    report.say("generation and processes unchanged")


@scenario(14, "a client's submit without an answer is said again")
def repeated_submit(site, report):
    cluster = Cluster(site, 1)
    proxy = Proxy(site, "client", cluster.address)
    proxy.hold_down_at = b"JobService/SubmitJob"
    client = site.start([meshrun(), "submit", "--coordinator", proxy.address, "-o", "json", "--", "true"], stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE)

    def listed():
        return [job["jobId"] for job in json.loads(cluster.ask("ps", "--all", "-o", "json")).get("jobs", [])]
    wait_until(listed, 15, "the coordinator has the job")
    check(client.poll() is None, "the client had its answer already")
    proxy.hold_down_at = None
    proxy.cut()
    proxy.heal()
    out, err = client.communicate(timeout=40)
    check(client.returncode == 0, f"the client exited {client.returncode}: {err.strip()[-300:]}")
    check(listed() == [json.loads(out)["jobId"]], f"the client was told {out}; there are {listed()}")
    report.say("answer lost, said again: one job")
    if "--request-id" in cluster.ask("submit", "--help"):
        twice = [cluster.submit(["--request-id", "a-night-run"], ["true"]) for _ in range(2)]
        check(twice[0] == twice[1] and len(listed()) == 2, f"one request id, jobs {twice}")
        report.say("--request-id twice: one job")


FLOOD = """#!/bin/sh
exec yes "a line of a rank that says more than anybody reads, and goes on and on for a hundred bytes or so"
"""


@scenario(20, "a flood of log lines, a log client that does not read")
def log_flood(site, report):
    cluster = Cluster(site, 2)
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS], "--print")
    cluster.wait_stepping(1, 2, 20, job)
    flood = cluster.submit(["--kill-grace", "1s"], [site.script("flood.sh", FLOOD)])
    cluster.wait_state(flood, "RUNNING", 10)
    slow = site.start([meshrun(), "logs", "-f", flood], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: slow.poll() is None, 1, "the log client reads")
    interrupt(slow, signal.SIGSTOP)
    before = memory(cluster.coordinator.pid)
    gap = go_on(cluster, whole(3, 60))
    nothing_happened(cluster, job, 2)
    grown = max(memory(pid) - was for pid, was in ((cluster.coordinator.pid, before),))
    cluster.ask("cancel", "--now", flood)
    cluster.wait_state(flood, "CANCELLED", 15)
    check(grown < 64 << 20, f"the coordinator grew by {grown >> 20} MiB for a log client that does not read")
    report.say(f"coordinator grew by {grown >> 10} KiB")
    report.time("longest step of the other job", gap, 1.0)


def memory(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0


@scenario(20, "the coordinator's disk is full")
def coordinator_disk_full(site, report):
    place = small_disk(site, "small", "8m")
    cluster = Cluster(site, 2, state=place / "state")
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS])
    cluster.wait_stepping(1, 2, 20, job)
    filling = fill(place)

    def refused():
        code, out, err, _ = site.run([meshrun(), "submit", "--name", "x" * 30, "--env", f"A={'a' * 20000}", "--", "true"])
        return (out + err).strip() if code else ""
    said = []
    wait_until(lambda: said.append(refused()) or said[-1], 20, "a submit is refused")
    check("full" in said[-1] or "space" in said[-1] or "read-only" in said[-1], f"a submit on a full disk says '{said[-1]}'")
    gap = go_on(cluster, whole(2, 30))
    check(len(cluster.processes()) == 2, "a rank died of the coordinator's full disk")
    filling.unlink()
    accepted = lambda: site.run([meshrun(), "submit", "--", "true"])[0] == 0
    report.time("accepts again after", wait_until(accepted, 30, "it recovers when there is space"), 10)
    nothing_happened(cluster, job, 2)
    # What was written is whole: another start reads it.
    cluster.kill_coordinator()
    cluster.start_coordinator()
    cluster.wait_state(job, "RUNNING", 15)
    report.say(f"'{said[-1][-120:]}'")
    report.time("longest step", gap, 1.0)


@scenario(20, "the disk of a worker's logs is full")
def worker_disk_full(site, report):
    place = small_disk(site, "small", "8m")
    cluster = Cluster(site, 1)
    (place / "state").mkdir(mode=0o700)
    # By default a host with so little room takes no jobs.
    cluster.add("n2", ["--least-free", "0"], state=place / "state")
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS], "--print")
    cluster.wait_stepping(1, 2, 20, job)
    fill(place)
    gap = go_on(cluster, whole(3, 60))
    nothing_happened(cluster, job, 2)
    report.time("longest step", gap, 1.0)
    report.say("training goes on while its log cannot be written")


@scenario(20, "the disk of the checkpoints is full")
def checkpoint_disk_full(site, report):
    # It must not fill up before fill() does it: there is a checkpoint every 0.2 s.
    place, size = small_disk(site, "small", "32m"), 1 << 20
    cluster = Cluster(site, 2)
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS], "--commit-every", 10, "--checkpoints", place, "--checkpoint-bytes", size)
    cluster.wait_stepping(1, 2, 20, job)
    wait_until(lambda: cluster.journal(what="commit"), 10, "a checkpoint is committed")
    filling = fill(place)
    unsaved = lambda: cluster.journal(what="unsaved")
    wait_until(lambda: len(unsaved()) >= 3, 15, "three checkpoints find no room")
    gap = go_on(cluster, whole(2, 30))
    nothing_happened(cluster, job, 2)
    why = unsaved()[-1]["why"]
    check("No space left on device" in why and str(place) in why, f"a checkpoint on a full disk says '{why}'")
    # The last one that there was is the newest for everybody, and whole.
    newest = max(e["step"] for e in cluster.journal(what="commit"))
    check(newest < min(e["step"] for e in unsaved()), "a checkpoint that found no room was committed")
    for generation in (2, 3):
        kill(cluster.rank(1, generation - 1)["pid"])
        cluster.wait_stepping(generation, 2, 20, job)
        # Ranks that go on from memory are not asked here: these were started anew.
        first = cluster.journal(what="step", generation=generation)[0]["step"]
        check(first == newest + 1, f"generation {generation} begins with step {first}, the newest checkpoint is of step {newest}")
    # Those with a suffix are being written.
    kept = {path.name: path.stat().st_size for path in place.glob("step-*") if not path.suffix}
    check(kept.get(f"step-{newest}") == size and set(kept.values()) == {size}, f"what lies on the disk: {kept}")
    filling.unlink()
    again = lambda: [e for e in cluster.journal(what="commit") if e["step"] > newest]
    report.time("committed again after", wait_until(again, 15, "checkpoints are committed when there is space"), 5)
    report.say(f"{len(unsaved())} found no room, {len(cluster.lineage())} commits in one lineage; '{why[-70:]}'")
    report.time("longest step", gap, 1.0)


@scenario(20, "the disk of a shipped job's checkpoints is full")
def shipped_job_disk_full(site, report):
    place = small_disk(site, "small", "8m")
    filling = fill(place)
    cluster = Cluster(site, 1)
    # One thread: several that wait for each other take seconds for a step where other programs have the processors.
    job = cluster.submit(["--name", "darcy", "--nodes", 1, "--env", "OMP_NUM_THREADS=1"], [
        binary("//jobs/darcy:darcy"), "--cache", site.directory / "cache", "--size", 13, "--train-samples", 12, "--test-samples", 3,
        "--batch", 4, "--width", 6, "--modes", 4, "--layers", 2, "--padding", 2, "--steps", 1000000, "--checkpoint-every", 10,
        "--checkpoint-dir", place / "run", "--report", "", "--png", ""])
    said = lambda words: [line for line in site.run([meshrun(), "logs", job])[2].splitlines() if words in line]
    wait_until(lambda: said("is not written"), 60, "the job says that a checkpoint is not written")
    step = lambda: int(cluster.job(job).get("progress", {}).get("step", 0))
    before = step()
    wait_until(lambda: step() > before + 20, 60, "training goes on")
    lost = said("is not written")
    check(len(lost) == 1, f"said more than once: {lost}")
    check("No space left on device" in lost[0] and str(place) in lost[0] and "MiB free" in lost[0], f"it says '{lost[0]}'")
    filling.unlink()
    wait_until(lambda: said("is written, the first one again"), 60, "a checkpoint is written when there is space")
    check(list((place / "run").glob("step-*/manifest.json")), f"no whole checkpoint lies in {place / 'run'}")
    cluster.ask("cancel", job)
    cluster.wait_state(job, "CANCELLED", 20)
    report.say(f"'{lost[0][-140:]}'")


@scenario(20, "certificates are renewed while a job runs, the old ones denied", soak=True)
def certificates_renewed(site, report):
    cluster = SecureCluster(site, 2)
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS])
    cluster.wait_stepping(1, 2, 20, job)
    old = [cluster.serial(name) for name in ("client", "n1", "n2")]
    stolen = site.directory / "stolen"
    shutil.copytree(cluster.certificates / "client", stolen)
    cluster.ask("ca", "renew", "--ca", cluster.certificates / "ca", *(cluster.certificates / name for name in cluster.names))
    check(not set(old) & {cluster.serial(name) for name in cluster.names}, "a renewed certificate has the old serial")
    said = lambda: (site.directory / "daemons.log").read_text()
    joined, at = said().count("joined the coordinator"), now()
    wait_until(lambda: said().count("joined the coordinator") >= joined + 2, 20, "both workers come with their new certificates")
    report.time("sessions with the new certificates after", now() - at, 13)
    gap = go_on(cluster, LEASE + 1)
    joined = said().count("joined the coordinator")
    cluster.deny(*old)
    stolen_ps = [meshrun(), "ps", "--tls-cert", stolen / "tls.crt", "--tls-key", stolen / "tls.key"]
    wait_until(lambda: "deny list" in site.run(stolen_ps)[2], 20, "the old certificate of the client is refused")
    gap = max(gap, go_on(cluster, LEASE + 1))
    check(said().count("joined the coordinator") == joined, "a session still showed a denied certificate")
    nothing_happened(cluster, job, 2)
    check(len({e["pid"] for e in cluster.journal(what="joined")}) == 2, "a rank was started anew")
    report.time("longest step", gap, 1.0)


@scenario(20, "certificates are denied while the connections that they began are young")
def certificate_denied_early(site, report):
    cluster = SecureCluster(site, 2)
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS], "--commit-every", 10)
    cluster.wait_stepping(1, 2, 20, job)
    old = [cluster.serial(name) for name in ("n1", "n2")]
    cluster.ask("ca", "renew", "--ca", cluster.certificates / "ca", *(cluster.certificates / name for name in ("n1", "n2")))
    said = lambda: (site.directory / "daemons.log").read_text()
    joined = said().count("joined the coordinator")
    cluster.deny(*old)
    at = now()
    wait_until(lambda: said().count("joined the coordinator") >= joined + 2, 15, "both workers come with their new certificates")
    report.time("sessions with the new certificates after", now() - at, 3)
    committed = len(cluster.journal(what="commit"))
    gap = go_on(cluster, LEASE + 1)
    nothing_happened(cluster, job, 2)
    check(len({e["pid"] for e in cluster.journal(what="joined")}) == 2, "a rank was started anew")
    check(len(cluster.journal(what="commit")) > committed, "no checkpoint is committed any more")
    refused = cluster.journal(what="refused")
    check(not refused, f"commits were refused: {refused[:1]}")
    report.time("longest step", gap, 1.0)
    # Without a new certificate a worker is out, and stays so.
    victim = cluster.rank(1, 1)
    cluster.deny(*old, cluster.serial(victim["node"]))
    at = now()
    wait_until(lambda: cluster.events(kind="NodeLost"), LEASE + 10, "the denied node is lost")
    report.time("the denied node lost after", now() - at, LEASE + 3)
    go_on(cluster, 1)
    check("HEALTHY" not in cluster.node_states()[victim["node"]]["state"], "the denied node is back")
    check("is on the deny list" in said(), "the denied worker does not say why it is out")
    report.say(f"{len(cluster.lineage())} commits, one lineage")
