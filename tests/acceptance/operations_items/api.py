"""Item 4: every call of the HTTP API answers as its document says, over TLS with the certificates of an operator and a reader, and over a
Unix socket; `meshrun top` in a terminal shows what the API says. The soak run asks schemathesis too."""

import http.client
import json
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import time
import urllib.parse
import venv

from clusters import SecureCluster
from harness import ROOT, check, meshrun, not_applicable, passed, skip_soak, wait_until
from schema import problems

DOCUMENT = json.loads((ROOT / "docs/api/openapi.json").read_text())
SCHEMATHESIS = pathlib.Path(__file__).with_name("schemathesis-requirements.txt")
STEPS = 4000
RANK = """
import json, os, socket, time
rank = int(os.environ["RANK"])
report = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
print(f"rank {rank} reads the mesh of caf\\u00e9s", flush=True)
with open(os.path.join(os.environ["MESHRUN_PICTURES"], ".map.png"), "wb") as picture:
    picture.write(b"\\x89PNG of rank %%d" %% rank)
os.rename(picture.name, picture.name.replace(".map.png", "map.png"))
for step in range(1, %d):
    time.sleep(0.05)
    report.sendto(json.dumps({"step": step, "total_steps": %d, "loss": 1 / step}).encode(), os.environ["MESHRUN_REPORT"])
""" % (STEPS, STEPS)
CHATTY = """
import os
rank = os.environ["RANK"]
print("".join(f"rank {rank} caf\u00e9 {line}\\n" for line in range(100_000)), end="")
"""


class Door:
    """The API with one certificate, or over a socket."""

    def __init__(self, address, files=None):
        self.address = address
        self.files = files

    def connection(self):
        if self.address.startswith("unix:"):
            connection = http.client.HTTPConnection("localhost", timeout=60)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(60)
            connection.sock.connect(self.address.removeprefix("unix:"))
            return connection
        context = ssl.create_default_context(cafile=self.files / "ca.crt")
        context.load_cert_chain(self.files / "tls.crt", self.files / "tls.key")
        return http.client.HTTPSConnection(self.address, context=context, timeout=60)

    def ask(self, method, path, body=None):
        """(status, media type, text; bytes of a picture)"""
        connection = self.connection()
        try:
            headers = {"Content-Type": "application/json"} if method == "POST" else {}
            connection.request(method, "/api/v1" + path, json.dumps(body) if method == "POST" else None, headers)
            answer = connection.getresponse()
            kind, content = answer.headers.get_content_type(), answer.read()
            return answer.status, kind, content if kind.startswith("image/") else content.decode()
        finally:
            connection.close()

    def events(self, path, enough):
        """The events of a stream until enough(events) is true, or it ends: [(name, data)]."""
        connection = self.connection()
        found = []
        try:
            connection.request("GET", "/api/v1" + path)
            answer = connection.getresponse()
            check(answer.headers.get_content_type() == "text/event-stream", f"{path} is {answer.headers.get_content_type()}")
            name = ""
            while line := answer.readline().decode():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ").strip()
                elif line.startswith("data: "):
                    found.append((name, json.loads(line.removeprefix("data: "))))
                    if enough(found):
                        break
            return found
        finally:
            connection.close()


class Recorder:
    """Calls, each compared with what the document says of it."""

    def __init__(self):
        self.seen = {}

    def ask(self, door, method, template, body=None, query="", status=200, **values):
        path = template
        for name, value in values.items():
            path = path.replace("{" + name + "}", urllib.parse.quote(value))
        found, kind, text = door.ask(method, path + query, body)
        check(found == status, f"{method} {path}{query} answers {found}, not {status}: {text[:300]}")
        operation = DOCUMENT["paths"][template][method.lower()]
        said = operation["responses"].get(str(status), operation["responses"]["default"])
        check(kind in said["content"], f"{method} {path} is {kind}, and its document says {list(said['content'])}")
        schema = said["content"][kind]["schema"]
        if schema.get("format") == "binary":
            answer = text
        else:
            answer = json.loads(text)
            wrong = problems(answer, schema, DOCUMENT, f"{method} {path}")
            check(not wrong, f"{len(wrong)} differences from the document: {wrong[:3]}")
        self.seen.setdefault((method.lower(), template), set()).add(status)
        return answer

    def stream(self, door, template, enough, of, **values):
        path = template
        for name, value in values.items():
            path = path.replace("{" + name + "}", urllib.parse.quote(value))
        events = door.events(path, enough)
        for name, data in events:
            if name != "end":
                wrong = problems(data, {"$ref": f"#/components/schemas/{of}"}, DOCUMENT, f"{path}: {name}")
                check(not wrong, f"{len(wrong)} differences from the document: {wrong[:3]}")
        self.seen.setdefault(("get", template), set()).add(200)
        return events


