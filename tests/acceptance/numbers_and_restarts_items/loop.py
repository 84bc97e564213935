"""Jobs of tests/acceptance/ranks/loop_training: how they start, where they trained, and whether two have the same parameters."""

import json

from clusters import Cluster
from harness import binary, check, meshrun
from parameters import relative_l2, same_bits

RANK = "//tests/acceptance/ranks:loop_training"
# One thread a rank, and sums in the order of ranks: buckets of gradients, which a new world cuts anew, then do not matter.
ENV = {"OMP_NUM_THREADS": 1, "MESHRUN_REDUCTION_ORDER": "rank"}
CLOSE = 1e-6


def env_flags(**more):
    return [word for name, value in {**ENV, **more}.items() for word in ("--env", f"{name}={value}")]


def command(site, name, *words):
    return [binary(RANK), "--directory", site.directory, "--name", name, *words]


def cluster_of(site, nodes):
    """Hosts are not put aside for the ranks that are killed there."""
    return Cluster(site, nodes, coordinator_flags=["--quarantine-after", 0])


def submit(cluster, name, flags, words, kill_at=""):
    more = {"MESHRUN_KILL_AT": kill_at} if kill_at else {}
    return cluster.submit([*flags, *env_flags(**more)], command(cluster.site, name, *words))


def await_success(cluster, job, what):
    """Its view. Not polled: that would cost the ranks their processors."""
    cluster.site.run([meshrun(), "wait", job], timeout=600)
    view = cluster.job(job)
    check(view["state"] == "JOB_STATE_SUCCEEDED",
          f"{what}: {view['state']}: {view.get('reason', '')}; it said: {said(cluster, job, 'stderr')[-500:]}")
    return view


def said(cluster, job, stream):
    """What the ranks of a job wrote, on all hosts and in all generations."""
    files = sorted(cluster.site.directory.glob(f"n*/logs/{job}/*/*.{stream}.log"))
    return "".join(path.read_text(errors="replace") for path in files)


def places(site, name):
    """By generation, the places of its ranks by number. Of whole lines: a rank may be writing the last one."""
    found = {}
    for line in (site.directory / f"{name}.places").read_text().rpartition("\n")[0].splitlines():
        place = json.loads(line)
        found.setdefault(place["generation"], {})[place["rank"]] = place
    return found


def files(site, name, rank):
    return [site.directory / f"{name}{kind}-rank-{rank}.safetensors" for kind in ("", "-average")]


def check_same_bits(site, one, other, ranks):
    for rank in range(ranks):
        for a, b in zip(files(site, one, rank), files(site, other, rank)):
            check(same_bits([a, b]), f"{a.name} and {b.name} differ: relative L2 {relative_l2(a, b)[0]:.1e}")


def distance(site, one, other, ranks):
    """The largest relative L2 of a tensor, between rank 0 of one run and each rank of another."""
    return max(relative_l2(a, b)[0] for rank in range(ranks) for a, b in zip(files(site, one, 0), files(site, other, rank)))
