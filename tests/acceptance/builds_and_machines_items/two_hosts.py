"""Two hosts whose own names lead to loopback, and which may even have one name: network, UTS, IPC and mount namespaces."""

import os
import re
import subprocess
import threading

from harness import binary, check, not_applicable, passed
from namespaces import Hosts, NotPermitted

CONFORMANCE = "//tests/parallel/collectives/conformance:conformance_test"
PLACES = "//tests/parallel:ranks_test"
# Both hosts have two ranks: 0 and 1 on "a", 2 and 3 on "b".
HOST_OF = "aabb"
PORT = 17411


def env(rank):
    """Neither the rank's place on its host nor its host's number: the ranks find them out."""
    return {"RANK": rank, "WORLD_SIZE": 4, "MASTER_PORT": PORT}


def slurm(rank):
    return {"SLURM_PROCID": rank, "SLURM_NPROCS": 4, "SLURM_LOCALID": rank % 2, "SLURM_NODEID": rank // 2,
            "SLURM_JOB_ID": 4711, "SLURM_STEP_ID": 0}


def run_ranks(site, hosts, label, function, launch, more):
    """Runs a rank function on 2 x 2 ranks; returns what each has written."""
    program = binary(label)
    inherited = {name: value for name, value in os.environ.items()
                 if not re.match("MASTER_|MESHRUN_|SLURM_|OMPI_|PMIX_|TORCHELASTIC_|RANK$|WORLD_SIZE$|LOCAL_", name)}
    outputs = [site.directory / f"rank-{rank}.log" for rank in range(4)]
    ranks = []
    for rank, path in enumerate(outputs):
        settings = {**launch(rank), "MASTER_ADDR": "rank-zero", "MESHRUN_TEST_RANK_FUNCTION": function,
                    "MESHRUN_TIMEOUT_SECONDS": 120, **more}
        with open(path, "w") as output:
            ranks.append(subprocess.Popen(hosts.on(HOST_OF[rank], [program]), stdin=subprocess.DEVNULL, stdout=output,
                                          stderr=subprocess.STDOUT, start_new_session=True, cwd=site.directory,
                                          env={**inherited, **{name: str(value) for name, value in settings.items()}}))
        site.cleanup.callback(ranks[-1].kill)
    # All at once: a rank that fails must not leave the others waiting for the end of this program.
    deadline = threading.Timer(600, lambda: [rank.kill() for rank in ranks])
    deadline.start()
    codes = [rank.wait() for rank in ranks]
    deadline.cancel()
    said = [path.read_text(errors="replace") for path in outputs]
    lines = [f"rank {rank}: {text.strip().splitlines()[-1:]}" for rank, text in enumerate(said)]
    check(codes == [0, 0, 0, 0], f"{function}, {launch.__name__}, {more}: exit codes {codes}: {' '.join(lines)[:1500]}")
    return said


def run(site):
    figures = []
    for names in ({"a": "node-a", "b": "node-b"}, {"a": "node", "b": "node"}):
        try:
            hosts = Hosts(site, names, "rank-zero")
        except NotPermitted as reason:
            return not_applicable(f"no such namespaces here: {reason}")
        for launch in (env, slurm):
            for backend in ("ucx", "gloo"):
                said = run_ranks(site, hosts, PLACES, "places", launch, {"MESHRUN_BACKEND": backend})
                for rank, text in enumerate(said):
                    expected = f"rank {rank}: nodes 0 0 1 1, local rank {rank % 2} of 2, on node {rank // 2}, sum 6"
                    check(expected in text, f"{launch.__name__}, {backend}: not \"{expected}\" but {text.strip()[-300:]}")
            before = hosts.bytes_between()
            run_ranks(site, hosts, CONFORMANCE, "closed forms", launch, {"UCX_TLS": "tcp"})
            moved = hosts.bytes_between() - before
            # The vectors are short: connections, headers and 50 kB.
            check(moved > 20_000, f"only {moved} bytes went between the hosts")
            figures.append(f"{launch.__name__} on {names['a']} and {names['b']}: {moved / 1e6:.1f} MB")
        hosts.remove()
    return passed("closed forms hold on 2 x 2 ranks, rank 0's name at 127.0.1.1 on its host; ucx and gloo; "
                  + "; ".join(figures))
