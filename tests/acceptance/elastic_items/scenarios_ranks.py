"""Scenarios of faults of ranks: 1 to 4, 15, 18."""

import signal
import threading
import time

from clusters import LEASE, Cluster, kill, now
from harness import NotHere, check, running, wait_until
from elastic_items.scenarios import scenario

RESTARTS = ["--max-restarts", 3, "--kill-grace", "2s"]


def rank_dies(site, report, how):
    cluster = Cluster(site, 3)
    in_process = how == "in process"
    flags = ["--nodes", 3, *RESTARTS] + ([] if in_process else ["--recovery", "respawn"])
    # In lockstep, as a training is: else the killed rank may have been steps ahead of those that live.
    job = cluster.submit_journal(flags, *(["--in-process", "--lockstep"] if in_process else []))
    cluster.wait_stepping(1, 3, 20, job)
    before = {rank: cluster.rank(rank, 1)["pid"] for rank in range(3)}
    at = now()
    kill(before[1])

    def told():
        """By news, or by the SIGTERM that a rank may act on first."""
        entries = [e for e in cluster.journal(generation=1) if e["what"] in ("lost", "stopping", "term") and e["rank"] != 1]
        return {e["rank"]: e for e in reversed(entries)}
    wait_until(lambda: len(told()) == 2, 20, f"peers of a killed rank hear of it ({how})")
    report.time(f"{how}: peers told after", max(e["at"] for e in told().values()) - at, 1.0)
    for entry in told().values():
        check(entry["what"] == "term" and not in_process or "SIGKILL" in entry.get("reason", ""), f"rank {entry['rank']} is told {entry}")
    report.time("all step again after", cluster.wait_stepping(2, 3, 15, job) - at, 3.0)
    view = cluster.job(job)
    check(int(view.get("restarts", 0)) == 1, f"{view.get('restarts')} restarts, not 1")
    failure = view["failure"]
    check(failure.get("rank") == 1 and failure["exit"]["signal"] == 9, f"the failure is {failure}")
    for rank in (0, 2):
        same = cluster.rank(rank, 2)["pid"] == before[rank]
        check(same == in_process, f"{how}: rank {rank} is {'the same' if same else 'another'} process")
    if in_process:
        # At most one step of work is lost: what they hand on is what they had.
        had = max(e["step"] for e in cluster.journal(what="step", generation=1))
        resumed = {e["rank"]: e["step"] for e in cluster.journal(what="resumed", generation=2)}
        check(len(resumed) == 3 and min(resumed.values()) >= had - 1, f"had {had} steps, resumed at {resumed}")
        report.say(f"resumed at step {min(resumed.values())} of {had}")


@scenario(1, "kill -9 of a rank, survivors in process")
def rank_killed(site, report):
    rank_dies(site, report, "in process")


@scenario(1, "kill -9 of a rank, all started anew")
def rank_killed_respawn(site, report):
    rank_dies(site, report, "respawn")


FAILING = """#!/bin/sh
if [ "$RANK" = 1 ]; then
  while [ ! -e {directory}/up.$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.02; done
  printf '{{"message": {{"message": "ValueError: the loss is not finite", "extraInfo": {{"py_callstack": "Traceback", "timestamp": "1"}}}}}}' \\
    > "$TORCHELASTIC_ERROR_FILE"
  exit 1
fi
touch {directory}/up.$TORCHELASTIC_RESTART_COUNT
while true; do sleep 0.05; done
"""


@scenario(2, "a rank throws")
def rank_throws(site, report):
    cluster = Cluster(site, 2)
    script = site.script("failing.sh", FAILING.format(directory=site.directory))
    job = cluster.submit(["--nodes", 2, "--max-restarts", 1, "--kill-grace", "1s"], [script])
    cluster.wait_state(job, "FAILED", 20)
    view = cluster.job(job)
    check(view["restarts"] == 1 and view["restartsCharged"] == 1, f"restarts {view['restarts']}, charged {view['restartsCharged']}")
    failure = view["failure"]
    check(failure["rank"] == 1 and failure["exit"]["exitCode"] == 1, f"the failure is {failure}")
    check("loss is not finite" in failure["exit"].get("errorMessage", ""), f"the error file is not shown: {failure['exit']}")
    peer = view["ranks"][0]["exit"]
    check(peer.get("teardown"), f"the peer's death is not a consequence: {peer}")
    report.say("error file shown, budget 1 of 1 used, the peer's death is a consequence")