def run(site):
    if shutil.which("tmux") is None:
        return not_applicable("tmux is not installed")
    cluster = SecureCluster(site, 2, coordinator_flags=["--http", "127.0.0.1:0"])
    cluster.issue("reader", "--role", "read", "--user", "reader")
    address = json.loads(ask_meshrun(site, "describe", "-o", "json"))["httpAddress"]
    operator = Door(address, cluster.certificates / "client")
    reader = Door(address, cluster.certificates / "reader")
    said = [every_call(site, operator, reader), refusals(operator, reader), top(site)]
    if not skip_soak():
        said.append(schemathesis(site, address, cluster.certificates))
    return passed("; ".join(said), left_out="schemathesis")


def ask_meshrun(site, *words):
    code, out, err, _ = site.run([meshrun(), *words])
    check(code == 0, f"meshrun {' '.join(map(str, words))} exited {code}: {err}")
    return out.strip()


def submit(site, name, *flags):
    script = site.script(f"{name}.py", RANK, mode=0o644)
    return ask_meshrun(site, "submit", "--nodes", 2, "--nproc", 2, "--name", name, *flags, script)


def every_call(site, operator, reader):
    calls = Recorder()
    job = submit(site, "train")

    def state():
        return calls.ask(reader, "GET", "/jobs/{job}", job=job)["job"]

    def takes_steps():
        job = state()
        steps = [rank.get("progress", {}).get("step", 0) for rank in job.get("ranks", [])]
        return job["state"] == "JOB_STATE_RUNNING" and len(steps) == 4 and min(steps) > 5

    wait_until(takes_steps, 60, "all ranks take steps")
    for path in ("/me", "/cluster", "/nodes", "/jobs", "/events", "/usage", "/limits", "/openapi.json"):
        calls.ask(reader, "GET", path)
    check(calls.ask(reader, "GET", "/openapi.json") == DOCUMENT, "the document that is served is not the one in docs/api")
    check(len(calls.ask(operator, "GET", "/jobs", query="?state=running&pageSize=1")["jobs"]) == 1, "one job runs")
    check(len(calls.ask(operator, "GET", "/jobs/{job}", query="?firstRank=1&maxRanks=2", job=job)["job"]["ranks"]) == 2, "a page of ranks")
    calls.ask(operator, "GET", "/jobs/{job}/events", query="?after=0", job=job)
    pieces = calls.ask(reader, "GET", "/jobs/{job}/logs", query="?ranks=1,3&stream=stdout", job=job)["pieces"]
    check({piece["rank"] for piece in pieces} == {1, 3}, f"pieces of ranks 1 and 3: {pieces}")
    check(any("rank 3 reads the mesh of caf\u00e9s\n" in piece["text"] for piece in pieces), f"the text is as it was written: {pieces}")
    pictures = calls.ask(reader, "GET", "/jobs/{job}/pictures", job=job)["pictures"]
    check([(one["rank"], one["name"]) for one in pictures] == [(rank, "map.png") for rank in range(4)], f"a picture of each rank: {pictures}")
    at = "?at=" + urllib.parse.quote(pictures[3]["modifiedAt"])
    picture = calls.ask(reader, "GET", "/jobs/{job}/pictures/{rank}/{name}", query=at, job=job, rank="3", name="map.png")
    check(picture == b"\x89PNG of rank 3", f"the picture is as it was written: {picture}")
    events = calls.stream(reader, "/jobs/{job}/logs/follow", lambda found: len(found) == 4, "LogPiece", job=job)
    check({data["rank"] for _, data in events} == {0, 1, 2, 3}, f"the output of all ranks is followed: {events}")
    whole_log(site, calls, reader)
    stacks = calls.ask(operator, "POST", "/jobs/{job}/stacks", {"ranks": [0, 2], "native": False}, job=job)["stacks"]
    check([stack["rank"] for stack in stacks] == [0, 2], f"two stacks: {stacks}")
    records = calls.ask(operator, "POST", "/jobs/{job}/flightRecords", {}, job=job)
    check(len(records["records"]) == 4 and records["sentence"], f"four records and a sentence: {records}")
    calls.ask(operator, "POST", "/nodes/{node}/drain", {"reason": "new memory"}, node="n2")
    calls.ask(operator, "POST", "/nodes/{node}/undrain", {}, node="n2")
    waiting = ask_meshrun(site, "submit", "--hold", "--name", "later", "--", "true")
    calls.ask(operator, "POST", "/jobs/{job}/release", {}, job=waiting)
    held = ask_meshrun(site, "submit", "--hold", "--name", "held", "--", "true")
    calls.ask(operator, "POST", "/jobs/{job}/priority", {"priority": 3}, job=held)
    calls.ask(operator, "POST", "/jobs/{job}/hold", {}, job=held)
    # The watch sees the job whole, then its changes, then its end.
    watched = calls.stream(reader, "/jobs/{job}/watch", lambda found: len(found) == 3, "WatchJobResponse", job=job)
    check("job" in watched[0][1] and len(watched[0][1]["curve"]) > 0, f"a watch begins with the job and its curve: {watched[0]}")
    calls.ask(operator, "POST", "/jobs/{job}/cancel", {"now": True, "reason": "seen enough"}, job=job)
    ended = calls.stream(reader, "/jobs/{job}/watch", lambda found: False, "WatchJobResponse", job=job)
    check(ended[-1] == ("end", {}), f"a watch ends with its job: {ended[-1]}")
    calls.ask(operator, "GET", "/usage")
    calls.ask(operator, "GET", "/jobs/{job}", job=job)
    check(calls.ask(reader, "GET", "/jobs/{job}/pictures", job=job)["pictures"] == pictures, "pictures stay as long as the logs")
    every = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    missed = every - {call for call, statuses in calls.seen.items() if 200 in statuses}
    check(not missed, f"never asked with success: {sorted(missed)}")
    return f"{len(every)} calls answer as docs/api/openapi.json says"


