"""Scenarios of faults of hosts, daemons and the network between: 5 to 7, 11 to 13, 16, 17, 19."""

import datetime
import os
import signal
import time

from clusters import LEASE, Cluster, kill, longest_gap, now
from harness import alive, binary, check, interrupt, running, wait_until
from elastic_items.report import whole
from elastic_items.scenarios import scenario
from elastic_items.scenarios_ranks import RESTARTS


def nothing_happened(cluster, job, ranks):
    """The job is in its first generation with its first processes, and nobody was called lost."""
    view = cluster.job(job)
    check(view["state"] == "JOB_STATE_RUNNING" and int(view["generation"]) == 1,
          f"the job is {view['state']} in generation {view['generation']}: {view.get('reason')}")
    lost = cluster.events(kind="NodeLost")
    check(not lost, f"{len(lost)} nodes were called lost: {lost[:1]}")
    check(len(cluster.processes()) == ranks, f"{len(cluster.processes())} of {ranks} ranks live")


def go_on(cluster, seconds):
    """Lets the ranks step for so long; returns the longest time between two steps of one."""
    since = now()
    wait_until(lambda: now() - since > seconds, seconds + 60, "time passes")
    gaps = [longest_gap(cluster.journal(what="step", pid=entry["pid"])) for entry in cluster.processes()]
    return max(gaps)


@scenario(5, "kill -9 of a daemon, started again within the lease")
def daemon_killed(site, report):
    cluster = Cluster(site, 2)
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS])
    cluster.wait_stepping(1, 2, 20, job)
    cluster.kill_daemon("n2")
    away = go_on(cluster, 1)
    cluster.add("n2")
    wait_until(lambda: cluster.node_states()["n2"]["state"] == "NODE_STATE_HEALTHY", 20, "n2 is healthy again")
    gap = go_on(cluster, LEASE + 1.5)
    nothing_happened(cluster, job, 2)
    check(len({e["pid"] for e in cluster.journal(what="joined")}) == 2, "a rank was started anew")
    report.time("longest step", max(away, gap), 1.0)


@scenario(6, "kill -9 of a daemon that does not come back")
def daemon_gone(site, report):
    cluster = Cluster(site, 3, worker_flags=["--orphan-timeout", "2s"])
    job = cluster.submit_journal(["--nodes", "2:3", *RESTARTS], "--in-process")
    cluster.wait_stepping(1, 3, 20, job)
    victim = next(e for e in cluster.processes("n3"))
    at = now()
    cluster.kill_daemon("n3")
    gone = wait_until(lambda: not running(victim["pid"]), 20, "the rank of the daemon that is gone")
    report.time("its rank gone after", gone, 2 + 5 + 2)
    wait_until(lambda: not alive(f"{site.directory}/n3"), 10, "its supervisor is gone")
    report.time("the others step again after", cluster.wait_stepping(2, 2, 20, job) - at, LEASE + 3)
    check(cluster.events(kind="NodeLost"), "no event NodeLost")


@scenario(7, "a host loses its power")
def power_off(site, report):
    cluster = Cluster(site, 3)
    job = cluster.submit_journal(["--nodes", "2:3", *RESTARTS], "--in-process")
    cluster.wait_stepping(1, 3, 20, job)
    [victim] = cluster.processes("n2")
    at = cluster.power_off("n2")

    def told():
        return {e["rank"]: e["at"] for e in cluster.journal(what="lost", generation=1) if e.get("peer") == victim["rank"]}
    wait_until(lambda: len(told()) == 2, LEASE + 10, "the survivors are told")
    report.time("survivors told after", max(told().values()) - at, LEASE + 0.5)
    report.time("step again after", cluster.wait_stepping(2, 2, 20, job) - at, LEASE + 0.5 + 3)


