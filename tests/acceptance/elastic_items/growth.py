"""A worker that joins while a job trains."""

import os
import re
import time

from elastic_items.headline import finished, said, step_of, submit
from harness import binary, check, passed, slow, wait_until

GROWS = 10.0
FASTER = 1.4
# A step long enough that what the ranks tell each other is little of it. One thread a rank, each on a core of its own, so that
# a second rank brings a second core.
MODEL = ["--batch", 8192, "--hidden", 128, "--seed", 1, "--png", ""]
STEPS = 1500
WINDOW = 15


def worker(site, name, core):
    site.daemon(["taskset", "-c", core, binary("//worker:meshrun-worker"), "--coordinator", site.env["MESHRUN_COORDINATOR"],
                 "--state-dir", site.directory / name, "--name", name, "--slots", 1, "--cores", 1])


def rate(site, name, seconds):
    """Steps a second, over a while that begins and ends with a step."""
    def next_step():
        before = step_of(site, name)
        wait_until(lambda: step_of(site, name) > before, 30, "another step")
        return step_of(site, name), time.monotonic()

    first, since = next_step()
    wait_until(lambda: time.monotonic() - since >= seconds, seconds + 5, "a while")
    last, until = next_step()
    return (last - first) / (until - since)


def run(site):
    """(verdict, figures)"""
    cores = sorted(os.sched_getaffinity(0))
    check(len(cores) >= 2, "one core: a second rank brings no second one")
    site.coordinator()
    worker(site, "n1", cores[0])
    name = submit(site, "--steps", STEPS, nodes="1:2", flags=["--grow", "at-once"], report=site.directory / "report.json", model=MODEL)
    wait_until(lambda: step_of(site, name) >= 20, 120, "the first steps")
    alone = rate(site, name, WINDOW)
    joined = time.monotonic()
    worker(site, "n2", cores[1])
    _, grown = said(site, ["n1", "n2"], r"generation 2, rank \d of 2: has done step (\d+)", 60, "the world grows")
    left = re.search(r"leaves generation 1 after step (\d+)", said(site, ["n1"], r"(?s).*", 1, "its words")[0][0][0])
    went_on = said(site, ["n1", "n2"], r"goes on after step (\d+)", 1, "both go on")[0]
    # The samples of a step are a function of the step: none is skipped or repeated if no step is.
    check(all(match[1] == left[1] for match in went_on), f"left after step {left[1]}, went on after {went_on[0][1]}")
    together = rate(site, name, WINDOW)
    load = os.getloadavg()[0]
    end = finished(site, name, 900)
    figures = (f"{grown - joined:.1f} s until both train, {together / alone:.2f}x the samples a second of {alone:.1f} steps/s "
               f"(load {load:.1f} on {os.cpu_count()} cores), none skipped or repeated, {end.get('restarts', 0)} restarts")
    missed = [text for late, text in ((grown - joined > GROWS, f"{GROWS:g} s"), (together < FASTER * alone, f"{FASTER}x")) if late]
    return slow(figures, ", ".join(missed)) if missed else passed(figures)
