"""Runs Python programs with the extension, as ranks: what the tests of the extension share."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "soak"), str(TESTS / "acceptance")]
import built
from built import Failed
from environments import Missing, end_group, free_port, scratch
from harness import Short, skip_soak

# Ranks are forked, so that torch is loaded once for all of them.
SPAWN = """import importlib
import sys
import torch.multiprocessing
module, function, size, port, *names = sys.argv[1:]
function = getattr(importlib.import_module(module), function)
torch.multiprocessing.start_processes(function, (int(size), int(port), names), nprocs=int(size), start_method="fork")
"""


def output_of(process, timeout):
    """What it wrote. One that does not end writes where its threads and its group's stand (PYTHONFAULTHANDLER), and Failed has it."""
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired as late:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGABRT)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired as error:
            output = (error.stdout or b"").decode(errors="replace")
        raise Failed(f"{' '.join(map(str, process.args[-4:]))} did not end within {timeout} s:\n{output[-12000:]}") from late


def worlds(*sizes):
    """Sizes of the worlds that a test runs with: all of them in the soak run, else the first two."""
    return sizes[:2] if skip_soak() else sizes


class Runner:
    """Runs Python programs over the package below the directory `package`; `module` of tests/python has the ranks."""

    def __init__(self, python, directory, package, module):
        self.python = python
        self.module = module
        self.environ = built.environ(package, TESTS / "python", MESHRUN_TEST_DIRECTORY=str(directory))

    def run(self, command, timeout=300, **changes):
        """Runs it and its descendants; raises Failed with what it wrote last where it does not end well."""
        process = subprocess.Popen([str(word) for word in command], env=self.environ | changes, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            output = output_of(process, timeout)
        finally:
            end_group(process, 5)
        if process.returncode:
            raise Failed(f"{' '.join(map(str, command[-4:]))} exited {process.returncode}:\n{output[-6000:]}")
        return output

    def spawn_command(self, function, size, *names):
        return [self.python, "-c", SPAWN, self.module, function, size, free_port(), *names]

    def spawned(self, function, size, *names):
        said = self.run(self.spawn_command(function, size, *names))
        print("\n".join(line for line in said.splitlines() if line.startswith("  ")), flush=True)

    def ends_early(self):
        """Two ranks run ends_early(rank, 2, port) and end by themselves."""
        port, name = free_port(), f"{self.module}.ends_early"
        ranks = [subprocess.Popen([str(self.python), "-c", f"import {self.module}; {name}({rank}, 2, {port})"],
                                  env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  start_new_session=True) for rank in range(2)]
        try:
            said = [output_of(process, 120) for process in ranks]
        finally:
            for process in ranks:
                end_group(process, 1)
        if any(process.returncode for process in ranks):
            raise Failed(f"ends_early: {[process.returncode for process in ranks]}: {said}")
        print("  2 ranks: ends_early")


def with_extension(name, module, test, package=None):
    """Calls test(runner, directory, package) with the extension built, or given; ends the program with what is wrong. The last
    line is what the test returns, or that it passed."""
    try:
        with scratch() as (directory, _):
            package = built.package(directory / "built", package)
            verdict = test(Runner(built.python(), directory, package, module), directory, package)
    except (Failed, Missing, Short) as error:
        sys.exit(f"tests/python/{name}: {error}")
    print(verdict or f"{name}: passed")