@scenario(11, "a partition shorter than the lease, then a longer one, then it heals")
def partition(site, report):
    cluster = Cluster(site, 3, worker_flags=["--orphan-timeout", "20s"])
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS, "--kill-grace", "10m"], "--in-process", "--commit-every", 10, "--ignore-term")
    cluster.wait_stepping(1, 2, 20, job)
    wait_until(lambda: cluster.journal(what="commit"), 10, "a checkpoint is committed")
    writer = cluster.rank(0, 1)
    proxy = cluster.nodes[writer["node"]].proxy
    proxy.hold()
    # Nothing else within it: the lease is not much longer.
    time.sleep(3)
    proxy.heal()
    go_on(cluster, 1)
    nothing_happened(cluster, job, 2)
    proxy.hold()
    at = now()
    report.time("another host steps after", cluster.wait_stepping(2, 2, 20, job) - at, LEASE + 3)
    check(running(writer["pid"]), "the rank that is cut off ended by itself before its fence time")
    wait_until(lambda: [c for c in cluster.journal(what="commit") if c["generation"] == 2], 10, "the new generation commits")
    healed = now()
    proxy.heal()
    wait_until(lambda: not running(writer["pid"]), 15, "the stale rank is ended after the heal")
    report.time("the stale rank gone after", now() - healed, 5)
    # One that it sent before the cut was taken in time, though its answer came only now; lineage() has it.
    stale = [c for c in cluster.journal(what="commit", pid=writer["pid"]) if c["from"] > at]
    check(not stale, f"the stale rank committed: {stale}")
    commits = cluster.lineage()
    check({c["generation"] for c in commits} == {1, 2}, f"commits of generations {sorted({c['generation'] for c in commits})}")
    check(int(cluster.job(job)["generation"]) == 2, "the heal made another generation")
    refused = len(cluster.journal(what="refused", pid=writer["pid"]))
    report.say(f"one lineage of {len(commits)} commits, {refused} refused")


@scenario(12, "loss in one direction")
def one_way(site, report):
    cluster = Cluster(site, 3)
    job = cluster.submit_journal(["--nodes", 3, *RESTARTS])
    cluster.wait_stepping(1, 3, 20, job)
    for name, direction, limit in (("n2", "up", LEASE + 0.5), ("n3", "down", 2 * LEASE + 1)):
        cluster.nodes[name].proxy.hold(direction)
        lost = wait_until(lambda: any(e["message"].startswith(name) or name in e["message"] for e in cluster.events(kind="NodeLost")),
                          30, f"{name} is lost when nothing goes {direction}")
        report.time(f"nothing {direction}: lost after", lost, limit)


@scenario(12, "30 % loss and 500 ms of delay")
def bad_network(site, report):
    cluster = Cluster(site, 2)
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS])
    cluster.wait_stepping(1, 2, 20, job)
    cluster.nodes["n1"].proxy.loss = 0.3
    cluster.nodes["n2"].proxy.delay = {"up": 0.5, "down": 0.5}
    seconds = whole(12, 3600)
    gap = go_on(cluster, seconds)
    nothing_happened(cluster, job, 2)
    report.say(f"no false death in {seconds} s")
    report.time("longest step", gap, 1.0)


@scenario(13, "clocks stepped by an hour")
def clock_steps(site, report):
    offset = site.directory / "offset"
    offset.write_text("0")
    env = {"LD_PRELOAD": binary("//tests/acceptance/ranks:libstepped_clock.so"), "MESHRUN_CLOCK_OFFSET": str(offset)}
    other = site.directory / "offset-coordinator"
    other.write_text("0")
    cluster = Cluster(site, 1, coordinator_env=dict(env, MESHRUN_CLOCK_OFFSET=str(other)))
    cluster.add("n2", env=env)
    began = time.time()
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS])
    cluster.wait_stepping(1, 2, 20, job)
    gap = 0.0
    for where, value in ((offset, "3600"), (offset, "-3600"), (other, "3600"), (other, "-3600")):
        where.write_text(value)
        gap = max(gap, go_on(cluster, whole(2.5, LEASE + 2)))
    other.write_text("0")
    go_on(cluster, LEASE)
    nothing_happened(cluster, job, 2)
    for event in cluster.events(job):
        at = datetime.datetime.fromisoformat(event["at"]).timestamp()
        check(began - 2 <= at <= time.time() + 2, f"{event['kind']} is dated {event['at']}")
    report.say("no false death; dates are the coordinator's")
    report.time("longest step", gap, 1.0)


