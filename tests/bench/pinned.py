"""Runs a benchmark's ranks under mpirun, each pinned to a core of its own, and reads the JSON lines of rank 0."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "launchers")]
from launching import clean_environment


class Failed(Exception):
    """The ranks did not end well; what they said is on stderr."""


def may_be_real_time():
    """Whether this user may give the ranks the cores before everything else: on a machine that others use, too, times
    mean little otherwise."""
    if shutil.which("chrt") is None:
        return False
    return subprocess.run(["chrt", "-r", "1", "true"], stderr=subprocess.DEVNULL).returncode == 0


def add_options(parser):
    parser.add_argument("--ranks", type=int, default=2, help="processes, each on a core of its own (default 2)")
    parser.add_argument("--no-real-time", action="store_true", help="leave the ranks to the scheduler among other "
                        "processes, also where chrt could put them before those")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")


def lines(program, arguments, options):
    """Yields the objects that rank 0 writes, as they come. Raises Failed."""
    if shutil.which("mpirun") is None:
        raise Failed("mpirun is missing: tools/setup installs it (openmpi-bin)")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    real_time = ["chrt", "-r", "1"] if not options.no_real_time and may_be_real_time() else []
    argv = [*real_time, "mpirun", *root, "--bind-to", "core", "-n", options.ranks, program, *arguments]
    with subprocess.Popen([str(word) for word in argv], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                          env=clean_environment()) as process:
        try:
            for line in process.stdout:
                value = json.loads(line)
                if "torch" in value:
                    value["real_time"] = bool(real_time)
                yield value
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                process.terminate()
    if process.returncode:
        raise Failed(f"mpirun exited {process.returncode}")


def describe(machine):
    scheduling = "before other processes (SCHED_RR)" if machine["real_time"] else "among other processes"
    load = " ".join(f"{value:.1f}" for value in machine["load_average"])
    return (f"{machine['ranks']} ranks on cores {', '.join(machine['cores'])}, {scheduling}; "
            f"torch {machine['torch']}, UCX {machine['ucx']}, {machine['open_mpi']}, Gloo {machine['gloo']}; header check {'on' if machine['header_check'] else 'off'}; "
            f"load average {load}")
