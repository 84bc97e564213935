"""How long an update of the page takes where there is much to show."""

import json
import threading
import time

from harness import check
from operations_items.page_clusters import large, serving

# Seconds, milliseconds.
FIRST_PAINT = 1.0
UPDATE_MS = 100


def speed(window):
    """100 jobs and 1,000 ranks: no update keeps the browser busy for longer than UPDATE_MS."""
    cluster, big = large(jobs=100, ranks=1000)
    stop = threading.Event()

    def report():
        step = 0
        while not stop.wait(0.5):
            step += 5
            of_big = {"lag": {n: (n * step) % 40 for n in range(1000)}, "waited": {n: step / 10 for n in range(1000)}}
            for job in list(cluster.jobs):
                if cluster.jobs[job].view["worldSize"]:
                    cluster.report(job, step, total=100000, loss=1 / step, **(of_big if job == big else {}))

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        with serving(cluster) as server:
            views = (("overview", "", ".card"), ("jobs", "#/jobs", ".jobs tbody tr"), ("nodes", "#/nodes", ".nodes tbody tr"),
                     ("job", f"#/jobs/{big}", "[data-rank='999']"))
            worst = {name: longest(window, f"{server.address}/{view}", ready, name) for name, view, ready in views}
    finally:
        stop.set()
        thread.join()
    limits = {"update": UPDATE_MS, "task": UPDATE_MS, "paint": FIRST_PAINT * 1000}
    slow = {name: times for name, times in worst.items() if any(times[what] > limits[what] for what in limits)}
    check(not slow, f"updates of 100 jobs and 1,000 ranks in ms: {slow}, target {UPDATE_MS}")
    figures = ", ".join(f"{name} {times['update']:.0f}, {times['paint']:.0f}" for name, times in worst.items())
    return f"longest update and first paint in ms: {figures}"


def longest(window, address, ready, name):
    """Milliseconds: "update", the longest after the first; "task", the longest of the browser's main thread; "paint", the first."""
    window.goto("about:blank")
    window.goto(address)
    window.until(f"return document.querySelector({json.dumps(ready)})", ready, seconds=30)
    time.sleep(1)
    window.script("""
        performance.clearMeasures();
        window.longTasks = [];
        const note = (list) => window.longTasks.push(...list.getEntries().map((e) => e.duration));
        new PerformanceObserver(note).observe({type: 'longtask'})""")
    time.sleep(12)
    update, count, task = window.script("""
        const times = performance.getEntriesByName(`meshrun:${arguments[0]}`).map((e) => e.duration);
        return [Math.max(0, ...times), times.length, Math.max(0, ...window.longTasks)]""", name)
    paint = window.script("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
    check(count >= 2, f"{name} was brought up to date {count} times in 12 s")
    return {"update": update, "task": task, "paint": paint}
