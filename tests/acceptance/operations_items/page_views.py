"""What tests of the page share: how a view is opened, and what the API says meanwhile."""

from harness import check

# Width and height of a window on a desk and on a phone.
SIZES = {"wide": (1440, 1000), "narrow": (390, 844)}
RUNNING = "return document.querySelector('.title-row .badge .word')?.textContent"


def open_job(window, address, job):
    window.goto(f"{address}/#/jobs/{job}")
    window.until(RUNNING, f"the state of {job}")


def api(window, path):
    """What the API says, asked for by the browser itself."""
    return window.script_async("const done = arguments[arguments.length - 1];"
                               "fetch('api/v1' + arguments[0]).then((a) => a.json()).then(done, (e) => done(String(e)))", path)


def no_console_error(window, allowed=()):
    """Of the page's own; a request that the coordinator refuses is in the console too."""
    said = [entry["message"] for entry in window.log("browser") if entry["level"] == "SEVERE"]
    wrong = [text for text in said if not any(part in text for part in allowed)]
    check(not wrong, f"the console has {wrong[:3]}")
