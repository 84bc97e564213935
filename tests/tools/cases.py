"""Runs the cases of a test of tools/: functions decorated with @case, each with a Site of its own. A case returns figures or
nothing, raises Skipped, and fails with anything that the acceptance harness raises. Ends with "N passed, N failed, N
skipped"."""

import argparse
import contextlib
import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "acceptance")]
from harness import Short, Site

_CASES = []


class Skipped(Exception):
    pass


def case(function):
    _CASES.append(function)
    return function


def main(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", choices=[function.__name__ for function in _CASES], metavar="CASE")
    parser.add_argument("--skip-soak", action="store_true", help="changes nothing: none of this is long")
    options = parser.parse_args()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for function in _CASES:
        if options.only not in (None, function.__name__):
            continue
        with contextlib.ExitStack() as cleanup:
            try:
                figures = function(Site(cleanup))
                verdict, why = "passed", f": {figures}" if figures else ""
            except Skipped as reason:
                verdict, why = "skipped", f": {reason}"
            except (Short, OSError, ValueError, subprocess.SubprocessError) as error:
                verdict, why = "failed", f": {error}"
        counts[verdict] += 1
        print(f"{verdict} {function.__name__}{why}", flush=True)
    print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return 1 if counts["failed"] else 0
