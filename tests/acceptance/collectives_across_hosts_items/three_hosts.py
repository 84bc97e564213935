"""Collectives on three hosts of 1, 2 and 3 ranks, with a slow way to one of them: results, bytes, and no timeout."""

from collectives_across_hosts_items.two_levels import SUMS, by_env, run_collectives
from harness import check, not_applicable, passed, skip_soak
from namespaces import Hosts, NotPermitted

DELAY = 0.02  # seconds, each way
PLACES = "abbccc"
MOST_SECONDS = 20  # of an operation on 16 MiB


def run(site):
    try:
        hosts = Hosts(site, {host: f"node-{host}" for host in "abc"}, "rank-zero", {"c": DELAY})
    except NotPermitted as reason:
        return not_applicable(f"no such namespaces here: {reason}")
    # TCP sends some of what the slow way delays twice: the least of two rounds counts.
    rows = run_collectives(site, hosts, PLACES, by_env, {"MESHRUN_TEST_ROUNDS": 2} if skip_soak() else None)
    for row in rows:
        check(row["seconds"] < MOST_SECONDS, f"{row['name']} took {row['seconds']:.1f} s")
    return passed(f"1 + 2 + 3 ranks, {1000 * DELAY:.0f} ms more each way to the third host: results are right, {SUMS} sums of "
                  "random numbers have the oracle's bits; bytes of what must cross, and seconds for 16 MiB: " +
                  ", ".join(f"{row['name']} {row['share']:.3f}, {row['seconds']:.2f}" for row in rows))
