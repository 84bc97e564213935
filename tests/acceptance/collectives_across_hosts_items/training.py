"""Data-parallel training on two hosts of two ranks at 1 Gbit/s: bytes and time of a step, and a trace of what lies beside what."""

import json
import statistics

from collectives_across_hosts_items.two_levels import SHARE, by_env, even, run_ranks, slow_down
from harness import check, not_applicable, passed, skip_soak
from namespaces import Hosts, NotPermitted

RANK = "//tests/acceptance/ranks:crossing_training_rank"
RANKS = 4
# Computing them takes about as long as sending the gradients.
ROWS = 128
# The first steps connect, and cut the buckets anew.
STEPS = "3-7"


def merged(spans):
    """Without overlaps, in order."""
    result = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def under_backward(path):
    """By step of a trace: of the time in which gradients travel, the share that lies under the backward pass."""
    spans = {}
    for event in json.loads(path.read_text()):
        if event["ph"] == "X":
            span = (event["ts"], event["ts"] + event["dur"])
            spans.setdefault(event["args"]["step"], {}).setdefault(event["name"], []).append(span)
    shares = []
    for step in spans.values():
        (begin, end), = step["backward"]
        travels = merged(step["all-reduce"])
        under = sum(max(min(last, end) - max(first, begin), 0) for first, last in travels)
        shares.append(under / sum(last - first for first, last in travels))
    return shares


def overlap(site, hosts):
    """What rank 0 prints of a larger batch, and the ranks' median shares in their traces."""
    traces = site.directory / "traces"
    (row,) = run_ranks(site, hosts, even(hosts, RANKS), by_env,
                       {"MESHRUN_BACKEND": "ucx", "MESHRUN_TRACE_DIR": traces, "MESHRUN_TRACE_STEPS": STEPS}, RANK, (ROWS,))
    files = sorted(traces.iterdir())
    check(len(files) == RANKS, f"{len(files)} traces of {RANKS} ranks")
    shares = [under_backward(path) for path in files]
    check(all(len(each) == 5 for each in shares), f"steps {STEPS} are {[len(each) for each in shares]} in the traces")
    return row, [statistics.median(each) for each in shares]


def run(site):
    try:
        hosts = Hosts(site, {"a": "node-a", "b": "node-b"}, "rank-zero")
    except NotPermitted as reason:
        return not_applicable(f"no such namespaces here: {reason}")
    has_speed = slow_down(hosts)
    # Gloo's time is only printed.
    rows = {backend: {row["name"]: row for row in
                      run_ranks(site, hosts, even(hosts, RANKS), by_env, {"MESHRUN_BACKEND": backend}, RANK)}
            for backend in (("ucx",) if skip_soak() else ("ucx", "gloo"))}
    full, half = rows["ucx"]["float32"], rows["ucx"]["bfloat16"]
    gloo = "" if skip_soak() else f", Gloo {rows['gloo']['float32']['seconds']:.3f}"
    for row in (full, half):
        check(row["share"] <= SHARE, f"gradients of {row['name']}: {row['bytes']} bytes a step, {row['share']:.2f} of what must")
    share = half["bytes"] / full["bytes"]
    traced, shares = overlap(site, hosts)
    figures = (f"a step sends {full['share']:.3f} of the least bytes, with gradients of bfloat16 {half['share']:.3f} of the "
               f"least, {share:.2f} of float32's; {'1 Gbit/s' if has_speed else 'no tc'}: "
               f"seconds a step {full['seconds']:.3f}, bfloat16 {half['seconds']:.3f}{gloo}; "
               f"traces of steps of {traced['seconds']:.3f} s with {ROWS} rows a rank: of the time in which gradients travel "
               f"{min(shares):.0%} to {max(shares):.0%} lies under the backward pass")
    check(share <= 0.55, f"{figures} (target 0.5 of float32's bytes)")
    check(min(shares) > 0, f"{figures} (target more than 0)")
    return passed(figures, "Gloo's time" if skip_soak() else "")
