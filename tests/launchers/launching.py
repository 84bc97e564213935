"""Starts one program under each launcher that a user might have, and reads what its ranks said.

Every launcher gets the same environment, without what another one might have left in it, and one thread per rank, so that
sums come out in the same order.
"""

import collections
import contextlib
import os
import pathlib
import re
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "soak"), str(TESTS / "acceptance")]
from environments import end_group, free_port, last_line
from harness import binary, meshrun

_FOREIGN = re.compile(r"(RANK|WORLD_SIZE|(LOCAL|GROUP|NODE|ROLE)_.*|MASTER_(ADDR|PORT)|PYTHONPATH"
                      r"|(SLURM|OMPI|PMIX?|TORCHELASTIC|MESHRUN|PET)_.*)")
_RESULT = "ddp_recipe: "


def clean_environment(**changes):
    kept = {name: value for name, value in os.environ.items() if not _FOREIGN.fullmatch(name)}
    return dict(kept, OMP_NUM_THREADS="1", **changes)


class Failed(Exception):
    """A launcher whose ranks did not end well."""


def run_together(commands, timeout=300):
    """Runs commands, each (argv, extra environment), at the same time; returns what they wrote. Raises Failed."""
    processes = []
    try:
        for argv, changes in commands:
            processes.append(subprocess.Popen([str(word) for word in argv], env=clean_environment(**changes), text=True,
                                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                              start_new_session=True))
        outputs = []
        for process in processes:
            output, _ = process.communicate(timeout=timeout)
            outputs.append(output)
            if process.returncode:
                raise Failed(f"{process.args[0]} exited {process.returncode}: {last_line(output)}")
        return "".join(outputs)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{error.cmd[0]} did not end within {timeout} s") from error
    finally:
        for process in processes:
            if process.poll() is None:
                end_group(process, 5)
            with contextlib.suppress(OSError):
                process.stdout.close()


# Each launcher: (program with arguments, number of ranks) -> commands for run_together.

def by_itself(program, ranks):
    assert ranks == 1
    return [(program, {})]


def by_hand(program, ranks):
    port = free_port()
    return [(program, {"RANK": str(r), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": str(ranks),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for r in range(ranks)]


def by_mpirun(program, ranks):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [(["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", ranks, *program], {})]


def by_mpich(program, ranks):
    return [(["mpirun.mpich", "-n", ranks, *program], {})]


def by_slurm_variables(program, ranks):
    return [(program, {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_PROCID": str(r),
                       "SLURM_NPROCS": str(ranks), "SLURM_NTASKS": str(ranks), "SLURM_LOCALID": str(r),
                       "SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_NUM_NODES": "1",
                       "SLURM_TASKS_PER_NODE": str(ranks), "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"})
            for r in range(ranks)]


def by_meshrun(program, ranks):
    return [([meshrun(), "run", "--nproc-per-node", ranks, "--", *program], {})]


def by_torchrun(bin_directory, python=False):
    def commands(program, ranks):
        kind = [] if python else ["--no-python"]
        return [([bin_directory / "torchrun", "--standalone", *kind, f"--nproc-per-node={ranks}", *program], {})]

    return commands


Outcome = collections.namedtuple("Outcome", "ranks result")


def observe(launcher, ranks):
    """What the ranks said of themselves, and the result line of the recipe trained on them."""
    said = run_together(launcher([binary("//tests/bench/launch:launch_rank"), "--print"], ranks))
    identities = sorted(re.findall(r"rank \d+ of \d+, local rank \d+ of \d+, node \d+", said))
    if len(identities) != ranks:
        raise Failed(f"{len(identities)} of {ranks} ranks said who they are: {last_line(said)}")
    trained = run_together(launcher([binary("//jobs/ddp_recipe:ddp_recipe")], ranks))
    results = re.findall(_RESULT + r"\d+ steps.*\S", trained)
    if len(results) != 1:
        raise Failed(f"{len(results)} result lines: {last_line(trained)}")
    return Outcome(identities, results[0].removeprefix(_RESULT))


def compare(launchers, ranks):
    """launchers: name to launcher, the reference first. Prints a row each; returns the names that differ."""
    reference, different = None, []
    for name, launcher in launchers.items():
        try:
            outcome = observe(launcher, ranks)
        except Failed as error:
            print(f"  {name}: {error}", flush=True)
            different.append(name)
            continue
        reference = reference or outcome
        agrees = outcome == reference
        print(f"  {name}: {'; '.join(outcome.ranks)}: {outcome.result}{'' if agrees else '  <- differs'}", flush=True)
        if not agrees:
            different.append(name)
    return different
