"""Whether everybody reaches the page: by keys, and as axe-core judges it, in light and dark, on a desk and on a phone."""

import json
import pathlib
import sys

from harness import ROOT, check, skip_soak

sys.path.append(str(ROOT / "tests/soak"))
from environments import Missing, packages
from operations_items.page_views import SIZES, api, open_job

AXE = pathlib.Path(__file__).with_name("axe-requirements.txt")
OPEN_ALL = "document.querySelectorAll('details').forEach((d) => { d.open = true; });"


def accessible(window, cluster):
    """Keys in every form; in soak axe-core on each view, light and dark, wide and narrow."""
    job = next(one["jobId"] for one in api(window, "/jobs?runningFirst=true")["jobs"])
    failed = next(one["jobId"] for one in api(window, "/jobs?state=JOB_STATE_FAILED")["jobs"])
    by_keys(window, cluster, job)
    try:
        source = (packages(AXE) if not skip_soak() else None)
    except Missing as missing:
        return f"keys; no axe-core: {missing}"
    if source is None:
        return "every part by keys"
    script = next(source.rglob("axe.min.js")).read_text()
    plant(window, script, cluster)
    pages = 0
    views = [("", ".tile"), ("#/jobs", ".jobs tbody tr"), ("#/nodes", ".nodes tbody tr"), (f"#/jobs/{job}", ".rank-cell"),
             (f"#/jobs/{failed}", ".failure"), (f"#/compare/{job}/{failed}", ".curve-dots")]
    for colours in ("light", "dark"):
        window.media(prefers_color_scheme=colours)
        for name, size in SIZES.items():
            window.size(*size)
            for view, ready in views:
                window.goto("about:blank")
                window.goto(f"{cluster.address}/{view}")
                window.until(f"return document.querySelector({json.dumps(ready)})", f"{view} {ready}")
                # The overview with the list of keys before it.
                window.script(OPEN_ALL + ("document.getElementById('keys').click()" if view == "" else ""))
                check(window.script("return document.documentElement.scrollWidth <= innerWidth"), f"{view} is wider than a {name} window")
                axe(window, script, f"{view or 'overview'}, {colours}, {name}")
                pages += 1
    window.media(prefers_color_scheme="light")
    window.size(*SIZES["wide"])
    return f"every part by keys, axe-core finds nothing serious on {pages} pages"


def plant(window, script, cluster):
    """A fault is found."""
    window.goto(f"{cluster.address}/")
    window.script("document.querySelector('main').append(Object.assign(document.createElement('img'), {src: 'icon.svg'}))")
    check("image-alt" in str(faults(window, script)), "axe-core does not find a picture without a text")


def axe(window, script, where):
    found = faults(window, script)
    check(not found, f"axe-core on {where}: {found}")


def faults(window, script):
    # Past the page's policy, which lets no script in that is not the page's own.
    window.cdp("Runtime.evaluate", expression=script)
    return window.script_async("""
        const done = arguments[arguments.length - 1];
        const text = (v) => `${v.id}: ${v.nodes[0].html.slice(0, 160)} (${v.nodes.length}) ${v.nodes[0].failureSummary?.slice(0, 300)}`;
        axe.run(document, {resultTypes: ['violations']}).then(
            (r) => done(r.violations.filter((v) => ['serious', 'critical'].includes(v.impact)).map(text)), (e) => done([String(e)]))""")


def by_keys(window, cluster, job):
    window.goto("about:blank")
    open_job(window, cluster.address, job)
    window.until("return document.querySelector('.rank-cell')", "the grid")
    window.press("Tab")
    check(window.script("return document.activeElement.className") == "skip", "the first Tab does not reach the skip link")
    window.press("Enter")
    check(window.script("return document.activeElement.id") == "main", "the skip link does not lead to the content")
    window.press("g")
    window.press("Home", "ArrowRight", "ArrowDown")
    check(window.script("return document.activeElement.dataset.rank") == "3", "arrows do not move in the grid")
    check("Rank 3" in window.text(".rank-panel"), f"the panel shows {window.text('.rank-panel')!r}")
    reached = set()
    for _ in range(45):
        window.press("Tab")
        reached.add(window.script("return document.activeElement.className || document.activeElement.tagName"))
    for part in ("curve-plot", "log", "rank-cell"):
        check(any(part in name for name in reached), f"Tab does not reach {part}: {sorted(reached)}")
    window.script("document.querySelector('[data-curve=loss] .curve-plot').focus()")
    window.press("Home")
    text = window.script("return document.activeElement.getAttribute('aria-valuetext')")
    check(text.startswith("step "), f"the first point is read as {text!r}")
    window.script("document.activeElement.blur()")
    window.press("?")
    check("Keys" in window.text("dialog"), "? does not list the keys")
    window.press("Escape")
    window.until("return !document.querySelector('dialog')", "the list of keys is closed")
    window.press("2")
    window.until("return location.hash === '#/jobs' && document.querySelector('.jobs tbody tr')", "jobs by the key 2")
    window.write(".view input[type=search]", "fails")
    window.until("const rows = document.querySelectorAll('.jobs tbody tr'); return rows.length === 1", "the job that was searched for")
