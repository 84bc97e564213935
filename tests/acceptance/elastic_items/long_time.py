#!/usr/bin/env python3
"""Item 9: a day of simulated time over real storage, and half an hour of real time under random faults: memory, descriptors and
files are flat at its end. As a program: the faults alone, for --seconds; they may run beside other work."""

import argparse
import json
import os
import pathlib
import random
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from clusters import Cluster, kill, now
from harness import check, item, main, passed, wait_until
from elastic_items.report import whole
from programs import tested

NODES = 4
# What allocators and logs of a rank's own may take beside it.
MOST_GROWTH = 24 << 20
MOST_DESCRIPTORS = 24


def run(site):
    _, said = tested("//tests/coordinator/simulation:day_test", "*", timeout=7200)
    day = re.search(r"^A day: (.*)$", said, re.MULTILINE)
    check(day, f"the day says nothing of itself: {said[-300:]}")
    return passed(f"a day: {day[1]}; {faults(site, whole(90, 1800))}")


def faults(site, seconds, seed=1):
    chance = random.Random(seed)
    # Each host goes away many times here.
    cluster = Cluster(site, NODES, coordinator_flags=["--quarantine-after", 0],
                      worker_flags=["--orphan-timeout", "3s", "--keep-logs", "1M", "--keep-logs-count", 20])
    long = cluster.submit_journal(["--nodes", "2:3", "--max-restarts", 1000000, "--kill-grace", "2s"], "--in-process", "--commit-every", 20,
                                  "--step-ms", 50)
    cluster.wait_stepping(1, 3, 30, long)
    began, counts, before = now(), {}, None
    while now() - began < seconds:
        # The last third leaves the daemons alone, so that they can be measured.
        quiet = now() - began > 2 * seconds / 3
        if quiet and before is None:
            before = measure(cluster)
        fault = chance.choice([rank_killed, short_job, cancelled_job, short_cut, *([] if quiet else [daemon_killed, coordinator_killed, long_cut])])
        fault(cluster, chance)
        counts[fault.__name__] = counts.get(fault.__name__, 0) + 1
        wait_until(lambda: goes_on(cluster, long), 90, f"the long job goes on after {fault.__name__}")
        # Journals are the test's own, and grow.
        for path in list(cluster.journals.glob("*.jsonl"))[:-8]:
            if not any(str(entry["pid"]) in path.name for entry in cluster.processes()):
                path.unlink()
    after = measure(cluster)
    for name, (memory, descriptors) in after.items():
        grown, more = memory - before[name][0], descriptors - before[name][1]
        check(grown < MOST_GROWTH, f"{name} grew by {grown >> 20} MiB in the last third")
        check(more < MOST_DESCRIPTORS, f"{name} has {more} more descriptors after the last third")
    files = sum(1 for name in cluster.nodes for _ in (site.directory / name).rglob("*"))
    check(files < NODES * 400, f"{files} files on {NODES} workers")
    grown = max(after[name][0] - before[name][0] for name in after)
    return (f"{seconds} s of faults ({', '.join(f'{n} {name}' for name, n in sorted(counts.items()))}): most growth {grown >> 10} KiB, "
            f"{files} files on {NODES} workers")


def goes_on(cluster, job):
    """It has made a step just now; whatever generation that was."""
    return now() - newest_step(cluster) < 1 and cluster.job(job)["state"] == "JOB_STATE_RUNNING"


def newest_step(cluster):
    """When any rank made one; of the ends of the journals, which are long."""
    newest = 0
    for path in cluster.journals.glob("*.jsonl"):
        with open(path, "rb") as journal:
            journal.seek(max(0, path.stat().st_size - 4096))
            lines = journal.read().decode(errors="replace").splitlines()[1:]
        steps = [entry["at"] for entry in map(parsed, lines) if entry.get("what") == "step"]
        newest = max([newest, *steps])
    return newest


def parsed(line):
    """{}: of a line that is being written."""
    try:
        return json.loads(line)
    except ValueError:
        return {}


def measure(cluster):
    processes = {"coordinator": cluster.coordinator.pid, **{name: node.process.pid for name, node in cluster.nodes.items()}}
    figures = {}
    for name, pid in processes.items():
        status = open(f"/proc/{pid}/status").read().split("VmRSS:")[1]
        figures[name] = (int(status.split()[0]) << 10, len(os.listdir(f"/proc/{pid}/fd")))
    return figures


def rank_killed(cluster, chance):
    ranks = cluster.processes()
    if ranks:
        kill(chance.choice(ranks)["pid"])


def daemon_killed(cluster, chance):
    name = chance.choice(sorted(cluster.nodes))
    cluster.kill_daemon(name)
    time.sleep(chance.choice((0, 2, 8)))  # within the lease, and beyond it
    cluster.add(name)


def coordinator_killed(cluster, chance):
    cluster.kill_coordinator()
    time.sleep(chance.random())
    cluster.start_coordinator()


def short_cut(cluster, chance):
    proxy = chance.choice(list(cluster.nodes.values())).proxy
    proxy.hold(*chance.choice((("up",), ("down",), ())))
    time.sleep(1 + 2 * chance.random())
    proxy.heal()


def long_cut(cluster, chance):
    proxy = chance.choice(list(cluster.nodes.values())).proxy
    proxy.hold(*chance.choice((("up",), ("down",), ())))
    time.sleep(6 + 8 * chance.random())
    proxy.heal()


def short_job(cluster, chance):
    job = cluster.submit(["--nodes", "1:2", "--max-restarts", 20], ["sh", "-c", "seq 1000; sleep 0.2"])
    wait_until(lambda: cluster.job(job)["state"] == "JOB_STATE_SUCCEEDED", 60, "a short job ends")


def cancelled_job(cluster, chance):
    job = cluster.submit(["--nodes", "1:2", "--kill-grace", "1s"], ["sh", "-c", "while true; do sleep 0.1; done"])
    time.sleep(chance.random())
    cluster.ask("cancel", *(["--now"] if chance.random() < 0.5 else []), job)
    wait_until(lambda: cluster.job(job)["state"] == "JOB_STATE_CANCELLED", 60, "a job is cancelled")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=1800, help="how long (default 1800)")
    chosen, sys.argv[1:] = parser.parse_known_args()
    item(9, "random faults")(lambda site: passed(faults(site, chosen.seconds)))
    sys.exit(main(__doc__))