def whole_log(site, calls, reader):
    """All that two ranks have written, by following `next`."""
    script = site.script("chatty.py", CHATTY, mode=0o644)
    job = ask_meshrun(site, "submit", "--nodes", 1, "--nproc", 2, "--name", "chatty", script)
    wait_until(lambda: calls.ask(reader, "GET", "/jobs/{job}", job=job)["job"]["state"] == "JOB_STATE_SUCCEEDED", 60, "the chatty job ends")
    texts, query, pages = {}, "?stream=stdout", 0
    while True:
        page = calls.ask(reader, "GET", "/jobs/{job}/logs", query=query, job=job)
        pages += 1
        for piece in page["pieces"]:
            texts[piece["rank"]] = texts.get(piece["rank"], "") + piece["text"]
        if not page["more"]:
            break
        query = f"?stream=stdout&after={page['next']}"
        check(pages < 20, "the pages come to an end")
    wanted = {rank: "".join(f"rank {rank} caf\u00e9 {line}\n" for line in range(100_000)) for rank in (0, 1)}
    check(texts == wanted, f"{pages} pages have the text of both ranks: {({rank: len(text) for rank, text in texts.items()})} characters")
    check(pages > 2, f"the text has {pages} pages")


def refusals(operator, reader):
    calls = Recorder()
    for path, methods in DOCUMENT["paths"].items():
        for method in methods:
            # Flight records change nothing, and stop no rank.
            if method == "post" and not path.endswith("/flightRecords"):
                refused = calls.ask(reader, "POST", path, {}, status=403, job="none", node="none")
                check("is for the roles" in refused["message"], f"a sentence says who may: {refused}")
    for template, status, query in (("/jobs/{job}", 404, ""), ("/jobs/{job}/logs", 404, ""), ("/jobs/{job}/logs", 400, "?tail=x"),
                                    ("/jobs/{job}/watch", 404, ""), ("/jobs/{job}/events", 404, ""), ("/jobs/{job}/pictures", 404, "")):
        calls.ask(operator, "GET", template, status=status, query=query, job="none")
    calls.ask(operator, "GET", "/jobs/{job}/logs", status=400, query="?tail=-1", job="none")
    for body in ({"soon": True}, {"now": "yes"}, {"now": 1}, {"reason": 5}):
        calls.ask(operator, "POST", "/jobs/{job}/cancel", body, status=400, job="none")
    calls.ask(operator, "POST", "/jobs/{job}/priority", {}, status=400, job="none")
    for deadline in ("-5s", "5m", 5):
        refused = calls.ask(operator, "POST", "/nodes/{node}/drain", {"deadline": deadline}, status=400, node="n1")
        check(refused["message"].startswith("deadline: write seconds"), f"the field is named, and how to write it: {refused}")
    calls.ask(operator, "POST", "/nodes/{node}/drain", {}, status=404, node="none")
    stranger = ssl.create_default_context(cafile=operator.files / "ca.crt")
    try:
        connection = http.client.HTTPSConnection(operator.address, context=stranger, timeout=20)
        connection.request("GET", "/api/v1/jobs")
        check(False, f"without a certificate it answers {connection.getresponse().status}")
    except (ssl.SSLError, ConnectionError, http.client.HTTPException):
        pass
    return "a reader is told who may change what, and nobody without a certificate is let in"


