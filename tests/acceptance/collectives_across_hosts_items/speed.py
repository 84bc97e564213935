"""The collectives' benchmark with its bounds: the short rows by name, and what small calls and asynchronous ones cost."""

import json
import re
import subprocess

from harness import ROOT, check, passed, skip_soak, skipped, slow
from programs import last_line

# Targets of tests/bench/collectives: a small call beside Open MPI's, an asynchronous one that is waited for beside the
# synchronous.
GATES = ("small", "asynchronous")


def run(site):
    if skip_soak():
        return skipped("timings are part of the soak run")
    figures = site.directory / "collectives.json"
    done = subprocess.run([str(ROOT / "tests/bench/collectives/collectives"), "--json", str(figures)], cwd=ROOT, timeout=3600,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    said = done.stdout + done.stderr
    print(said, flush=True)
    check(re.search(r"^verdict: (pass|short)", said, re.MULTILINE), f"exited {done.returncode}: {last_line(said)}")
    rows = json.loads(figures.read_text())["rows"]
    wrong = [row for row in rows if "result" in row["short"]]
    check(not wrong, f"wrong results: {named(wrong)}")
    gated = [row for row in rows if any(gate in row["short"] for gate in GATES)]
    short_rows = [row for row in rows if row["short"]]
    text = f"{len(rows)} rows, {len(rows) - len(short_rows)} at their targets; short: {named(short_rows) or 'none'}"
    if gated:
        return slow(f"{text}; {len(gated)} of them by a small call or an asynchronous one",
                    "below 64 KiB at most 5 us over Open MPI, asynchronous at most 2 us over synchronous")
    return passed(text)


def named(rows):
    return "; ".join(f"{row['name']} ({', '.join(row['short'].values())})" for row in rows)
