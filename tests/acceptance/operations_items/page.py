"""Item 3: the page in a browser. A job from its submission to its end, the map that a job draws, a rank that is killed, logs that follow,
cancelling and who may not, a coordinator that goes away; keys, screen readers, colours and sizes; no error of the page, no other host."""

import json
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

from harness import check, not_applicable, passed, skip_soak, wait_until
from operations_items.page_clusters import UNITS, Cluster, Fixture, Real, serving
from operations_items.page_door import door
from operations_items.page_many import many
from operations_items.page_reach import accessible
from operations_items.page_speed import FIRST_PAINT, speed
from operations_items.page_views import RUNNING, SIZES, api, no_console_error, open_job
from operations_items.page_windows import windows
from webdriver import Missing, browser

POINTS = "return Number(document.querySelector('[data-curve=loss]')?.dataset.points ?? 0)"
OFFERS_CANCEL = "return [...document.querySelectorAll('.actions button')].some((b) => !b.hidden && b.innerText.startsWith('Cancel'))"


def run(site):
    try:
        with browser(site.directory) as window, ThreadPoolExecutor(1) as beside:
            return show(site, window, beside.submit(alone, site))
    except Missing as missing:
        return not_applicable(str(missing))


def alone(site):
    """What needs no real cluster, in a browser of its own."""
    with browser(site.directory) as window:
        window.size(*SIZES["wide"])
        return [units(window), windows(window), many(window)]


def show(site, window, first):
    """The soak run measures: there one thing follows the other."""
    window.size(*SIZES["wide"])
    if not skip_soak():
        first.result()
    said = [scenario(window, Real(site), door)]
    if not skip_soak():
        said += ["a fixture: " + scenario(window, Fixture(site.cleanup)), speed(window)]
    return passed("; ".join(first.result() + said), left_out="axe-core, 100 jobs and 1,000 ranks, geoid's own map")


def scenario(window, cluster, *more):
    window.requests()
    for key in cluster.keys:
        window.goto(key)
    parts = (whole_job, pictures, failure, actions, nodes, away, accessible, hosts, *more)
    return "; ".join(part(window, cluster) for part in parts)


def units(window):
    with serving(Cluster(), files=UNITS) as server:
        window.goto(server.address)
        found = window.script_async("const done = arguments[arguments.length - 1];"
                                    "import('/units.js').then((m) => m.runAll()).then(done, (e) => done({failures: [String(e)]}))")
        window.goto("about:blank")
    check(not found["failures"], f"modules of the page: {found['failures']}")
    return f"{found['passed']} rules of its modules"


def whole_job(window, cluster):
    """From its submission to its end."""
    window.goto(f"{cluster.address}/")
    window.until("return document.querySelector('.verdict')?.textContent === 'All is well.'", "a cluster without trouble")
    painted = window.until("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime", "a first paint") / 1000
    job = cluster.submit("darcy", steps=200, pause=0.3)
    open_job(window, cluster.address, job)
    window.until(RUNNING + " === 'RUNNING'", "a job that runs")
    before = window.until(POINTS, "a first point of the curve")
    window.until(f"{POINTS} > {before}", "another point, without a reload")
    window.until("return document.querySelector('[data-fact=\"Time left\"]')", "the time left")
    line = "return document.querySelector('.log-lines').lastChild?.textContent"
    first = window.until(line, "a line of the log")
    window.until(f"{line} !== arguments[0]".replace("arguments[0]", json.dumps(first)), "another line of the log")
    cluster.succeed(job)
    window.until(RUNNING + " === 'SUCCEEDED'", "its end", seconds=40)
    curve = api(window, f"/jobs/{job}")["curve"]
    window.until(f"{POINTS} === {len(curve)}", f"{len(curve)} points")
    for name in ("loss", *curve[-1]["metrics"]):
        same_points(window, name, curve, cluster)
    no_console_error(window)
    check(painted < FIRST_PAINT or skip_soak(), f"first paint after {painted:.2f} s")
    return f"first paint {painted:.2f} s, {len(curve)} points of a job from submission to end"


