"""Item 3: a run that stops and goes on from its checkpoint is the run without the stop."""

import shutil

from harness import check, meshrun, passed
from programs import last_line
from numbers_and_restarts_items.loop import CLOSE, check_same_bits, command, distance, env_flags, places

STEPS, SAVED = 12, 7
RANKS = 2
# A schedule, Adam and an average of the parameters go along in each of them.
VARIANTS = {
    "step": ("seeds of each step, dropout on plain and sharded tensors", ["--seeds", "step"]),
    "alike": ("ranks seeded alike once, dropout on both", ["--seeds", "alike"]),
    "rank": ("ranks with seeds of their own, dropout on plain tensors", ["--seeds", "rank", "--sharded-dropout", 0]),
}
OTHER_SIZES = (1, 3)
# The numbers of a sharded tensor are the same on any number of ranks.
COMPARED = ["--dropout", 0]


def train(site, name, ranks, steps, words):
    code, out, err, _ = site.run([meshrun(), "run", "--procs-per-node", ranks, *env_flags(), "--",
                                  *command(site, name, "--steps", steps, "--save-every", SAVED, *words)], timeout=300)
    check(code == 0, f"{name} on {ranks} ranks exited {code}: {last_line(out + err)}")


def check_resumed(site, name, ranks):
    newest = places(site, name)[1]
    check(all(newest[rank]["source"] == "checkpoint" and newest[rank]["done"] == SAVED for rank in range(ranks)),
          f"{name} did not go on from its checkpoint of step {SAVED}: {newest}")


def run(site):
    """(verdict, figures)"""
    for key, (_, words) in VARIANTS.items():
        train(site, f"whole-{key}", RANKS, STEPS, words)
        train(site, f"parts-{key}", RANKS, SAVED, words)
        train(site, f"parts-{key}", RANKS, STEPS, words)
        check_resumed(site, f"parts-{key}", RANKS)
        check_same_bits(site, f"whole-{key}", f"parts-{key}", RANKS)
    train(site, "whole", RANKS, STEPS, COMPARED)
    train(site, "part", RANKS, SAVED, COMPARED)
    apart = {}
    for ranks in OTHER_SIZES:
        name = f"on-{ranks}"
        shutil.copytree(site.directory / "part", site.directory / name)
        train(site, name, ranks, STEPS, COMPARED)
        check_resumed(site, name, ranks)
        apart[ranks] = distance(site, "whole", name, ranks)
    figures = (f"{RANKS} ranks, {STEPS} steps, stopped after {SAVED}: the same bits with {'; '.join(what for what, _ in VARIANTS.values())}; "
               "with dropout on sharded tensors alone, relative L2 "
               + ", ".join(f"{value:.1e} on {ranks}" for ranks, value in apart.items()))
    check(max(apart.values()) <= CLOSE, f"{figures} (target {CLOSE})")
    return passed(figures)