@scenario(3, "SIGSTOP of a rank within a collective")
def rank_stopped(site, report):
    cluster = Cluster(site, 2)
    job = cluster.submit_journal(["--nodes", 2, *RESTARTS, "--hang-timeout", "2s"], "--lockstep")
    cluster.wait_stepping(1, 2, 20, job)
    victim = cluster.rank(1, 1)["pid"]
    at = now()
    kill(victim, signal.SIGSTOP)
    suspected = wait_until(lambda: cluster.events(job, "HangSuspected"), 15, "the hang is suspected")
    check(running(victim), "the rank was killed before its state was taken")
    event = cluster.events(job, "HangSuspected")[0]
    report.time("suspected after", suspected, 2 + 3)
    wait_until(lambda: not running(victim), 25, "the hanging rank is killed")
    report.time("killed after", now() - at, 2 + 10 + 5)
    dumps = [p for p in site.directory.glob(f"n*/logs/{job}/1/*") if "dump" in p.name and p.stat().st_size]
    report.say(f"'{event['message']}'")
    cluster.wait_stepping(2, 2, 15, job)
    failure = cluster.events(job, "RankHung")
    check(failure, f"no event RankHung: {[e['kind'] for e in cluster.events(job)]}")
    check(len(dumps) == 2, f"{len(dumps)} dumps of 2 ranks were written before one was killed")
    check(any("State: stopped" in p.read_text() or "stopped" in p.read_text() for p in dumps), "no dump says that its rank is stopped")
    report.say("a dump of each rank before it")


@scenario(4, "a rank dies during ncclCommInit")
def nccl_init(site, report):
    raise NotHere("no GPU")


@scenario(15, "the host of rank 0 goes for good")
def rank_zero_host(site, report):
    cluster = Cluster(site, 3)
    job = cluster.submit_journal(["--nodes", "2:3", *RESTARTS, "--replace", "at-once"], "--in-process")
    cluster.wait_stepping(1, 3, 20, job)
    master = cluster.rank(0, 1)["master"]
    stays = {rank: cluster.rank(rank, 1) for rank in (1, 2)}
    at = cluster.power_off(cluster.rank(0, 1)["node"])
    report.time("the others step again after", cluster.wait_stepping(2, 2, 20, job) - at, LEASE + 3)
    places = [cluster.rank(rank, 2) for rank in (0, 1)]
    check([p["pid"] for p in places] == [stays[1]["pid"], stays[2]["pid"]], "the ranks that stay do not keep their order")
    check(len({p["master"] for p in places}) == 1 and places[0]["master"] != master,
          f"MASTER_ADDR:MASTER_PORT was {master}, is {[p['master'] for p in places]}")
    report.say(f"master {master} -> {places[0]['master']}")


class Throttle:
    """Stops a process for most of the time, as a host does that throttles it."""

    def __init__(self, site, pid, stopped=0.2, runs=0.04):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(pid, stopped, runs), daemon=True)
        self.thread.start()
        site.cleanup.callback(self.end)

    def _run(self, pid, stopped, runs):
        while not self.over.is_set():
            kill(pid, signal.SIGSTOP)
            self.over.wait(stopped)
            kill(pid, signal.SIGCONT)
            self.over.wait(runs)

    def end(self):
        self.over.set()
        self.thread.join()


@scenario(18, "a rank that is slowed down, the others in step with it")
def straggler(site, report):
    cluster = Cluster(site, 3)
    job = cluster.submit_journal(["--nodes", 3, *RESTARTS], "--lockstep", "--step-ms", 40)
    cluster.wait_stepping(1, 3, 20, job)

    def steps(since=0.0):
        return len([e for e in cluster.journal(what="step", rank=0) if e["at"] >= since])
    wait_until(lambda: steps() >= 100, 60, "100 steps in step")
    check(not cluster.events(job, "StragglerFound"), f"named without a cause: {cluster.events(job, 'StragglerFound')}")
    slow = cluster.rank(1, 1)
    at = now()
    throttle = Throttle(site, slow["pid"])
    wait_until(lambda: cluster.events(job, "StragglerFound"), 40, "the slow rank is named")
    report.time("named after", now() - at, 15)
    report.say(f"{steps(at)} steps")
    time.sleep(2)
    events = cluster.events(job, "StragglerFound")
    report.say(f"'{events[0]['message']}'")
    check(len(events) == 1, f"others are blamed: {[e['message'] for e in events]}")
    named = cluster.job(job)["stragglers"]
    check([s["rank"] for s in named] == [1] and named[0]["nodeName"] == slow["node"], f"named are {named}")
    check(named[0]["computesSeconds"] > 2 * named[0]["medianSeconds"], f"the evidence is {named[0]}")
    for command in ("describe", "why"):
        check(f"rank 1 on {slow['node']} computes" in cluster.ask(command, job), f"meshrun {command} does not show it")
    throttle.end()
    report.time("cleared after", wait_until(lambda: cluster.events(job, "StragglerRecovered"), 30, "it keeps pace again"), 15)
    view = cluster.job(job)
    check(not view.get("stragglers") and int(view["generation"]) == 1 and not view.get("restarts"), f"the job was disturbed: {view}")