class Terminal:
    """A command in tmux, whose screen can be read and whose keys pressed."""

    def __init__(self, site, command, columns, rows):
        self.site, self.socket = site, str(site.directory / f"tmux-{columns}")
        words = " ".join(f"'{word}'" for word in map(str, command))
        site.cleanup.callback(self._tmux, "kill-server")
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", columns, "-y", rows,
                   f"LC_ALL=C.UTF-8 {words}; echo \"the command exited $?\"; sleep 600")

    def _tmux(self, *words):
        env = {name: value for name, value in self.site.env.items() if name not in ("TMUX", "NO_COLOR")}
        done = subprocess.run(["tmux", "-S", self.socket, *map(str, words)], env=env, capture_output=True, text=True, timeout=30)
        return done.stdout

    def rows(self):
        return self._tmux("capture-pane", "-p").split("\n")[:-1]

    def press(self, *keys):
        self._tmux("send-keys", *keys)

    def await_rows(self, *patterns):
        """Rows that match, in this order; waits for them."""
        wanted = list(patterns)

        def shown():
            rest = iter(self.rows())
            return all(any(re.fullmatch(pattern, row.rstrip()) for row in rest) for pattern in wanted)

        until = time.monotonic() + 30
        while not shown():
            check(time.monotonic() < until, f"the screen never has {wanted}: it has {self.rows()}")
            time.sleep(0.1)
        return self.rows()


