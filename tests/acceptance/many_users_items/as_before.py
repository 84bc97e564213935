"""Item 9: what this list asks for costs nobody anything: the figures of the version before, and the lists before this one."""

import re
import statistics
import subprocess

from harness import ROOT, binary, check, suites

ROUNDS = 5
# What two medians of the same program may differ by on a machine that does other things too.
NOISE = {"/s": 1.1, "KiB": 1.1, "MiB": 1.1, "s": 1.25, "ms": 1.25}
# Its gRPC calls lie in chunks that are now counted, now not.
SHOWN_ONLY = "memory of a watcher"


def said_by(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=900, check=False)
    check(done.returncode == 0, f"{command[0]} exited {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def control(coordinator):
    """{name: (value, unit)} of tests/bench/control and of rendezvous at 1,000 hosts, with this coordinator."""
    rows = {}
    table = said_by([binary("//tests/bench/control:control_rows"), "--rounds", 10, "--coordinator", coordinator])
    for name, value, unit in re.findall(r"^(\S.*?) {2,}([\d.]+) (/s|KiB|MiB|s) ", table, re.MULTILINE):
        rows[name] = (float(value), unit)
    table = said_by([binary("//tests/bench/rendezvous:rendezvous"), "--hosts", 1000, "--submits", 30, "--coordinator", coordinator])
    p50, p99 = re.search(r"^ *1000 +8000 +([\d.]+)ms +([\d.]+)ms", table, re.MULTILINE).groups()
    rows["rendezvous of 1,000 hosts, p50"], rows["rendezvous of 1,000 hosts, p99"] = (float(p50), "ms"), (float(p99), "ms")
    return rows


def beside(previous):
    """Both versions by turns. Returns (figures, whether none is worse)."""
    label = "//coordinator:meshrun-coordinator"
    rounds = [(control(previous.binary(label)), control(binary(label))) for _ in range(ROUNDS)]
    figures, all_kept = [], True
    for name, (_, unit) in rounds[0][1].items():
        before, now = (statistics.median(round_[side][name][0] for round_ in rounds) for side in (0, 1))
        worse = before / now if unit == "/s" else now / before
        kept = worse <= NOISE[unit] or name == SHOWN_ONLY
        all_kept = all_kept and kept
        figures.append(f"{name} {now:.4g} {unit} (before {before:.4g}){'' if kept else ', WORSE'}")
    return "; ".join(figures), all_kept


def earlier_lists():
    """Each list before this one in tests/acceptance/suites, without its soak parts. Returns (figures, whether all passed)."""
    figures, all_passed = [], True
    for suite in suites()[:suites().index("tests/acceptance/many_users")]:
        done = subprocess.run([ROOT / suite, "--skip-soak"], cwd=ROOT, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines() or [done.stderr[-200:]]
        fell_short = [line[:200] for line in lines if re.match(r"\d+ short ", line)]
        all_passed = all_passed and done.returncode == 0
        figures.append(f"{suite.rsplit('/', 1)[1]} {lines[-1]}{''.join(f' ({line})' for line in fell_short)}")
    return "; ".join(figures), all_passed
