"""Item 2: a rank is killed between any two statements of its loop, and a host in the middle of a step."""

import re
import time

from clusters import kill
from elastic_items import every_job
from elastic_items.headline import processes_of
from elastic_items.report import whole
from harness import check, passed, skip_soak, wait_until
from numbers_and_restarts_items.loop import CLOSE, await_success, check_same_bits, cluster_of, distance, places, said, submit

# Statements of a step, in their order; those after "update" and up to "average" stand within the update.
STATEMENTS = ("begin", "zeroed", "forward", "accumulated", "second-forward", "backward", "update", "optimizer", "scheduler", "average",
              "updated", "metric", "reported", "saved")
QUICK = ("zeroed", "backward", "optimizer", "average", "metric", "saved")
KILLS = 60
RANKS = 3
FLAGS = ["--nodes", RANKS, "--procs-per-node", 1]
# Steps of the run whose world shrinks, and the step of the blow.
STEPS, BLOW = 20, 9
WITHOUT_DROPOUT = ["--steps", STEPS, "--dropout", 0, "--sharded-dropout", 0]


def check_kill(name, generations, number, rank, step, statement):
    """Whether the step was taken again."""
    what = f"{name}: rank {rank} killed at {statement} of step {step}"
    before, after = generations.get(number, {}), generations.get(number + 1, {})
    check(len(before) == len(after) == RANKS, f"{what}: {len(before)} and {len(after)} ranks before and after it")
    for place in range(RANKS):
        is_new = before[place]["pid"] != after[place]["pid"]
        check(is_new == (place == rank), f"{what}: rank {place} is {'another' if is_new else 'the same'} process afterwards")
        check(after[place]["source"] == "memory", f"{what}: rank {place} went on from {after[place]['source']}")
    done = {place["done"] for place in after.values()}
    check(len(done) == 1 and done <= {step, step + 1}, f"{what}: the ranks went on after {sorted(done)} steps")
    return done == {step}


def same_size(site, cluster):
    statements = whole(QUICK, [STATEMENTS[i % len(STATEMENTS)] for i in range(KILLS)])
    kills = [(i % RANKS, 2 * i + 1, statement) for i, statement in enumerate(statements)]
    words = ["--steps", 2 * len(kills) + 3, "--save-every", 1]
    flags = [*FLAGS, "--max-restarts", len(kills) + 5]
    await_success(cluster, submit(cluster, "quiet", flags, words), "the undisturbed run")
    began = time.monotonic()
    job = submit(cluster, "killed", flags, words, " ".join(f"{rank}:{step}:{statement}" for rank, step, statement in kills))
    await_success(cluster, job, "the run whose ranks are killed")
    seconds = time.monotonic() - began
    generations = places(site, "killed")
    check(len(generations) == len(kills) + 1, f"{len(generations)} generations after {len(kills)} kills")
    again = sum(check_kill("killed", generations, number, *blow) for number, blow in enumerate(kills, 1))
    refused = re.findall(r"this rank's memory is not used.*", said(cluster, job, "stderr"))
    check(not refused, "; ".join(refused))
    check_same_bits(site, "quiet", "killed", RANKS)
    return (f"{len(kills)} kills at {len(set(statements))} of {len(STATEMENTS)} statements on {RANKS} ranks: the others kept their "
            f"processes and read no checkpoint, {again} steps were taken again, parameters and their average have the undisturbed bits "
            f"({seconds / len(kills):.1f} s a kill)")


def smaller(site, cluster):
    """A rank stops within its update, and its host goes with it."""
    flags = ["--nodes", f"{RANKS - 1}:{RANKS}", "--procs-per-node", 1, "--grow", "never", "--max-restarts", 5]
    await_success(cluster, submit(cluster, "whole", FLAGS, WITHOUT_DROPOUT), "the undisturbed run without dropout")
    job = submit(cluster, "shrunk", flags, WITHOUT_DROPOUT, f"{RANKS - 1}:{BLOW}:optimizer:stop")
    file = site.directory / "shrunk.places"
    wait_until(lambda: file.exists() and len(places(site, "shrunk").get(1, {})) == RANKS, 60, f"{RANKS} ranks train")
    first = places(site, "shrunk")[1]
    victim = first[RANKS - 1]
    wait_until(lambda: stopped(victim["pid"]), 60, f"rank {RANKS - 1} stops in step {BLOW}")
    for pid in processes_of(site, victim["node"]):
        kill(pid)
    await_success(cluster, job, "the run that loses a host")
    last = places(site, "shrunk").get(2, {})
    check([place["pid"] for _, place in sorted(last.items())] == [first[rank]["pid"] for rank in range(RANKS - 1)],
          f"the processes were {first}, and then {last}")
    check({place["source"] for place in last.values()} == {"memory"}, f"they went on from {last}")
    apart = distance(site, "whole", "shrunk", RANKS - 1)
    check(apart <= CLOSE, f"{RANKS} ranks and then {RANKS - 1}: relative L2 {apart:.1e} (target {CLOSE})")
    return f"{RANKS} ranks and then {RANKS - 1}, without dropout: relative L2 {apart:.1e} from the undisturbed run"


def stopped(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "T"


def run(site):
    """(verdict, figures)"""
    cluster = cluster_of(site, RANKS)
    figures = f"{same_size(site, cluster)}; {smaller(site, cluster)}"
    if skip_soak():
        return passed(figures, left_out=f"{KILLS} kills, every shipped job once ({', '.join(every_job.QUICK)}: elastic 2)")
    return passed(f"{figures}; {every_job.run(every_job.JOBS, hosts=False)}")
