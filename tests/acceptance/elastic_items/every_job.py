#!/usr/bin/env python3
"""Every shipped job goes on in process: a rank is killed, then a whole host; the rank that is left keeps its process, trains on from
its memory, and the job ends well. One item for each job."""

import contextlib
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "soak")]
from clusters import Cluster, kill
from elastic_items.headline import job, processes_of, step_of, words
from harness import Short, Site, binary, check, item, main, passed, wait_until

# Flags for fields of 12 x 12.
FIELDS = ["--size", 12, "--train-samples", 12, "--test-samples", 3, "--batch", 4]
OPERATOR = ["--width", 6, "--modes", 4, "--layers", 2]
# A few seconds of steps on two ranks: both blows come before the last one. vit and unet on a mesh with domain=1: data parallel.
JOBS = {
    "ddp_recipe": (50, []),
    "geoid": (800, ["--hidden", 32, "--features", 16, "--batch", 256]),
    "darcy": (300, [*FIELDS, *OPERATOR, "--padding", 2]),
    "swe": (300, ["--size", 18, "--intervals", 3, "--train-trajectories", 4, "--test-trajectories", 2, "--batch", 4, *OPERATOR]),
    "mesh_gnn": (300, ["--level", 2, "--hidden", 8, "--blocks", 2, "--smoothing", 1, "--evaluation-meshes", 2]),
    "vit": (300, [*FIELDS, "--embed-dim", 16, "--depth", 2, "--heads", 2]),
    "unet": (300, [*FIELDS, "--base-channels", 4, "--depth", 2, "--groups", 2]),
}
# Those of tools/test, which have no time for the loss of a host.
QUICK = ["ddp_recipe", "geoid"]


def arguments(name, directory):
    steps, model = JOBS[name]
    if name == "ddp_recipe":
        return [steps]
    cache = ["--cache", directory / "cache"] if "--train-samples" in model else []
    return [*model, *cache, "--steps", steps, "--report", directory / "report.json", "--png", ""]


def ranks_of(site, worker, name):
    """The rank processes of a worker, by the program that they run."""
    program, found = os.path.realpath(binary(f"//jobs/{name}:{name}")), []
    for pid in processes_of(site, worker):
        with contextlib.suppress(OSError):
            if os.path.realpath(f"/proc/{pid}/exe") == program:
                found.append(pid)
    return found


def wait_said(site, pattern, what):
    try:
        wait_until(lambda: re.search(pattern, words(site, "n1")), 30, what)
    except Short as error:
        raise Short(f"{error}; it said: {words(site, 'n1')[-500:]}")


def go_on(site, name, hosts=True):
    """The figures of one job. hosts: also the loss of a host, which is told after the lease."""
    cluster = Cluster(site, 2)
    binary(f"//jobs/{name}:{name}")
    job_id = cluster.submit(["--nodes", "1:2", "--procs-per-node", 1, "--grow", "never", "--max-restarts", 5,
                             "--env", "OMP_NUM_THREADS=1", "--job", name], arguments(name, site.directory))
    wait_until(lambda: step_of(site, job_id) >= 3, 60, f"the first steps of {name}")
    kept = ranks_of(site, "n1", name)
    check(len(kept) == 1, f"{len(kept)} ranks of {name} on n1")
    # What is killed, and how many ranks go on.
    blows = [("a rank", lambda: ranks_of(site, "n2", name), 2), ("a host", lambda: processes_of(site, "n2"), 1)]
    after = []
    for generation, (what, victims, ranks) in enumerate(blows[:2 if hosts else 1], 2):
        hit = victims()
        check(hit, f"{name}: nothing of {what} on n2")
        for pid in hit:
            kill(pid)
        place = rf"generation {generation}, rank \d of {ranks}: "
        wait_said(site, rf"{place}has done step", f"{name}: the survivor of {what} trains")
        went_on, had = re.search(rf"{place}goes on after step (\d+), .*; had done (\d+)", words(site, "n1")).groups()
        check(1 <= int(had) <= int(went_on) <= int(had) + 1, f"{name}: went on after step {went_on}, had done {had}")
        check(ranks_of(site, "n1", name) == kept, f"{name}: the survivor of {what} is another process")
        after.append(went_on)
    steps = JOBS[name][0]
    # Not polled: that would cost the ranks their processors.
    cluster.ask("wait", job_id, timeout=120)
    end = job(site, job_id)
    check(int(end["generation"]) == len(after) + 1, f"{name} ended in generation {end['generation']}")
    done = {int(rank["progress"]["step"]) for rank in end["ranks"]}
    check(done == {steps}, f"{name} ended after {done} steps of {steps}")
    check("had done none" in words(site, "n2"), f"{name}: the new rank of n2 did not get the state in memory")
    return f"{name} after step{'s' if hosts else ''} {' and '.join(after)} of {steps}"


def run(names, hosts=True):
    """The figures of several jobs, one after the other."""
    figures = []
    for name in names:
        with contextlib.ExitStack() as cleanup:
            figures.append(go_on(Site(cleanup), name, hosts))
    return "in one process went on " + ", ".join(figures)


if __name__ == "__main__":
    for number, each in enumerate(JOBS, 1):
        item(number, each)(lambda site, each=each: passed(go_on(site, each)))
    sys.exit(main(__doc__))