@scenario(16, "more hosts than the job takes; a host whose ranks fail again and again")
def flapping(site, report):
    cluster = Cluster(site, 4)
    job = cluster.submit_journal(["--nodes", 2, "--max-restarts", 5, "--kill-grace", "1s", "--replace", "at-once"], "--in-process")
    cluster.wait_stepping(1, 2, 20, job)
    parked = [n for n, node in cluster.node_states().items() if int(node.get("slotsUsed", 0)) == 0]
    check(len(parked) == 2, f"parked: {parked}")
    # A spare that comes and goes moves nothing.
    for _ in range(2):
        cluster.kill_daemon(parked[0])
        cluster.add(parked[0])
    nothing_happened(cluster, job, 2)
    bad = cluster.rank(1, 1)["node"]
    for generation in (1, 2):
        kill(cluster.rank(1, generation)["pid"])
        cluster.wait_stepping(generation + 1, 2, 20, job)
    check(cluster.events(job, "NodeAvoided"), f"{bad} failed the job twice and is not avoided")
    nodes = {cluster.rank(rank, 3)["node"] for rank in (0, 1)}
    check(bad not in nodes, f"the job is on {nodes}, {bad} failed it twice")
    check(cluster.job(job)["restarts"] == 2, f"{cluster.job(job)['restarts']} restarts")
    report.say(f"2 parked, {bad} avoided after 2 failures, 2 restarts")


@scenario(16, "a host that carries ranks goes and comes again and again")
def flapping_with_ranks(site, report):
    often = 3
    cluster = Cluster(site, 3, coordinator_flags=["--quarantine-after", often])
    job = cluster.submit_journal(["--nodes", 2, "--max-restarts", 5, "--kill-grace", "1s", "--replace", "at-once"], "--in-process",
                                 "--commit-every", 10)
    cluster.wait_stepping(1, 2, 20, job)
    bad = cluster.rank(1, 1)["node"]
    flaps = whole(often, 20)
    for flap in range(flaps):
        generation = int(cluster.job(job)["generation"])
        carried = any(cluster.rank(rank, generation)["node"] == bad for rank in (0, 1))
        cluster.power_off(bad)
        # It is back before its lease ends, and its ranks are gone.
        cluster.nodes[bad].proxy.cut()
        cluster.nodes[bad].proxy.heal()
        cluster.add(bad)
        wait_until(lambda: cluster.node_states()[bad]["state"] == "NODE_STATE_HEALTHY", 10, f"{bad} is back")
        if carried:
            cluster.wait_stepping(generation + 1, 2, 30, job)
        else:
            go_on(cluster, 1)
        check(int(cluster.job(job)["generation"]) == generation + carried,
              f"flap {flap} of {bad}, which {'carried' if carried else 'did not carry'} ranks, led from generation {generation} to "
              f"{cluster.job(job)['generation']}")
    generation = int(cluster.job(job)["generation"])
    carriers = [cluster.rank(1, g)["node"] for g in range(1, generation + 1)]
    nodes = {cluster.rank(rank, generation)["node"] for rank in (0, 1)}
    check(bad not in nodes, f"the job is on {nodes} after {flaps} flaps of {bad}; rank 1 was on {carriers}")
    restarts = int(cluster.job(job)["restarts"])
    check(restarts <= 2, f"{flaps} flaps of one host led to {restarts} restarts")
    cluster.lineage()
    # For every job, not for this one alone.
    state = cluster.node_states()[bad]
    check(state.get("quarantined") and f"went away {often} times" in state.get("drainedBecause", ""),
          f"{bad} went away {flaps} times, and its node says {state}")
    check(len(cluster.events(kind="NodeQuarantined")) == 1, "it is not in quarantine, or went there twice")
    check("QUARANTINED" in cluster.ask("nodes"), "`meshrun nodes` does not say so")
    wide = cluster.submit_journal(["--nodes", 3], "--steps", 2)
    check(cluster.job(wide)["state"] == "JOB_STATE_QUEUED", f"a job of 3 nodes is {cluster.job(wide)['state']}")
    cluster.ask("undrain", bad)
    cluster.wait_state(wide, "SUCCEEDED", 30)
    report.say(f"{flaps} flaps, {restarts} restarts, then on {', '.join(sorted(nodes))}; rank 1 was on {', '.join(carriers)}")