def same_points(window, name, curve, cluster):
    """The curve's table has exactly the points that were reported."""
    shown = window.script("""
        const figure = document.querySelector(`[data-curve="${arguments[0]}"]`);
        figure.querySelector('details').open = true;
        figure.querySelector('details').dispatchEvent(new Event('toggle'));
        return [...figure.querySelectorAll('tbody tr')].map((row) => [row.cells[0].textContent, row.cells[1].dataset.value].map(Number))""",
                          name)
    reported = [[point["step"], point["loss"] if name == "loss" else point["metrics"][name]] for point in curve]
    check(shown == reported, f"{name} shows {shown[:3]} ... {shown[-1:]}, reported were {reported[:3]} ... {reported[-1:]}")
    dots = window.script("return document.querySelector(`[data-curve=\"${arguments[0]}\"] .curve-dots`).getAttribute('d')", name).count("M")
    check(dots == len(reported), f"{dots} dots are drawn of {name}, {len(reported)} points were reported")
    for step, value in shown if name == "loss" else ():
        wanted = cluster.loss(step)
        check(wanted is None or abs(value - wanted) < 1e-9, f"loss of step {step} is {value}, its rank reported {wanted}")


def pictures(window, cluster):
    """A map that is drawn anew while its rank learns, and stays after the end."""
    job = cluster.learn()
    # The page asks for pictures as it opens, and then every 5 s.
    wait_until(lambda: api(window, f"/jobs/{job}/pictures").get("pictures"), 60, "a first map")
    open_job(window, cluster.address, job)
    loaded = """
        const image = document.querySelector('.picture img');
        image?.scrollIntoView();
        return image?.complete && image.naturalWidth > 0 && [image.naturalWidth, image.alt, image.src, image.closest('figure').innerText]"""
    width, alt, first, caption = window.until(loaded, "the map", seconds=60)
    check(width > 200 and alt == "geoid.png of rank 0", f"an image of {width} pixels: {alt!r}")
    check("geoid.png, rank 0" in caption and ("ago" in caption or "just now" in caption), f"the caption is {caption!r}")
    check(window.text("#pictures-title") == "Pictures", "the heading")
    window.until(loaded + f" && image.src !== {json.dumps(first)}", "a newer map", seconds=60)
    cluster.end(job)
    window.until(RUNNING + " !== 'RUNNING'", "its end", seconds=20)
    window.goto(f"{cluster.address}/#/nodes")
    window.until("return document.querySelector('.nodes')", "the nodes")
    open_job(window, cluster.address, job)
    window.until(loaded, "the map of a job that has ended", seconds=20)
    no_console_error(window)
    return f"a map of {width} pixels while it is learnt"


def failure(window, cluster):
    """A rank is killed: the page names it, shows its last lines, and opens its log."""
    job = cluster.submit("fails", steps=200, pause=0.2, fails=True)
    open_job(window, cluster.address, job)
    window.until(r"return /\d/.test(document.querySelector('[data-rank=\"3\"] .rank-text')?.textContent)", "a step of rank 3 in the grid")
    said = cluster.kill(job, 3)
    window.until(RUNNING + " === 'FAILED'", "a job that failed", seconds=20)
    named = window.text(".failure")
    check("rank 3" in named and "signal 9" in named, f"first cause: {named!r}")
    check(said in named, f"the rank's last line {said!r} is not in {named!r}")
    window.until("return document.querySelector('[data-rank=\"3\"]').dataset.kind === 'fail'", "rank 3 as the one that failed")
    chosen = window.script("return document.querySelector('[aria-selected=true]')?.dataset.rank")
    check(chosen == "3", f"rank {chosen} is chosen, rank 3 has failed")
    window.click(".failure button.primary")
    window.until(f"return document.querySelector('.log-lines').innerText.includes({json.dumps(said)})", "the failed rank's log")
    check(window.script("return document.activeElement.id") == "log", "the focus did not move to the log")
    window.write("#log-search", said[:12])
    window.until("const lines = [...document.querySelectorAll('.log-line')]; return lines[0] && lines.every((l) => l.querySelector('mark'))",
                 "the lines that were searched for")
    no_console_error(window)
    return "a killed rank is named with its last lines"


