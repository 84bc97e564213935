"""Several windows of one browser: it opens six connections to one host, for all of them together."""

import contextlib
import threading

from harness import check, skip_soak
from operations_items.page_clusters import Cluster, play, serving
from operations_items.page_views import RUNNING

# Jobs that are shown at once: each has two streams.
WINDOWS = 4
# Seconds for an answer while all of them show jobs that run. One that waits behind the streams takes the 10 s of ASK.
ANSWER = 9.0 if skip_soak() else 2.0
STEP = "return Number(/\\d+ of/.exec(document.querySelector('[data-fact=Progress]')?.innerText)?.[0].split(' ')[0] ?? 0)"
LINES = "return document.querySelectorAll('.log-line').length"
ASK = """
    const done = arguments[arguments.length - 1];
    const began = performance.now();
    fetch('api/v1/me', {cache: 'no-store', signal: AbortSignal.timeout(10000)}).then(
        () => done((performance.now() - began) / 1000), () => done(10))"""


def windows(window):
    """Windows that show jobs take turns: each goes on, and no request waits behind the streams."""
    cluster = Cluster(nodes=2 * WINDOWS, slots=4)
    jobs = [cluster.submit(f"job{i}", nodes=2, procs=2) for i in range(WINDOWS)]
    for job in jobs:
        cluster.start(job)
        threading.Thread(target=play, args=(cluster, job, 400, 0.4), daemon=True).start()
    with serving(cluster) as server, several(window, WINDOWS) as names:
        for name, job in zip(names, jobs):
            window.use_window(name)
            window.goto(f"{server.address}/#/jobs/{job}")
        longest, before = 0.0, {}
        for name in names:
            window.use_window(name)
            window.until(RUNNING + " === 'RUNNING'", f"a job in window {name}")
            before[name] = [window.until(what, "a first report, and a line of the log") for what in (STEP, LINES)]
        for name in names:
            window.use_window(name)
            longest = max(longest, window.script_async(ASK))
            for what, first in zip((STEP, LINES), before[name]):
                window.until(f"{what.replace('return ', 'const found = ')}; return found > {first}", "another")
            check(not window.text("#away"), f"a window says {window.text('#away')!r}")
        for job in jobs:
            cluster.cancel(job)
    check(longest < ANSWER, f"a request takes {longest:.1f} s while {WINDOWS} windows show jobs")
    return f"{WINDOWS} windows of jobs at once, a request takes {longest * 1000:.0f} ms"


@contextlib.contextmanager
def several(window, count):
    """Names of so many windows; the first is the one that was there, and stays."""
    first = window.window
    names = [first, *(window.open_window() for _ in range(count - 1))]
    try:
        yield names
    finally:
        for name in names[1:]:
            window.use_window(name)
            window.close_window()
        window.use_window(first)
        window.goto("about:blank")
