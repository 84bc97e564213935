"""A browser for tests: Chromium without a screen, told what to do by chromedriver. WebDriver is HTTP and JSON: this speaks the few calls
that tests need. Standard library only."""

import base64
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "etcd"))
from members import free_ports

# Keys as WebDriver writes them.
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014",
        "ArrowDown": "\ue015", "Home": "\ue011", "End": "\ue010"}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
CHROMIUM = "/usr/bin/chromium"
# As root it has no sandbox. Whatever it would fetch by itself, such as lists of updates, it does not.
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
             "--disable-default-apps", "--disable-extensions"]
# axe-core takes half a minute for a page of 1,000 rows where other programs have the processors.
SCRIPT_SECONDS = 120


class BrowserError(Exception):
    """What the driver answered."""


class Missing(Exception):
    """There is no browser; says what to do."""


class Browser:
    """One window. Methods wait for their answer; `until` waits for the page."""

    def __init__(self, base, profile, arguments=()):
        self._base = base
        options = {"binary": CHROMIUM, "args": [*ARGUMENTS, f"--user-data-dir={profile}", *arguments, "about:blank"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
                  "timeouts": {"script": SCRIPT_SECONDS * 1000}}
        self._session = ""
        answer = self._call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self._session = "/" + answer["sessionId"]

    def _call(self, method, path, body=None, timeout=60):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        where = f"{self._base}/session{self._session}{path}"
        request = urllib.request.Request(where, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise BrowserError(f"{value['error']}: {value['message'].splitlines()[0]}") from None

    def goto(self, url):
        self._call("POST", "/url", {"url": url})

    def script(self, text, *arguments):
        """Runs the body of a function; returns what it returns."""
        return self._call("POST", "/execute/sync", {"script": text, "args": list(arguments)})

    def script_async(self, text, *arguments):
        """As script, but the last of its arguments is a function that is called with the result."""
        return self._call("POST", "/execute/async", {"script": text, "args": list(arguments)}, timeout=SCRIPT_SECONDS + 10)

    def find(self, selector):
        """The first element, with what a person could do: it raises where there is none."""
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self._call("POST", f"/element/{self.find(selector)}/click")

    def write(self, selector, text):
        element = self.find(selector)
        self._call("POST", f"/element/{element}/clear")
        self._call("POST", f"/element/{element}/value", {"text": text})

    def press(self, *keys):
        """Keys, one after the other, to what has the focus."""
        presses = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": presses}]})

    def text(self, selector):
        """What can be seen of it; "" where there is no such element."""
        return self.script("const node = document.querySelector(arguments[0]); return node && !node.hidden ? node.innerText : ''", selector)

    def until(self, condition, what, seconds=40):
        """Polls the body of a function until what it returns is true; returns that."""
        end = time.monotonic() + seconds
        while True:
            found = self.script(condition)
            if found:
                return found
            if time.monotonic() > end:
                raise BrowserError(f"not within {seconds:g} s: {what}; the page says: {self.text('main')[:600]!r} {self.text('#away')}")
            time.sleep(0.05)

    def size(self, width, height):
        """The part that shows the page, whatever the window needs beside it."""
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features):
        """media(prefers_color_scheme="dark")"""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.cdp("Emulation.setEmulatedMedia", features=wanted)

    def cdp(self, command, **parameters):
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    @property
    def window(self):
        """The name of the window that is used now."""
        return self._call("GET", "/window")

    def open_window(self):
        """Another window, which is used from now on. Returns its name."""
        name = self._call("POST", "/window/new", {"type": "window"})["handle"]
        self.use_window(name)
        return name

    def use_window(self, name):
        self._call("POST", "/window", {"handle": name})

    def close_window(self):
        """Another window must be chosen with use_window."""
        self._call("DELETE", "/window")

    def screenshot(self, path, whole=False):
        picture = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(picture))

    def log(self, kind):
        """Entries since the last call: "browser" (the console) or "performance" (what CDP tells)."""
        return self._call("POST", "/se/log", {"type": kind})

    def requests(self):
        """Addresses of all that was asked for since the last call."""
        messages = (json.loads(entry["message"])["message"] for entry in self.log("performance"))
        return [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]

    def close(self):
        with contextlib.suppress(BrowserError, OSError):
            self._call("DELETE", "")


@contextlib.contextmanager
def browser(directory, *arguments):
    """A browser whose profile is below the directory. Raises Missing."""
    driver = shutil.which("chromedriver")
    if not driver or not pathlib.Path(CHROMIUM).exists():
        raise Missing("there is no chromium with chromedriver: tools/setup installs them")
    [port] = free_ports(1)
    base = f"http://127.0.0.1:{port}"
    profile = pathlib.Path(directory) / f"chromium-{port}"
    with open(pathlib.Path(directory) / "chromedriver.log", "a") as log:
        process = subprocess.Popen([driver, f"--port={port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    one = None
    try:
        _await_driver(base, process)
        one = Browser(base, profile, arguments)
        yield one
    finally:
        if one:
            one.close()
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _await_driver(base, process):
    end = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(f"{base}/status", timeout=2) as answer:
                if json.load(answer)["value"]["ready"]:
                    return
        if process.poll() is not None or time.monotonic() > end:
            raise BrowserError(f"chromedriver did not start (exit code {process.poll()})")
        time.sleep(0.05)
