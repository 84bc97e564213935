"""The way into `meshrun page`: the file by which a browser comes, and what servers of other users at other ports of 127.0.0.1 see."""

import http.server
import re
import subprocess
import threading
import urllib.error
import urllib.request

from harness import check, meshrun, running, wait_until

# In place of the system's: keeps its arguments, and opens nothing.
XDG_OPEN = """#!/bin/sh
printf '%s\\n' "$@" > "$0.new"
mv "$0.new" "$0.said"
"""


class Foreign:
    """Another user's server at a port of 127.0.0.1. `heard`: the lines and headers of all requests."""

    def __init__(self, cleanup):
        self.heard = []
        self.body = "<!doctype html><link rel=icon href=data:,><title>foreign</title><p>foreign"
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                length = int(self.headers.get("Content-Length", 0))
                outer.heard.append(f"{self.requestline}\n{self.headers}\n{self.rfile.read(length)}")
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                # A cookie for all ports and paths: it comes back, and it has the name of the page's own.
                self.send_header("Set-Cookie", "meshrun-page=planted; Path=/")
                self.end_headers()
                self.wfile.write(outer.body.encode())

            do_POST = do_GET

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        cleanup.callback(server.server_close)
        cleanup.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{server.server_port}"


def door(window, cluster):
    site = cluster.site
    window.cdp("Network.clearBrowserCookies")
    job = cluster.submit("behind", steps=400, pause=0.2)
    page, path = start(site, [*cluster.cluster.tls("operator"), job])
    once = re.search('href="(http://[^"]+)"', path.read_text())[1]
    window.goto(f"file://{path}")
    window.until("return document.querySelector('.title-row .badge')", "the job's page, by the file")
    address = window.script("return location.href")
    check(re.fullmatch(rf"http://127\.[\d.]+:\d+/s/[0-9a-f]{{32}}/#/jobs/{job}", address), f"the file leads to {address}")
    check(not path.parent.exists(), "the file that a browser has used is there still")
    check(refuses(once), "the address in the file is good for a second use")
    secrets = [once.split("key=")[1][:32], address.split("/s/")[1][:32],
               *(one["value"] for one in window.cdp("Network.getAllCookies")["cookies"] if one["name"] == "meshrun-page")]
    check(len(set(secrets)) == 3 and all(re.fullmatch("[0-9a-f]{32}", one) for one in secrets), f"cookie, path and key: {secrets}")
    seen = strangers(window, site, address, secrets)
    window.goto("about:blank")
    window.goto(address)
    window.until("return document.querySelector('.title-row .badge')", "the page, in spite of a foreign cookie of its name")
    page.terminate()
    page.wait(30)
    # What was refused to others, and what had no answer any more, is no error of a part after this one.
    window.goto("about:blank")
    window.log("browser")
    return f"a browser comes by a file, and {seen} requests to other ports tell nothing"


def start(site, words):
    """`meshrun page` with a screen: its process, and the path that its browser gets."""
    place = site.directory / "door"
    (place / "temporary").mkdir(parents=True)
    (place / "temporary").chmod(0o700)
    opener = place / "xdg-open"
    opener.write_text(XDG_OPEN)
    opener.chmod(0o755)
    env = {"DISPLAY": ":0", "HOME": str(place), "PATH": f"{place}:/usr/bin:/bin", "XDG_RUNTIME_DIR": str(place / "temporary")}
    page = site.start([meshrun(), "page", *words], env, stdout=subprocess.PIPE)
    said = place / "xdg-open.said"
    wait_until(lambda: said.exists() or not running(page.pid), 30, "a browser is started")
    check(said.exists(), "meshrun page has ended and started no browser")
    (path,) = said.read_text().splitlines()
    check(path.startswith(f"{place}/temporary/meshrun-page-"), f"xdg-open gets {path!r}")
    return page, place.__class__(path)


def refuses(address):
    try:
        with urllib.request.urlopen(address, timeout=30):
            return False
    except urllib.error.HTTPError as error:
        return error.code == 403


def strangers(window, site, address, secrets):
    """Brings the browser to servers at other ports in all ways that other users have. Returns how many requests came."""
    one, other = Foreign(site.cleanup), Foreign(site.cleanup)
    page = re.match("http://[^/]+", address)[0]
    # By a link on the page.
    window.script("const a = document.createElement('a'); a.href = arguments[0]; document.body.append(a); a.click()",
                  f"{one.address}/linked")
    window.until("return document.title === 'foreign'", "the foreign page")
    check(window.script("return document.referrer") == "", "a foreign page learns where it was called from")
    check(secrets[2] not in window.script("return document.cookie"), "a foreign page reads the cookie")
    # By what a foreign page asks for: of another foreign server, and of the page's own.
    window.script_async("""
        const done = arguments[arguments.length - 1];
        const [other, page] = arguments;
        const ways = [other, `${other}/s/`, page, `${page}/api/v1/me`, `${page}/s/`].map(
            (where) => fetch(where, {mode: 'no-cors', credentials: 'include'}).catch(() => {}));
        ways.push(fetch(`${page}/api/v1/me`, {method: 'POST', mode: 'no-cors', credentials: 'include', body: '{}'}).catch(() => {}));
        ways.push(new Promise((resolve) => {
          const picture = new Image();
          picture.onload = picture.onerror = resolve;
          picture.src = `${other}/picture`;
        }));
        Promise.all(ways).then(() => done())""", other.address, page)
    # By an address that a person opens, also below the path that all pages have.
    for where in ("/", "/s/", "/s/x/"):
        window.goto(other.address + where)
    heard = "\n".join(one.heard + other.heard)
    check("linked" in heard and "picture" in heard and "GET /s/x/" in heard, f"the foreign servers have heard {heard[:2000]}")
    # Else this test could not see a cookie that comes across.
    check("Cookie: meshrun-page=planted" in "\n".join(other.heard), "no cookie goes from port to port")
    told = [secret for secret in secrets if secret in heard]
    check(not told, f"a foreign server sees {told}")
    # With the path a foreign page still gets nothing: it would have to guess it.
    window.goto(one.address)
    status = window.script_async("""
        const done = arguments[arguments.length - 1];
        const picture = new Image();
        picture.onload = () => done('shown');
        picture.onerror = () => done('refused');
        picture.src = arguments[0]""", address.split("#")[0] + "icon.svg")
    check(status == "refused", "a page of another port shows what is on the page")
    return len(one.heard) + len(other.heard)