@scenario(17, "fewer hosts than the minimum, then they return")
def below_minimum(site, report):
    cluster = Cluster(site, 2, worker_flags=["--orphan-timeout", "3s"])
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS, "--queue-timeout", "1h"], "--in-process")
    cluster.wait_stepping(1, 2, 20, job)
    cluster.power_off("n2")
    cluster.wait_state(job, "WAITING", 60)
    view = cluster.job(job)
    check("n2" in view["reason"] or "node" in view["reason"], f"it waits, and says '{view['reason']}'")
    used = int(cluster.node_states()["n1"].get("slotsUsed", 0))
    check(used == 0, f"{used} slots of n1 are held by a job that waits")
    seconds = whole(1, 300)
    wait = now()
    wait_until(lambda: now() - wait > seconds, seconds + 5, "time passes")
    check(cluster.job(job)["state"] == "JOB_STATE_WAITING", "it does not wait any more")
    cluster.nodes["n2"].proxy.cut()
    cluster.nodes["n2"].proxy.heal()
    back = now()
    cluster.add("n2")
    generation = lambda: int(cluster.job(job)["generation"])
    wait_until(lambda: cluster.stepping(generation(), 2), 20, lambda: f"it goes on; it says '{cluster.job(job).get('reason')}'")
    report.say(f"waited: '{view['reason']}'")
    report.time("steps after the return", now() - back, 5)


@scenario(19, "cancel during rendezvous")
def cancel_in_rendezvous(site, report):
    cluster = Cluster(site, 2)
    worker = cluster.nodes["n2"].process
    interrupt(worker, signal.SIGSTOP)
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS])
    cluster.wait_state(job, "RENDEZVOUS", 10)
    cluster.ask("cancel", job)
    cluster.wait_state(job, "CANCELLED", 10)
    interrupt(worker, signal.SIGCONT)
    wait_until(lambda: all(int(n.get("slotsUsed", 0)) == 0 and n["state"] == "NODE_STATE_HEALTHY"
                           for n in cluster.node_states().values()), 15, "all slots are free")
    wait_until(lambda: not alive("journal_rank --journal " + str(cluster.journals)) and
               not any("supervise" in entry for entry in alive(str(site.directory))), 10, "no process is left")
    after = cluster.submit_journal(["--nodes", 2], "--steps", 2)
    cluster.wait_state(after, "SUCCEEDED", 15)
    report.say("0 processes, 0 slots left; the next job runs")


def evicted(site, report, notice, *words, within=10):
    """A worker is told to stop. The notice is the kill grace of its job."""
    cluster = Cluster(site, 3)
    job = cluster.submit_journal(["--nodes", 2, "--max-restarts", 1, "--kill-grace", notice], "--in-process", "--commit-every", 10, *words)
    cluster.wait_stepping(1, 2, 30, job)
    node = cluster.rank(1, 1)["node"]
    at = now()
    os.kill(cluster.nodes[node].process.pid, signal.SIGTERM)
    report.time("another host steps after", cluster.wait_stepping(2, 2, 40, job) - at, within)
    view = cluster.job(job)
    check(int(view.get("restartsCharged", 0)) == 0, f"{view['restartsCharged']} restarts were charged")
    wait_until(lambda: cluster.nodes[node].process.poll() is not None, 20, "the worker has ended")
    check(cluster.nodes[node].process.returncode == 0, f"the worker exited {cluster.nodes[node].process.returncode}")
    commits = cluster.lineage()
    # Saved at the end of the step at which all stood still, whatever the job's own rhythm.
    asked = cluster.journal(what="quiesce", generation=1)
    check(len(asked) == 2 and all(entry["save"] for entry in asked), f"a checkpoint was not asked for: {asked}")
    had = max(entry["step"] for entry in cluster.journal(what="step", generation=1, rank=0))
    saved = max(commit["step"] for commit in commits if commit["generation"] == 1)
    check(saved == had, f"the newest checkpoint of the generation that was evicted is of step {saved}, its last step was {had}")
    report.say(f"{notice} of notice: no restart charged, step {saved} saved before it left, one lineage of {len(commits)} commits")


@scenario(19, "SIGTERM of a worker: eviction with notice")
def eviction(site, report):
    evicted(site, report, "10s")


@scenario(19, "eviction with 30 s of notice, in the middle of a step of 4 s")
def eviction_within_a_step(site, report):
    evicted(site, report, "30s", "--step-ms", 4000, within=18)


@scenario(19, "eviction with 10 min of notice: nobody waits for its end")
def eviction_with_time(site, report):
    evicted(site, report, "10m")
