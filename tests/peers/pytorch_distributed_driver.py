"""Runs tests of PyTorch's distributed_test.py on the backend that BACKEND names, with WORLD_SIZE ranks: what
tests/peers/pytorch_distributed starts. The arguments are names of tests; without any it prints the names of all.

Prints one JSON object a test: its name, outcome (pass, fail, skip), reason and seconds.

Every rank is a process of its own, as in PyTorch's suite, but forked from a server that has imported torch and the suite:
importing both takes several seconds, and a test some milliseconds.
"""

import json
import logging
import multiprocessing
import os
import re
import sys
import time
import unittest
import unittest.mock

OURS = "meshrun"
BACKEND = os.environ["BACKEND"]
# Beside this limit the suite has timeouts of its own for groups. Its own limit for a test is 300 s.
LONGEST_TEST_S = 120

if BACKEND == OURS:
    import meshrun.torch  # registers the backend, in every rank too

from torch.testing._internal import common_distributed


class NameLikeGloo(str):
    """The backend's name, equal to Gloo's too: the suite knows backends by name, and asks ours for what it asks Gloo for."""

    def __eq__(self, other):
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash("gloo")  # as its sets of names need


environ = dict(os.environ)
if BACKEND == OURS:
    environ["BACKEND"] = NameLikeGloo(OURS)
    common_distributed.DistTestCases.backend_feature["plugin"].add(OURS)

with unittest.mock.patch.object(os, "environ", environ):  # what it reads while it loads
    from torch.testing._internal.distributed import distributed_test

distributed_test.DEFAULT_TIMEOUT = LONGEST_TEST_S
common_distributed.get_timeout = lambda test: LONGEST_TEST_S


def run_rank(environ, target, arguments, options):
    """In a rank. The server was started before the test set its directories in the environment."""
    os.environ.clear()
    os.environ.update(environ)
    target(*arguments, **options)


class DistributedTestOnBackend(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        context = multiprocessing.get_context("forkserver")

        def process(target, name, args, kwargs):
            return context.Process(target=run_rank, name=name, args=(dict(os.environ), target, args, kwargs))

        self._start_processes(process)


class Outcome(unittest.TestResult):
    """The outcome of one test."""

    def __init__(self):
        super().__init__()
        self.outcome, self.reason = "pass", ""

    def addSkip(self, test, reason):
        self.outcome, self.reason = "skip", reason

    def addError(self, test, error):
        self.outcome, self.reason = "fail", first_reason(str(error[1]))

    addFailure = addError


def first_reason(text):
    """The first rank's exception out of the tracebacks of all: the last line of the first traceback that has one."""
    of_ranks = re.split(r"^Process \d+ exited with error code \d+ and exception:$", text, flags=re.MULTILINE)
    first = of_ranks[1] if len(of_ranks) > 1 else text
    raised = re.findall(r"^(?:[\w.]+(?:Error|Exception|Failure|Exit)\b.*|AssertionError.*)$", first, flags=re.MULTILINE)
    lines = [line.strip() for line in first.splitlines() if line.strip()]
    return (raised or lines or ["(no reason)"])[0][:400]


def main():
    logging.disable(logging.INFO)
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
    names = sys.argv[1:]
    if not names:
        print("\n".join(unittest.TestLoader().getTestCaseNames(DistributedTestOnBackend)))
        return
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests and their ranks print
    for name in names:
        began = time.monotonic()
        result = Outcome()
        unittest.TestSuite([DistributedTestOnBackend(name)]).run(result)
        print(json.dumps({"name": name, "outcome": result.outcome, "reason": result.reason,
                          "seconds": round(time.monotonic() - began, 1)}), file=said, flush=True)
