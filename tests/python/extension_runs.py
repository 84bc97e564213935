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


def start(command, environ):
    """A group of its own. Standard error has its own pipe: what torch warns of would stand amid a line that a rank prints."""
    return subprocess.Popen([str(word) for word in command], env=environ, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def output_of(process, timeout):
    """What it wrote to standard output, and to standard error. One that does not end writes where its threads and its group's stand
    (PYTHONFAULTHANDLER), and Failed has it."""
    try:
        return process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as late:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGABRT)
        try:
            said = process.communicate(timeout=10)
        except subprocess.TimeoutExpired as error:
            said = [(text or b"").decode(errors="replace") for text in (error.stdout, error.stderr)]
        raise Failed(f"{last_words(process)} did not end within {timeout} s:\n{last_said(*said, 6000)}") from late


def last_words(process):
    return " ".join(process.args[-4:])


def last_said(output, errors, most):
    return f"{output[-most:]}\n{errors[-most:]}"


def worlds(*sizes):
    """Sizes of the worlds that a test runs with: all of them in the soak run, else the first two."""
    return sizes[:2] if skip_soak() else sizes


class Runner:
    """Runs Python programs over the package below the directory `package`; `module` of tests/python has the ranks."""

    def __init__(self, python, directory, package, module):
        self.python = python
        self.module = module
        self.errors = ""
        self.environ = built.environ(package, TESTS / "python", MESHRUN_TEST_DIRECTORY=str(directory))

    def run(self, command, timeout=300, **changes):
        """What it and its descendants write to standard output; self.errors has what they wrote to standard error. Raises Failed
        with the last of both where it does not end well."""
        process = start(command, self.environ | changes)
        try:
            output, self.errors = output_of(process, timeout)
        finally:
            end_group(process, 5)
        if process.returncode:
            raise Failed(f"{last_words(process)} exited {process.returncode}:\n{last_said(output, self.errors, 3000)}")
        return output

    def spawn_command(self, function, size, *names):
        return [self.python, "-c", SPAWN, self.module, function, size, free_port(), *names]

    def spawned(self, function, size, *names):
        said = self.run(self.spawn_command(function, size, *names))
        print("\n".join(line for line in said.splitlines() if line.startswith("  ")), flush=True)

    def ends_early(self):
        """Two ranks run ends_early(rank, 2, port) and end by themselves."""
        port, name = free_port(), f"{self.module}.ends_early"
        ranks = [start([self.python, "-c", f"import {self.module}; {name}({rank}, 2, {port})"], self.environ) for rank in range(2)]
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
