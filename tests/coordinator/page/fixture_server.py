#!/usr/bin/env python3
"""Serves the page with a fixture cluster behind it, with the headers of coordinator/page/assets.cc. Called as a program it plays a job
again and again, to look at."""

import contextlib
import http.server
import json
import math
import mimetypes
import pathlib
import re
import sys
import threading
import time
import urllib.parse

from fixture_cluster import MAY, Cluster

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = ROOT / "coordinator/page"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
REFUSED = "your certificate has the role read, which may not call {}: ask for submit or operate"
# A coordinator tells progress at most once a second.
WATCH_SECONDS = 0.25


class Refusal(Exception):
    def __init__(self, status, code, message):
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Handler(http.server.BaseHTTPRequestHandler):
    """One request. The server has `cluster`, `role`, `files` (more files to serve, by path), and `pictures`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._answer("GET")

    def do_POST(self):
        self._answer("POST")

    def _answer(self, method):
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        try:
            if self.server.away:
                raise Refusal(503, "UNAVAILABLE", self.server.away)
            if not url.path.startswith("/api/v1/"):
                return self._file(url.path)
            body = {}
            if method == "POST":
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
                if not self.headers.get("Content-Type", "").startswith("application/json"):
                    raise Refusal(415, "INVALID_ARGUMENT", "a POST needs Content-Type: application/json")
            for route_method, pattern, call in ROUTES:
                found = re.fullmatch(pattern, url.path.removeprefix("/api/v1"))
                if route_method == method and found:
                    parts = [urllib.parse.unquote(part) for part in found.groups()]
                    return call(self, *parts, query=query, body=body)
            raise Refusal(404, "NOT_FOUND", f"there is no {url.path}")
        except Refusal as refusal:
            self._json({"code": refusal.code, "message": refusal.message}, refusal.status)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _file(self, path):
        path = "/index.html" if path == "/" else path
        place = self.server.files.get(path) or PAGE / path.lstrip("/")
        if not place.resolve().is_relative_to(ROOT) or not place.is_file():
            raise Refusal(404, "NOT_FOUND", f"there is no {path}")
        kind = {".js": "text/javascript", ".svg": "image/svg+xml"}.get(place.suffix) or mimetypes.guess_type(place.name)[0]
        self._send(200, f"{kind}; charset=utf-8", place.read_bytes())

    def _json(self, value, status=200):
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status, kind, data):
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _need(self, method):
        if method not in MAY[self.server.role]:
            raise Refusal(403, "PERMISSION_DENIED", REFUSED.format(method))

    def _own(self, job):
        submitter = job.view["submitter"]
        if self.server.role == "submit" and submitter != self.server.user:
            what = f"{job.view['jobId']} was submitted by {submitter}: {self.server.user} has the role submit, for jobs of his own"
            raise Refusal(403, "PERMISSION_DENIED", what)

    def _job(self, job_id):
        if job_id not in self.server.cluster.jobs:
            raise Refusal(404, "NOT_FOUND", f"there is no job '{job_id}'")
        return self.server.cluster.jobs[job_id]

    # Streams.

    def _stream(self):
        self.send_response(200)
        for name, value in {**HEADERS, "Content-Type": "text/event-stream", "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True

    def _event(self, name, value):
        self.wfile.write(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def watch(self, job_id, query, body):
        job = self._job(job_id)
        cluster = self.server.cluster
        self._stream()
        seen = None
        while not self.server.away:
            with cluster.changed:
                if job.ended and seen and job.view["revision"] == seen["revision"]:
                    break
                cluster.changed.wait_for(lambda: not seen or job.view["revision"] != seen["revision"] or self.server.away, timeout=10)
                # What a delta cannot say: the beginning, and other ranks.
                whole = not seen or job.view["generation"] != seen["generation"]
                answer = {"job": job.view} if whole else {"delta": self._delta(job)}
                text = json.dumps({**answer, "curve": job.curve[0 if whole else seen["points"]:]})
                seen = {"revision": job.view["revision"], "generation": job.view["generation"], "points": len(job.curve)}
            self._event("change", json.loads(text))
            time.sleep(WATCH_SECONDS)
        if job.ended:
            self._event("end", {})

    @staticmethod
    def _delta(job):
        head = {name: value for name, value in job.view.items() if name not in ("spec", "ranks", "groups")}
        changed = [job.view["ranks"][number] for number in sorted(job.changed_ranks) if number < len(job.view["ranks"])]
        ranks = [{name: value for name, value in rank.items() if name != "progress"} for rank in changed]
        return {"head": head, "ranks": ranks, "groups": [], "hasGroups": False}

    def follow(self, job_id, query, body):
        job = self._job(job_id)
        cluster = self.server.cluster
        self._stream()
        sent = 0
        while not self.server.away:
            with cluster.changed:
                pieces = self._chosen(job, query)
                if len(pieces) == sent and not job.ended:
                    cluster.changed.wait(1)
                    pieces = self._chosen(job, query)
                news, ended = pieces[sent:], job.ended
            for piece in news:
                self._event("log", piece)
            sent += len(news)
            if ended and not news:
                return self._event("end", {})

    @staticmethod
    def _chosen(job, query):
        ranks = set()
        for part in filter(None, query.get("ranks", [""])[0].split(",")):
            first, _, last = part.partition("-")
            ranks.update(range(int(first), int(last or first) + 1))
        stream = query.get("stream", [""])[0].upper()
        return [piece for piece in job.pieces if (not ranks or piece["rank"] in ranks) and piece["stream"].endswith(stream)]

    # Answers and actions.

    def me(self, query, body):
        self._json({"user": self.server.user, "roles": [self.server.role], "may": MAY[self.server.role]})

    def job(self, job_id, query, body):
        self._job(job_id)
        self._json(self.server.cluster.get_job(job_id, int(query.get("firstRank", ["0"])[0]), int(query.get("maxRanks", ["2000"])[0])))

    def cancel(self, job_id, query, body):
        self._need("CancelJob")
        self._own(self._job(job_id))
        self.server.cluster.cancel(job_id, body.get("reason", ""))
        self._json({"job": self.server.cluster.jobs[job_id].view})

    def hold(self, job_id, what, query, body):
        self._need("UpdateJob")
        self._job(job_id)
        self.server.cluster.hold(job_id, what == "hold")
        self._json({"job": self.server.cluster.jobs[job_id].view})

    def stacks(self, job_id, query, body):
        self._need("GetStacks")
        job = self._job(job_id)
        ranks = body.get("ranks") or [rank["assignment"]["rank"] for rank in job.view["ranks"]]
        slow = {straggler["rank"] for straggler in job.view["stragglers"]}
        self._json({"generation": job.view["generation"], "more": False, "stacks": [self._stack(rank, rank in slow) for rank in ranks]})

    @staticmethod
    def _stack(rank, slow):
        waits = "step (train.py:41), in all_reduce (torch/distributed/distributed_c10d.py:2937)"
        place = "load_batch (data.py:88), in read (h5py/_hl/dataset.py:1050)" if slow else waits
        frames = place.replace(", in ", "\n    ").split("\n    ")
        return {"rank": rank, "place": place, "error": "", "text": f"Thread {4000 + rank} (idle): \"MainThread\"\n    " + "\n    ".join(
            [*reversed(frames), "main (train.py:77)", "<module> (train.py:90)"])}

    def flights(self, job_id, query, body):
        job = self._job(job_id)
        operation = {"sequence": 17, "operation": "all_reduce", "state": "waiting"}
        record = {"now_ms": 81.5, "groups": [{"group": "world", "operations": [operation]}]}
        sentence = "all_reduce 17 of group world: rank 2 has not called it, 3 ranks wait"
        self._json({"more": False, "sentence": sentence, "records": [{"rank": rank["assignment"]["rank"], "json": json.dumps(record), "error": ""}
                                                      for rank in job.view["ranks"]]})

    def drain(self, node, what, query, body):
        self._need("DrainNode")
        self._json({"node": self.server.cluster.drain(node, body.get("reason", ""), what == "drain"), "moving": [], "staying": []})

    def pictures(self, job_id, query, body):
        self._job(job_id)
        self._json({"pictures": self.server.pictures})

    def picture(self, job_id, rank, name, query, body):
        self._send(200, "image/png", (ROOT / "docs" / name).read_bytes())


ROUTES = [
    ("GET", "/me", Handler.me),
    ("GET", "/cluster", lambda self, query, body: self._json(self.server.cluster.describe(int(query.get("events", ["50"])[0])))),
    ("GET", "/nodes", lambda self, query, body: self._json(self.server.cluster.list_nodes())),
    ("GET", "/jobs", lambda self, query, body: self._json(self.server.cluster.list_jobs(query))),
    ("GET", "/jobs/([^/]+)", Handler.job),
    ("GET", "/jobs/([^/]+)/watch", Handler.watch),
    ("GET", "/jobs/([^/]+)/logs/follow", Handler.follow),
    ("GET", "/jobs/([^/]+)/pictures", Handler.pictures),
    ("GET", "/jobs/([^/]+)/pictures/([^/]+)/([^/]+)", Handler.picture),
    ("POST", "/jobs/([^/]+)/cancel", Handler.cancel),
    ("POST", "/jobs/([^/]+)/(hold|release)", Handler.hold),
    ("POST", "/jobs/([^/]+)/stacks", Handler.stacks),
    ("POST", "/jobs/([^/]+)/flightRecords", Handler.flights),
    ("POST", "/nodes/([^/]+)/(drain|undrain)", Handler.drain),
]


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, cluster, role="operate", port=0, files=None, user="jo"):
        super().__init__(("127.0.0.1", port), Handler)
        self.cluster, self.role, self.files, self.user = cluster, role, files or {}, user
        self.pictures = []
        # A sentence: it answers nothing but this.
        self.away = ""

    def handle_error(self, *_):
        # A browser that goes away in the middle is none.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*_)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def serving(cluster, role="operate", port=0, files=None, user="jo"):
    server = Server(cluster, role, port, files, user)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def play(cluster, job_id, steps, pause, slow=None, total=None):
    """Steps of a job: reports, and lines of its ranks."""
    waited = {}
    for step in range(1, steps + 1):
        time.sleep(pause)
        ranks = [rank["assignment"]["rank"] for rank in cluster.jobs[job_id].view["ranks"]]
        for rank in ranks:
            waited[rank] = waited.get(rank, 0.0) + pause * (0.02 if rank == slow else 0.6)
        loss = 0.9 * math.exp(-step / 14) + 0.02 + 0.012 * math.sin(step * 1.7)
        lag = {slow: step % 3} if slow is not None else None
        cluster.report(job_id, step * 10, total=(total or steps) * 10, loss=loss, waited=waited, lag=lag,
                       learning_rate=1e-3 * (1 - step / (steps + 1)), samples_per_second=512 + 40 * math.sin(step / 2))
        for rank in ranks[:8]:
            cluster.log(job_id, rank, f"step {step * 10} loss {loss:.4f}\n")
        if step == 3 and slow is not None:
            cluster.straggle(job_id, slow)
            cluster.log(job_id, slow, "UserWarning: reading /data/darcy.h5 takes 0.12 s a batch\n", "LOG_STREAM_STDERR")


def main():
    cluster = Cluster(nodes=4, slots=8, gpus=4)
    with serving(cluster, port=int(sys.argv[1]) if len(sys.argv) > 1 else 0) as server:
        print(server.address, flush=True)
        while True:
            job = cluster.submit("darcy", nodes=2, procs=4, mesh=[("dp", 2), ("spatial", 4)])
            cluster.start(job)
            play(cluster, job, 60, 1.0, slow=5)
            cluster.succeed(job)


if __name__ == "__main__":
    main()