def top(site):
    job = submit(site, "shown")
    jobs = json.loads(ask_meshrun(site, "ps", "-o", "json"))["jobs"]
    check(jobs[0]["jobId"] == job, f"the job that was submitted runs: {jobs[0]['jobId']}")
    wait_until(lambda: json.loads(ask_meshrun(site, "describe", job, "-o", "json"))["job"].get("progress", {}).get("step", 0) > 20, 60,
               "the job takes steps")
    once = ask_meshrun(site, "top", "--once").split("\n")
    check(re.fullmatch(r"meshrun \S+  2 of 2 nodes healthy  4/\d+ slots  127\.0\.0\.1:\d+", once[0]), f"top --once begins: {once[0]}")
    check(any(re.fullmatch(rf"[ >]{job}\s+\S+\s+RUNNING\s+4\s+\d+%\s+\S+\s+0\.\d+", row.rstrip()) for row in once), f"the job's row: {once}")
    for columns, rows in ((80, 24), (120, 40)):
        terminal = Terminal(site, [meshrun(), "top"], columns, rows)
        shown = terminal.await_rows(r"meshrun \S+  2 of 2 nodes healthy  4/\d+ slots.*", r"NODE +STATE +SLOTS", r"n1 +HEALTHY +2/\d+", r"n2 +HEALTHY +2/\d+",
                                    r" JOB +USER.*DONE +LEFT.*", rf">{job} .*RUNNING .*\d+% .*",
                                    r"arrows: mark  Enter: job  l: logs  s: stacks  c: cancel  q: quit")
        check(len(shown) == rows, f"{len(shown)} rows are drawn on {rows}")
        terminal.press("Enter")
        terminal.await_rows(rf"{job}  RUNNING  generation 1  4 ranks  of \S+", r"progress .*\d+%.*", r" +0  [.1-9+]{4}")
        terminal.press("l")
        for rank in range(4):  # in whatever order they wrote it
            terminal.await_rows(rf"log of {job}", rf"\[{rank}\] rank {rank} reads the mesh of caf\u00e9s")
        terminal.press("Escape")
        terminal.await_rows(r"l: logs  s: stacks  c: cancel  Esc: back  q: quit")
        if columns == 120:
            # Stacks take a moment: the log does not wait for them, and they do not take its place while it is read.
            terminal.press("s", "l")
            terminal.await_rows(rf"(log|stacks) of {job}", rf"(log|stacks) of {job} came: Esc shows it")
            terminal.press("Escape")
            terminal.await_rows(rf"(log|stacks) of {job}", r".*Esc: back.*")
            terminal.press("Escape")
            terminal.await_rows(r"l: logs  s: stacks  c: cancel  Esc: back  q: quit")
            terminal.press("c")
            terminal.await_rows(rf"cancel {job}\? y: yes, any other key: no")
            terminal.press("n")
            terminal.await_rows(rf"{job} goes on")
            terminal.press("c")
            terminal.await_rows(rf"cancel {job}\? y: yes, any other key: no")
            terminal.press("y")
            terminal.await_rows(rf"{job}  CANCELLED .*")
        terminal.press("q")
        ended = terminal.await_rows(r"the command exited 0")
        check(not any("arrows:" in row for row in ended), f"the terminal is as it was before: {ended}")
    return "top shows it at 80x24 and 120x40, and its keys do what they say"


def schemathesis(site, address, certificates):
    """From PyPI, in a virtual environment of its own."""
    place = site.directory / "schemathesis"
    venv.create(place, with_pip=True)
    installed = subprocess.run([place / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", SCHEMATHESIS],
                               capture_output=True, text=True, timeout=600)
    check(installed.returncode == 0, f"schemathesis cannot be installed: {installed.stderr[-300:]}")
    # Not QUERY: this server does not know it, and answers 501 (RFC 9110, section 9.1), which would be taken for a fault of the server.
    (site.directory / "schemathesis.toml").write_text(
        '[phases.coverage]\nunexpected-methods = ["get", "put", "post", "delete", "options", "patch", "trace"]\n')
    said = []
    for name in ("client", "reader"):
        files = certificates / name
        done = subprocess.run(
            [place / "bin/schemathesis", "run", ROOT / "docs/api/openapi.json", "--url", f"https://{address}/api/v1", "--max-examples", "25",
             "--request-cert", files / "tls.crt", "--request-cert-key", files / "tls.key", "--tls-verify", files / "ca.crt",
             "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
             "--exclude-path-regex", "(watch|follow)$"],
            cwd=site.directory, capture_output=True, text=True, timeout=900)
        check(done.returncode == 0, f"schemathesis as {name}: {done.stdout[-1500:]} {done.stderr[-300:]}")
        cases = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
        check(cases and int(cases[1]) > 100 and cases[1] == cases[2], f"schemathesis as {name}: {done.stdout[-1000:]}")
        said.append(f"{cases[1]} cases as {'an operator' if name == 'client' else 'a reader'}")
    return f"schemathesis: {', '.join(said)}"
