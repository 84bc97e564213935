"""Data-parallel training on two hosts of two ranks at 1 Gbit/s: bytes and time of a step."""

from across_hosts_items.two_levels import SHARE, by_env, even, run_ranks, slow_down
from harness import check, not_applicable, passed
from namespaces import Hosts, NotPermitted

RANK = "//tests/acceptance/ranks:crossing_training_rank"


def run(site):
    try:
        hosts = Hosts(site, {"a": "node-a", "b": "node-b"}, "rank-zero")
    except NotPermitted as reason:
        return not_applicable(f"no such namespaces here: {reason}")
    has_speed = slow_down(hosts)
    rows = {backend: {row["name"]: row for row in
                      run_ranks(site, hosts, even(hosts, 4), by_env, {"MESHRUN_BACKEND": backend}, RANK)}
            for backend in ("ucx", "gloo")}
    full, half, gloo = rows["ucx"]["float32"], rows["ucx"]["bfloat16"], rows["gloo"]["float32"]
    for row in (full, half):
        check(row["share"] <= SHARE, f"gradients of {row['name']}: {row['bytes']} bytes a step, {row['share']:.2f} of what must")
    share = half["bytes"] / full["bytes"]
    figures = (f"a step sends {full['share']:.3f} of the least bytes, with gradients of bfloat16 {half['share']:.3f} of the "
               f"least, {share:.2f} of float32's; {'1 Gbit/s' if has_speed else 'no tc'}: "
               f"seconds a step {full['seconds']:.3f}, bfloat16 {half['seconds']:.3f}, Gloo {gloo['seconds']:.3f}")
    check(share <= 0.55, f"{figures} (target 0.5 of float32's bytes)")
    return passed(figures)
