"""Item 6: a rank is killed at each statement after its loop. The job has SUCCEEDED once, and its result was printed once."""

import json

from elastic_items.report import whole
from harness import check, passed, skip_soak, wait_until
from numbers_and_restarts_items.loop import await_success, cluster_of, said, submit

# Killed before any report that the work is finished: the ranks do the end of the body again.
BEFORE = ("loop", "evaluated", "written", "told")
# "barrier": past the last barrier, before the own report; "cleanup": within it.
AFTER = ("barrier", "finished", "printing", "printed", "left", "cleanup", "cleaned", "exit")
# Kills after which rank 0, which prints, may have printed nothing: the job is finished by then, and no other rank prints in its
# place (docs/elastic.md).
UNSURE = ("barrier", "finished", "printing")
RANKS = 2
STEPS = 4


def check_end(cluster, job, statement, rank):
    """How many results were printed."""
    name = f"{statement}-{rank}"
    what = f"rank {rank} killed at {statement}"
    view = await_success(cluster, job, what)
    result = f"result of {name}: {STEPS} steps"

    def printed():
        return said(cluster, job, "stdout").count(result)
    is_unsure = rank == 0 and statement in UNSURE
    if not is_unsure:
        wait_until(printed, 20, f"{what}: its result is printed")
    check(printed() <= 1, f"{what}: printed {printed()} times")
    events = [event["kind"] for event in cluster.events(job)]
    check(events.count("JobSucceeded") == 1 and "JobFailed" not in events, f"{what}: its events are {events}")
    restarts = int(view.get("restarts", 0))
    if statement in BEFORE:
        check(restarts == 1, f"{what}: {restarts} restarts, not 1")
    elif statement == "barrier":
        # Another rank's report or the loss, whatever came first.
        check(restarts == 1 or "EndedAfterFinish" in events, f"{what}: its events are {events}")
    else:
        check(not restarts and "EndedAfterFinish" in events, f"{what}: {restarts} restarts, its events are {events}")
    check(result in json.dumps(cluster.describe(job)), f"{what}: meshrun describe does not show its result")
    return printed()


def run(site):
    """(verdict, figures)"""
    statements = BEFORE + AFTER
    every = [(statement, rank) for statement in statements for rank in range(RANKS)]
    cases = whole([(statement, i % RANKS) for i, statement in enumerate(statements)], every)
    # As many at once as there is room for.
    cluster = cluster_of(site, RANKS)
    jobs = {(statement, rank): submit(cluster, f"{statement}-{rank}", ["--nodes", RANKS, "--procs-per-node", 1, "--max-restarts", 3],
                                      ["--steps", STEPS], f"{rank}:end:{statement}") for statement, rank in cases}
    printed = {case: check_end(cluster, job, *case) for case, job in jobs.items()}
    silent = [f"rank {rank} at {statement}" for (statement, rank), count in printed.items() if count == 0]
    figures = (f"{len(cases)} jobs, a rank of each killed at one of {len(statements)} statements: each SUCCEEDED once, "
               f"{len(cases) - len(silent)} results printed once; shown by meshrun describe alone, since the rank that prints had gone: "
               f"{', '.join(silent) or 'none'}")
    return passed(figures, f"every statement on every rank: {len(every)} jobs" if skip_soak() else "")
