"""Item 7: days of a hundred hosts in the simulation. One has the load of fifty users, the other the jobs of a trace alone."""

import concurrent.futures
import json
import math
import random

from harness import binary, check, passed, short, skip_soak

SHARED_DAY = "//tests/coordinator/simulation:shared_day"
# Relative arrivals in each hour of a day.
HOURS = [3, 2, 2, 2, 2, 3, 4, 6, 9, 12, 13, 12, 11, 12, 13, 12, 11, 9, 7, 6, 5, 5, 4, 3]
JOBS_OF_A_DAY = 1500
# The last of them have ended so many hours after the last arrival.
DRAINED_WITHIN = 10


def trace(path, hours):
    """Writes jobs in the Standard Workload Format: its fields, and the shape of public traces of parallel machines (Lublin and Feitelson,
    2003), with numbers of its own. Returns how many of them can run, and their processor hours."""
    draw = random.Random(20261129)
    lines = ["; Version: 2.2", "; Computer: none, its numbers are drawn", "; MaxProcs: 1552"]
    at, runnable, processor_hours = 0.0, 0, 0.0
    while True:
        a_second = JOBS_OF_A_DAY * HOURS[int(at // 3600) % 24] / sum(HOURS) / 3600
        at -= math.log(1 - draw.random()) / a_second
        if at >= hours * 3600:
            break
        # A quarter is serial, most others are powers of two.
        processors = 1 if draw.random() < 0.24 else 2 ** (1 + int(8 * draw.random() ** 1.3))
        if processors > 1 and draw.random() < 0.2:
            processors += int(draw.random() * processors)
        long = draw.random() < 0.4
        run = math.exp(math.log(2400 if long else 60) + (0.8 if long else 1.3) * math.sqrt(-2 * math.log(1 - draw.random())) *
                       math.cos(2 * math.pi * draw.random()))
        run = int(min(max(run, 1), 3 * 3600))
        asked = next(limit for limit in (300, 900, 3600, 4 * 3600) if limit > run) if draw.random() < 0.85 else -1
        if draw.random() < 0.04:
            run = -1  # as the format has it of a job that never ran
        user = 1 + int(40 * draw.random() ** 2.5)
        fields = [len(lines) - 2, int(at), -1, run, processors, -1, -1, processors, asked, -1, 1 if run > 0 else 5, user, user % 7,
                  -1, 1, -1, -1, -1]
        lines.append(" ".join(map(str, fields)))
        if run > 0:
            runnable += 1
            processor_hours += processors * run / 3600
    path.write_text("\n".join(lines) + "\n")
    return runnable, processor_hours


def day(site, *words):
    code, out, err, _ = site.run([binary(SHARED_DAY), *words], timeout=3000)
    figures = json.loads(out) if out else {}
    check(code == 0, f"shared_day {' '.join(map(str, words))}: {figures.get('broken') or err.strip()[-300:]}")
    return figures


def of_fifty_users(site, days):
    """Returns (figures, whether they are within their bounds)."""
    figures = day(site, "--days", days)
    said = (f"{days} days, {figures['jobs_ended']} jobs, {figures['impossible_queued']} that can never run in the queue, 3 of 100 hosts "
            f"bad and quarantined; utilisation {figures['utilisation']:.1%} of the area bound; shares of ten users with a backlog differ "
            f"by {figures['share_deviation']:.1%} at most; whoever has nothing else waits {figures['modest_wait_median']:.3f} s (median of "
            f"{figures['modest_jobs']}), {figures['modest_wait_most']:.0f} s at most; {beside_room(figures)}; the slowest step "
            f"{figures['slowest_step_ms']:.0f} ms; three hours of it twice: the same actions")
    return said, figures["utilisation"] >= 0.9 and figures["share_deviation"] <= 0.05 and figures["modest_wait_most"] <= 600


def of_a_trace(site, hours):
    path = site.directory / "trace.swf"
    runnable, processor_hours = trace(path, hours)
    figures = day(site, "--days", (hours + DRAINED_WITHIN) / 24, "--swf", path, "--alone")
    check(figures["jobs_ended"] == runnable, f"{figures['jobs_ended']} of the trace's {runnable} jobs have ended")
    return (f"{hours} hours of a trace alone: its {runnable} jobs, {processor_hours / hours / 1552:.0%} of all processors, wait "
            f"{figures['modest_wait_median']:.3f} s (median), {figures['modest_wait_most']:.0f} s at most; {beside_room(figures)}")


def beside_room(figures):
    return f"{figures['had_room']} jobs found room, and none waited beside room for longer than {figures['longest_beside_room']:.3f} s"


def run(site):
    days, hours = (1, 18) if skip_soak() else (7, 96)
    binary(SHARED_DAY)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        users, alone = pool.submit(of_fifty_users, site, days), pool.submit(of_a_trace, site, hours)
        figures, within = users.result()
        figures = f"{figures}; {alone.result()}"
    if not within:
        return short(figures, "90 %, 5 %, 10 min")
    return passed(figures, "a week" if skip_soak() else "")
