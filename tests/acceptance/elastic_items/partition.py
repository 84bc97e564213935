"""Item 5: a node is cut off for a minute while its ranks ignore SIGTERM and the job's grace is ten minutes; a spare stands by.
From the ranks' own journals: nobody computes past the fence, nobody commits beside the current generation."""

import concurrent.futures
import contextlib

from clusters import Cluster, now
from harness import Site, check, running, wait_until
from elastic_items.report import Report, whole

FLAGS = ["--nodes", 2, "--max-restarts", 3, "--kill-grace", "10m"]
# What worker/ adds to --orphan-timeout until the last process is gone (docs/protocol.md).
BEYOND = 7


def run(site):
    report = Report()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(play, commits) for commits in (True, False)]:
            part = done.result()
            report.figures += part.figures
            report.over += part.over
    return report.verdict()


def play(commits):
    report = Report()
    with contextlib.ExitStack() as cleanup:
        cut_off(Site(cleanup), report, commits)
    return report


def cut_off(site, report, commits):
    """commits: the job's checkpoints are fenced by the coordinator, so the spare does not wait for the fence time."""
    orphan = whole(3, 40)
    cluster = Cluster(site, 3, worker_flags=["--orphan-timeout", f"{orphan}s"])
    job = cluster.submit_journal(FLAGS, "--in-process", "--ignore-term", *(["--commit-every", 10] if commits else []))
    cluster.wait_stepping(1, 2, 20, job)
    if commits:
        wait_until(lambda: cluster.journal(what="commit"), 10, "a checkpoint is committed")
    # It is rank 0 that commits.
    old = cluster.rank(0, 1)
    cut = now()
    cluster.nodes[old["node"]].proxy.hold()
    fence = cut + orphan + BEYOND
    cluster.wait_stepping(2, 2, orphan + BEYOND + 15, job)
    wait_until(lambda: now() > cut + whole(13, 60), 70, "the partition lasts")
    cluster.nodes[old["node"]].proxy.heal()
    wait_until(lambda: cluster.node_states()[old["node"]]["state"] == "NODE_STATE_HEALTHY", 15, "the node is back")
    healed = now()
    wait_until(lambda: now() > healed + 2, 5, "the healed cluster goes on")

    check(not running(old["pid"]), "the rank that was cut off lives on")
    last = max(e["at"] for e in cluster.journal(what="step", pid=old["pid"]))
    check(last <= fence, f"the rank that was cut off computed {last - fence:.2f} s past its fence time")
    fresh = [e for e in cluster.journal(what="joined", generation=2) if e["process"].startswith("2-")]
    check(fresh, "the spare has no rank")
    begun = min(e["at"] for e in fresh)
    if commits:
        # The right: from the first commit of a generation to its last; they must not overlap.
        right = {g: [c["at"] for c in cluster.journal(what="commit") if c["generation"] == g] for g in (1, 2)}
        check(right[1] and right[2] and max(right[1]) < min(right[2]), f"both generations committed at once: {right}")
        check(max(right[1]) < cut + 5 + 1, "the rank that was cut off committed")
        commits = cluster.lineage()
        refused = cluster.journal(what="refused", pid=old["pid"])
        report.say(f"fenced commits: the spare begins {begun - cut:.1f} s after the cut, the old rank ends at {last - cut:.1f} s "
                   f"(fence {fence - cut:.0f}), one lineage of {len(commits)} commits, {len(refused)} refused")
    else:
        check(last < begun, f"the spare's rank began {last - begun:.2f} s before the old one ended")
        report.say(f"no commits: the old rank ends {last - cut:.1f} s after the cut, the spare begins at {begun - cut:.1f} s, "
                   f"fence {fence - cut:.0f} s")
    # Once the new generation's survivors and replacements compute, no rank of an old one does, except the one cut off.
    together = cluster.stepping(2, 2)
    for entry in cluster.journal(what="step", generation=1):
        check(entry["pid"] == old["pid"] or entry["from"] < together, f"{entry['process']} stepped in two generations")
    check(int(cluster.job(job)["generation"]) == 2, "the heal made another generation")
