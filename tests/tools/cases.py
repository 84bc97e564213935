"""Runs the cases of a script in tests/: functions decorated with @case, each with a Site of its own. A case returns figures or
nothing, raises Skipped, or fails with any other exception. Ends with "N passed, N failed, N
skipped"."""

import argparse
import contextlib
import os
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "acceptance")]
from harness import Short, Site, leave_on_sigterm

_CASES = []


class Skipped(Exception):
    pass


def case(function):
    _CASES.append(function)
    return function


def main(description):
    leave_on_sigterm()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", choices=[function.__name__ for function in _CASES], metavar="CASE")
    parser.add_argument("--skip-soak", action="store_true", help="leave out what belongs to the soak run")
    options = parser.parse_args()
    if options.skip_soak:
        os.environ["MESHRUN_SKIP_SOAK"] = "1"
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
            except Short as error:
                verdict, why = "failed", f": {error}"
            except Exception as error:
                verdict, why = "failed", f": {type(error).__name__}: {error}"
        counts[verdict] += 1
        print(f"{verdict} {function.__name__}{why}", flush=True)
    print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    sys.exit(1 if counts["failed"] else 0)  # here: a caller may forget it