def actions(window, cluster):
    """Cancelling by keys; not for a reader, nor for somebody whose job it is not."""
    job = cluster.submit("goes-on", steps=400, pause=0.2)
    open_job(window, cluster.reader, job)
    window.until("return document.querySelector('.title-row .actions').innerText.includes('may look')", "what a reader is told")
    check(not window.script(OFFERS_CANCEL), "a reader is offered to cancel")
    refused = window.script_async("""
        const done = arguments[arguments.length - 1];
        fetch(`api/v1/jobs/${arguments[0]}/cancel`, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'})
            .then(async (a) => done([a.status, await a.json()]), (e) => done([0, String(e)]))""", job)
    check(refused[0] == 403 and refused[1]["code"] == "PERMISSION_DENIED", f"cancel of a reader: {refused}")
    open_job(window, cluster.stranger, job)
    window.until(OFFERS_CANCEL, "the button")
    window.press("c")
    window.click("dialog button[type=submit]")
    sentence = window.until("return document.querySelector('dialog .problem:not([hidden])')?.innerText", "why it is refused")
    check("submitted" in sentence, f"refused with {sentence!r}")
    window.press("Escape")
    window.until("return !document.querySelector('dialog')", "the question is closed")
    no_console_error(window, allowed=["403"])
    open_job(window, cluster.address, job)
    window.until(OFFERS_CANCEL, "the button")
    window.click(".title-row .actions button:not([hidden])")
    window.until("return document.querySelectorAll('.stack').length > 0", "stacks", seconds=30)
    window.press("c")
    title = window.text("dialog h2")
    check(job in title, f"the question {title!r} does not name {job}")
    window.write("dialog input[type=text]", "enough is known")
    window.press("Enter")
    window.until(RUNNING + " === 'CANCELLED'", "a cancelled job", seconds=20)
    window.until("return document.querySelector('.reason').innerText.includes('enough is known')", "the reason")
    no_console_error(window)
    return f"cancelled by keys, and refused to others: {sentence!r}"


def nodes(window, cluster):
    """What runs where; a node is drained and taken back; a job that there is not."""
    job = cluster.submit("stays", steps=400, pause=0.2)
    open_job(window, cluster.address, job)
    window.until(RUNNING + " === 'RUNNING'", "a job that runs")
    window.goto(f"{cluster.address}/#/nodes")
    window.until(f"return document.querySelector('.nodes tbody tr')?.innerText?.includes({json.dumps(job)})", f"{job} on the first node")
    button = ".nodes tbody tr:first-child button"
    for before, after, reason in (("Drain", "Undrain", "new driver"), ("Undrain", "Drain", "")):
        window.until(f"return document.querySelector({json.dumps(button)})?.innerText === '{before}'", before)
        window.click(button)
        if reason:
            window.write("dialog input[type=text]", reason)
        window.click("dialog button[type=submit]")
        window.until(f"return document.querySelector({json.dumps(button)})?.innerText === '{after}'", after)
        if reason:
            window.until(f"return document.querySelector('.nodes tbody tr')?.innerText?.includes({json.dumps(reason)})", "the reason")
    window.goto(f"{cluster.address}/#/jobs/no-such-job")
    window.until("return document.querySelector('.problem:not([hidden])')?.innerText.includes('no-such-job')", "that there is no such job")
    window.goto(f"{cluster.address}/#/jobs/%")
    window.until("return document.querySelector('h1').textContent === 'There is no such page'", "that an address cannot be read")
    no_console_error(window, allowed=["no-such-job"])
    return "what runs where, drain and undrain"


def away(window, cluster):
    """The coordinator goes away and comes back: what stood there stays, and goes on by itself."""
    job = cluster.submit("survives", steps=400, pause=0.2)
    open_job(window, cluster.address, job)
    before = window.until(POINTS, "a point of the curve")
    with cluster.away():
        banner = window.until("return document.querySelector('#away:not([hidden])')?.innerText", "the banner", seconds=20)
        check("since" in banner, f"the banner says {banner!r}")
        check(window.script(POINTS) >= before, "the curve is gone")
    back = time.monotonic()
    window.until("return document.getElementById('away').hidden", "the end of the banner", seconds=20)
    window.until(f"{POINTS} > {before}", "a curve that goes on", seconds=20)
    back = time.monotonic() - back
    window.log("browser")  # Requests that failed meanwhile are told there.
    return f"back {back:.1f} s after the coordinator"


def hosts(window, cluster):
    """All that the browser asked for."""
    expected = {urllib.parse.urlsplit(address).netloc for address in (cluster.address, cluster.reader, cluster.stranger)}
    asked = [urllib.parse.urlsplit(address) for address in window.requests()]
    others = {address.geturl() for address in asked if address.scheme in ("http", "https", "ws", "wss") and address.netloc not in expected}
    check(not others, f"requests to other hosts: {sorted(others)[:3]}")
    return f"{len(asked)} requests, all to the coordinator"
