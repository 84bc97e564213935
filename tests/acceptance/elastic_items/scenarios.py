#!/usr/bin/env python3
"""Item 1: the twenty scenarios of faults, each by its number. Real processes: coordinator, workers behind a proxy each, and
ranks that keep journals. All run at once, since they mostly wait."""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from harness import NotHere, Short, Site, binary, meshrun, passed, short, skip_soak
from elastic_items.report import Report

SCENARIOS = {}
# Two cores carry so many clusters without one disturbing the times of another.
AT_ONCE = 8


def scenario(number, title, soak=False):
    """soak: nothing of it is short enough for tools/test."""

    def register(function):
        SCENARIOS.setdefault(number, []).append((title, soak, function))
        return function

    return register


def play(number, title, soak, function):
    started = time.monotonic()
    if soak and skip_soak():
        return number, "skip", f"{title}: part of the soak run"
    report = Report()
    with contextlib.ExitStack() as cleanup:
        site = Site(cleanup)
        try:
            function(site, report)
            verdict, text = report.verdict()
        except NotHere as error:
            verdict, text = "n/a", str(error)
        except Exception as error:  # the others are still of interest
            kind = type(error).__name__ if not isinstance(error, Short) else ""
            verdict, text = "short", f"{kind} {error}; {report.text()}; its daemons' log ends: {site.log_tail()}"
    return number, verdict, f"{' '.join(text.split())} [{title}; {time.monotonic() - started:.1f} s]"


def run(only=None):
    from elastic_items import scenarios_control, scenarios_hosts, scenarios_ranks  # noqa: F401, each registers its own
    meshrun()
    binary("//tests/acceptance/ranks:journal_rank")
    binary("//tests/acceptance/ranks:libstepped_clock.so")
    binary("//jobs/darcy:darcy")
    chosen = [(number, *parts) for number in sorted(SCENARIOS) for parts in SCENARIOS[number] if not only or number in only]
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        results = []
        for future in [pool.submit(play, *entry) for entry in chosen]:
            number, verdict, text = future.result()
            results.append((number, verdict))
            print(f"  scenario {number} {verdict} {text}", flush=True)
    by = {v: sorted({n for n, verdict in results if verdict == v}) for v in ("pass", "slow", "short", "n/a", "skip")}
    seconds = time.monotonic() - started
    figures = "; ".join(f"{verdict}: {', '.join(map(str, numbers))}" for verdict, numbers in by.items() if numbers)
    figures += f"; {seconds:.0f} s"
    late = by["slow"] if not skip_soak() else []
    if by["short"] or late:
        return short(figures, "all pass")
    return passed(figures, left_out="the scenarios' long forms" if skip_soak() else "")


if __name__ == "__main__":
    # The registering modules import this one by its name.
    from elastic_items import scenarios
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="scenarios to run, for example 7 or 1,11")
    parser.add_argument("--skip-soak", action="store_true", help="the short forms")
    options = parser.parse_args()
    os.environ["MESHRUN_SKIP_SOAK"] = "1" if options.skip_soak else ""
    verdict, text = scenarios.run({int(n) for n in options.only.split(",")} if options.only else None)
    print(verdict, text)
    sys.exit(verdict == "short")
