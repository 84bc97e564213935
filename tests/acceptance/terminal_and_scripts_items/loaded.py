"""Item 6: ddp.py on three ranks, 60 times while every core is busy with something else. None fails."""

import concurrent.futures
import os
import pathlib
import re
import sys

from harness import ROOT, check, meshrun, not_applicable, passed

sys.path.append(str(ROOT / "tests/soak"))
from environments import DDP, TORCH, Missing, environment, packages

SCRIPT = pathlib.Path(__file__).with_name("ddp.py")
RUNS = 60
RANKS = 3


def run(site):
    try:
        python = environment(TORCH) / "python"
        site.env["PYTHONPATH"] = str(packages(DDP))
    except Missing as missing:
        return not_applicable(str(missing))
    site.env["OMP_NUM_THREADS"] = "1"
    command = [meshrun(), "run", "--nproc", RANKS, "--", python, SCRIPT]
    for _ in range(os.cpu_count()):
        site.start(["sh", "-c", "while :; do :; done"])

    def once(number):
        code, out, err, seconds = site.run(command, timeout=300)
        return number, code, re.findall(r"parameters (\w+)", out), err, seconds

    # Two at a time: the end of a rank meets others that compute.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        done = list(pool.map(once, range(RUNS)))
    failed = [f"run {number}: exit code {code}: {err[-300:]}" for number, code, _, err, _ in done if code]
    check(not failed, f"{len(failed)} of {RUNS} runs failed: {' | '.join(failed)}")
    digests = {digest for _, _, found, _, _ in done for digest in found}
    check(len(digests) == 1 and all(len(found) == RANKS for _, _, found, _, _ in done), f"parameters {digests}")
    seconds = sorted(each for *_, each in done)
    return passed(f"0 of {RUNS} runs failed, {seconds[0]:.1f} to {seconds[-1]:.1f} s each, parameters {digests.pop()}")
