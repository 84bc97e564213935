"""Collectives on two hosts (network, UTS, IPC and mount namespaces): results, and bytes through the veth between them."""

import json
import os
import re
import shutil
import subprocess
import threading

from harness import binary, check, not_applicable, passed, skip_soak
from namespaces import Hosts, NotPermitted

RANK = "//tests/acceptance/ranks:crossing_rank"
PORT = 17431
SHARE = 1.1  # of the least that must cross
SUMS = 54  # three sizes, types and operations, as sum and as mean
IN_RANK_ORDER = {"MESHRUN_REDUCTION_ORDER": "rank"}


def by_env(rank, size):
    return {"RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": PORT}


def by_slurm(rank, size):
    return {"SLURM_PROCID": rank, "SLURM_NPROCS": size, "SLURM_LOCALID": rank % (size // 2),
            "SLURM_NODEID": rank // (size // 2), "SLURM_JOB_ID": 4712, "SLURM_STEP_ID": 0}


def even(hosts, size):
    """The host of each rank."""
    return [host for host in hosts.hosts for _ in range(size // len(hosts.hosts))]


def run_ranks(site, hosts, places, launch, more, program=RANK, arguments=()):
    """What rank 0 prints: a list of rows. places: the host of each rank. arguments: behind the interface."""
    size = len(places)
    program = binary(program)
    inherited = {name: value for name, value in os.environ.items()
                 if not re.match("MASTER_|MESHRUN_|SLURM_|OMPI_|PMIX_|TORCHELASTIC_|RANK$|WORLD_SIZE$|LOCAL_", name)}
    ranks, outputs = [], [site.directory / f"rank-{rank}.log" for rank in range(size)]
    for rank, (path, host) in enumerate(zip(outputs, places)):
        settings = {**launch(rank, size), "MASTER_ADDR": "rank-zero", "MESHRUN_TIMEOUT_SECONDS": 120, **more}
        with open(path, "w") as output:
            ranks.append(subprocess.Popen(hosts.on(host, [program, hosts.links[host], *map(str, arguments)]),
                                          stdin=subprocess.DEVNULL,
                                          stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                          cwd=site.directory,
                                          env={**inherited, **{name: str(value) for name, value in settings.items()}}))
        site.cleanup.callback(ranks[-1].kill)
    deadline = threading.Timer(300, lambda: [rank.kill() for rank in ranks])
    deadline.start()
    codes = [rank.wait() for rank in ranks]
    deadline.cancel()
    said = [path.read_text(errors="replace") for path in outputs]
    last = [f"rank {rank}: {text.strip().splitlines()[-1:]}" for rank, text in enumerate(said)]
    check(codes == [0] * size, f"{launch.__name__}, {size} ranks, {more}: exit codes {codes}: {' '.join(last)[:1500]}")
    return [json.loads(line) for line in said[0].splitlines() if line.startswith("{")]


def run_collectives(site, hosts, places, launch, more=None, sums_alone=False):
    """The rows of 16 MiB. Every rank checks its results itself, those of random numbers by an oracle that adds in the same order.
    For sums, rank order moves more bytes than must cross."""
    # Ranks that share cores only slow each other down with several threads.
    more = {"MESHRUN_BACKEND": "ucx", "OMP_NUM_THREADS": 1, **({"MESHRUN_TEST_ROUNDS": 1} if skip_soak() else {}), **(more or {})}
    rows = run_ranks(site, hosts, places, launch, more, arguments=("".join(places), *(["sums"] if sums_alone else [])))
    what = f"{launch.__name__} on hosts {''.join(places)}, {more}"
    check(len(rows) == (1 if sums_alone else 6) and rows[-1]["name"] == "brackets", f"{what}: {len(rows)} rows")
    brackets = rows.pop()
    check(brackets["calls"] == SUMS and brackets["told_apart"] > 0,
          f"{what}: compared {brackets}, not {SUMS} sums that tell the orders apart")
    for row in rows:
        if more.items().isdisjoint(IN_RANK_ORDER.items()) or "reduce" not in row["name"]:
            check(row["share"] <= SHARE, f"{row['name']}, {what}: {row['bytes']} bytes crossed, {row['share']:.2f} of what must")
    return rows


def slow_down(hosts):
    """The link has 1 Gbit/s; False: this machine's kernel cannot."""
    if not shutil.which("tc"):
        return False
    for host in "ab":
        done = subprocess.run(hosts.on(host, ["tc", "qdisc", "add", "dev", hosts.links[host], "root", "tbf", "rate",
                                              "1gbit", "burst", "1mb", "latency", "50ms"]), capture_output=True)
        if done.returncode:
            return False
    return True


def run(site):
    figures = []
    launches = (by_env,) if skip_soak() else (by_env, by_slurm)
    for names in ({"a": "node-a", "b": "node-b"}, {"a": "node", "b": "node"}):
        differ = names["a"] != names["b"]
        try:
            hosts = Hosts(site, names, "rank-zero")
        except NotPermitted as reason:
            return not_applicable(f"no such namespaces here: {reason}")
        for launch in launches:
            for size in (4, 6) if differ else (4,):
                rows = run_collectives(site, hosts, even(hosts, size), launch)
                worst = max(rows, key=lambda row: row["share"])
                figures.append(f"{launch.__name__} on {names['a']} and {names['b']}, 2 x {size // 2}: at most "
                               f"{worst['share']:.3f} ({worst['name']})")
        if differ:
            run_collectives(site, hosts, even(hosts, 4), by_env, IN_RANK_ORDER, sums_alone=skip_soak())
            figures.append(f"{SUMS} sums of random numbers in each run have the oracle's bits, once more in rank order")
        if differ and not skip_soak() and slow_down(hosts):
            times = {backend: {row["name"]: row["seconds"] for row in
                               run_ranks(site, hosts, even(hosts, 4), by_env, {"MESHRUN_BACKEND": backend})}
                     for backend in ("ucx", "gloo")}
            figures.append("16 MiB at 1 Gbit/s, seconds of ucx and of Gloo: " + ", ".join(
                f"{name} {seconds:.2f} and {times['gloo'][name]:.2f}" for name, seconds in times["ucx"].items()))
        hosts.remove()
    return passed("; ".join(figures), "SLURM_* starts, 16 MiB in rank order, times at 1 Gbit/s" if skip_soak() else "")
