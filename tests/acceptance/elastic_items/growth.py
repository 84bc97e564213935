"""A worker that joins while a job trains."""

import re
import time

from elastic_items.headline import finished, job, said, step_of, submit
from harness import check, wait_until

GROWS = 10.0
FASTER = 1.4
STEPS = 1500


def rate(site, name, seconds):
    """Steps a second, over a while."""
    first, since = step_of(site, name), time.time()
    wait_until(lambda: time.time() - since >= seconds, seconds + 5, "a while")
    return (step_of(site, name) - first) / (time.time() - since)


def grows(site):
    site.coordinator()
    site.worker("n1", "--slots", 1, "--cores", 1)
    name = submit(site, "--steps", STEPS, nodes="1:2", flags=["--grow", "at-once"], report=site.directory / "report.json")
    wait_until(lambda: step_of(site, name) >= 50, 120, "the first steps")
    alone = rate(site, name, 10)
    joined = time.time()
    site.worker("n2", "--slots", 1, "--cores", 1)
    _, grown = said(site, ["n1", "n2"], r"generation 2, rank \d of 2: has done step (\d+)", 60, "the world grows")
    check(grown - joined <= GROWS, f"the world had grown after {grown - joined:.1f} s, not within {GROWS:g} s")
    left = re.search(r"leaves generation 1 after step (\d+)", said(site, ["n1"], r"(?s).*", 1, "its words")[0][0][0])
    went_on = said(site, ["n1", "n2"], r"goes on after step (\d+)", 1, "both go on")[0]
    # The samples of a step are a function of the step: none is skipped or repeated if no step is.
    check(all(match[1] == left[1] for match in went_on), f"left after step {left[1]}, went on after {went_on[0][1]}")
    together = rate(site, name, 10)
    end = finished(site, name, 900)
    figures = (f"{grown - joined:.1f} s until both train, {together / alone:.2f}x the steps of {alone:.1f}/s, none skipped or "
               f"repeated, {end.get('restarts', 0)} restarts")
    check(together >= FASTER * alone, f"{figures}; target {FASTER}x")
    return figures
