"""More jobs and more ranks than one answer has: what the page says of some of them it does not say of all."""

import json

from operations_items.page_clusters import Cluster, now_text, serving
from operations_items.page_views import no_console_error, open_job

SLOWEST = "return document.querySelector('.slowest')?.textContent"
GENERATIONS = """
    const table = [...document.querySelectorAll('table')].find((one) => one.caption?.textContent === 'Generations');
    return JSON.stringify([...table.tBodies[0].rows].map((row) => [row.cells[0], row.cells[3]].map((cell) => cell.textContent)))"""


def many(window):
    many_jobs(window)
    many_ranks(window)
    return "201 active jobs and 2,048 ranks, page by page"


def many_jobs(window):
    """A job that failed a minute ago, behind 201 that wait."""
    cluster = Cluster(nodes=2, slots=8)
    failed = cluster.submit("fails", nodes=2, procs=2)
    cluster.start(failed)
    cluster.kill(failed, 1)
    cluster.jobs[failed].view["finishedAt"] = now_text(60)
    for i in range(201):
        cluster.submit(f"waits{i}", nodes=4, procs=8, reason="needs 4 nodes, and 2 are there")
    with serving(cluster) as server:
        window.goto(server.address)
        until(window, "return document.querySelector('.verdict')?.textContent",
              "1 thing to look at, as far as 200 of 201 active jobs tell.")
        until(window, "return document.querySelector('.attention a')?.textContent", failed)
        until(window, "return document.querySelector('#waiting').parentElement.querySelector('.rest').textContent",
              "180+ more: all jobs")
        until(window, "return document.querySelector('#running').parentElement.querySelector('.rest').textContent", "No job runs.")
        cluster.cancel(next(job for job in cluster.jobs if job != failed))
        until(window, "return document.querySelector('.verdict')?.textContent", "1 thing to look at.")
        no_console_error(window)
        window.goto("about:blank")


def many_ranks(window):
    """A slow rank on the second page, a new generation, and fewer ranks than stand on the first."""
    cluster = Cluster(nodes=256, slots=8)
    job = cluster.submit("large", nodes=256, procs=8)
    cluster.start(job)
    cluster.report(job, 5000, total=9000, lag={**{rank: 1 for rank in range(1024, 2048)}, 1500: 500})
    with serving(cluster) as server:
        open_job(window, server.address, job)
        until(window, SLOWEST, "No rank of ranks 0 to 1023 stands out.")
        window.script("[...document.querySelectorAll('button')].find((one) => one.textContent === 'Later ranks').click()")
        until(window, SLOWEST, "Slowest of ranks 1024 to 2047: rank 1500 on worker-188 is 500 steps behind.")
        until(window, GENERATIONS, json.dumps([["1", ""]], separators=(",", ":")))
        cluster.restart(job, "rank 7 died")
        until(window, GENERATIONS, json.dumps([["2", ""], ["1", "rank 7 died"]], separators=(",", ":")))
        cluster.restart(job, "rank 9 died", nodes=128)
        cluster.report(job, 5001, total=9000)
        until(window, SLOWEST, "No rank stands out.")
        until(window, "return [...document.querySelectorAll('.rank-cell')].map((one) => one.dataset.rank).at(-1)", "1023")
        until(window, "return document.querySelector('#ranks').closest('section').hidden", False)
        until(window, GENERATIONS,
              json.dumps([["3", ""], ["2", "rank 9 died"], ["1", "rank 7 died"]], separators=(",", ":")))
        no_console_error(window)
        window.goto("about:blank")


def until(window, script, wanted):
    """The script gives that."""
    body = f"const found = (() => {{ {script} }})(); return found === {json.dumps(wanted)} ? [found] : null"
    window.until(body, f"{wanted!r} of {script.strip()[:80]}", seconds=20)
