"""Item 2: what ranks say of their waiting. A checkpoint every two steps, written in the background, and a world that loses and gains
ranks while the processes live on: a rank waits for no longer than the clock runs, its totals never fall, and nobody is named as slow
for writing a checkpoint."""

import contextlib
import json
import os
import signal
import sys

from harness import ROOT, check, lenient, meshrun, passed, skip_soak, slow, wait_until
from operations_items.event_files import points

sys.path.append(str(ROOT / "tests/soak"))
from elastic_items.headline import job, processes_of, step_of, submit

SECONDS = 5 if skip_soak() else 12
# A report and its time are taken on two threads of two processes.
LATE = 0.05
SMALL = ["--batch", 128, "--hidden", 16, "--features", 16, "--png", ""]
# Steps of some 20 ms: the blow meets a rank in a collective.
LARGE = ["--batch", 2048, "--hidden", 64, "--features", 32, "--png", ""]
TOTALS = ("waitedSeconds", "collectiveBytes")


class Seen:
    """What each process has told, in the order of its reports."""

    def __init__(self):
        self.by_pid = {}

    def look(self, site, name):
        for rank in job(site, name).get("ranks", []):
            said = rank.get("progress", {})
            if "waitedSeconds" not in said or "stepAtNanos" not in said:
                continue
            told = self.by_pid.setdefault(rank["pid"], [])
            sample = dict(at=int(said["stepAtNanos"]) / 1e9, **{total: float(said.get(total, 0)) for total in TOTALS})
            if not told or told[-1] != sample:
                told.append(sample)

    def judge(self, what):
        """Highest rate of waiting."""
        highest = 0
        for pid, told in self.by_pid.items():
            for before, after in zip(told, told[1:]):
                for total in TOTALS:
                    check(after[total] >= before[total], f"{what}: {total} of process {pid} falls from {before[total]} to {after[total]}")
            if len(told) < 2:
                continue
            waited = told[-1]["waitedSeconds"] - told[0]["waitedSeconds"]
            took = told[-1]["at"] - told[0]["at"]
            check(waited <= took + LATE, f"{what}: process {pid} has waited for {waited:.2f} s in {took:.2f} s")
            highest = max(highest, waited / max(took, LATE))
        return highest


def described(site, name):
    return json.loads(site.run([meshrun(), "describe", name, "-o", "json"])[1])


def checkpoints(site):
    """Highest rate of waiting, and the events that name a rank."""
    curves = site.directory / "curves"
    name = submit(site, "--steps", 100000, "--checkpoint-dir", site.directory / "steps", "--checkpoint-every", 2, nodes=2, report="",
                  flags=["--tensorboard", curves], model=SMALL)
    wait_until(lambda: step_of(site, name) >= 20, 60, "the first steps")
    seen = Seen()
    wait_until(lambda: seen.look(site, name) or len(seen.by_pid) == 2 and all(
        told[-1]["at"] - told[0]["at"] > SECONDS for told in seen.by_pid.values()), 60 + SECONDS, "two ranks report for a while")
    highest = seen.judge("checkpoints in the background")
    named = [event for event in described(site, name).get("events", []) if event["kind"] == "StragglerFound"]
    site.run([meshrun(), "cancel", name])
    wait_until(lambda: job(site, name)["state"] == "JOB_STATE_CANCELLED", 30, f"{name} is cancelled")
    for rank in range(2):
        shares = [share for _, share in points(next(curves.iterdir()) / f"rank{rank}")["meshrun/waited_share"]]
        full = sum(share >= 1 for share in shares)
        # Reports that lay in the socket while their reader had no core seem to have come at once.
        check(full <= lenient(0.05) * len(shares), f"rank {rank} waits all the time in {full} of {len(shares)} reports")
    return highest, named


def worlds(site):
    curves = site.directory / "worlds"
    name = submit(site, "--steps", 100000, nodes="1:3", report="", flags=["--grow", "at-once", "--tensorboard", curves], model=LARGE)
    seen = Seen()
    look = lambda: seen.look(site, name)
    size = lambda: len(job(site, name)["ranks"])

    def train_on(ranks):
        wait_until(lambda: look() or size() == ranks and step_of(site, name) > 0, 60, f"{ranks} ranks train")
        before = step_of(site, name)
        wait_until(lambda: look() or step_of(site, name) > before + 30, 60, f"{ranks} ranks train on")

    train_on(2)
    site.worker("n3", "--slots", 1, "--cores", 1)
    train_on(3)
    places = {rank["nodeName"]: rank["pid"] for rank in job(site, name)["ranks"]}
    check(set(places) == {"n1", "n2", "n3"}, f"not one rank on each worker: {places}")
    for left, victim in ((2, "n3"), (1, "n2")):
        for pid in processes_of(site, victim):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        train_on(left)
    check([rank["pid"] for rank in job(site, name)["ranks"]] == [places["n1"]], "the process of n1 did not live on")
    seen.judge("worlds that change")
    check(len(seen.by_pid[places["n1"]]) > 5, "the process of n1 has hardly reported")
    # The step at which it hears of a loss is the longest, and most of it is a wait.
    times, shares = (dict(points(next(curves.iterdir()) / "rank0")[f"meshrun/{what}"]) for what in ("step_seconds", "waited_share"))
    blow = max(times, key=times.get)
    check(shares[blow] > 0.5, f"at the blow a report of step {blow}, {times[blow]:.1f} s a step, waits for {shares[blow]:.0%}")
    site.run([meshrun(), "cancel", name])
    return shares[blow]


def run(site):
    site.coordinator()
    for worker in range(2):
        site.worker(f"n{worker + 1}", "--slots", 1, "--cores", 1)
    highest, named = checkpoints(site)
    if named:
        # A rank that another program keeps from its processor is slow, and is named for that.
        return slow(f"named beside checkpoints: {[event['message'] for event in named]}", "nobody is named for writing a checkpoint")
    said = f"with a checkpoint every 2 steps a rank waits for at most {highest:.0%} of the time, nobody is named for it"
    if skip_soak():
        return passed(said, left_out="worlds that change")
    at_blow = worlds(site)
    return passed(f"{said}; totals of a process go on over 4 worlds, and {at_blow:.0%} of the step of a loss is a wait")
