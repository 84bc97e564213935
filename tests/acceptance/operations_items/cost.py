"""Item 7: what it costs a running training that it is watched: by Prometheus, by somebody who has the job's page open, and by requests
for its ranks' stacks."""

import http.client
import json
import socket
import ssl
import threading
import time

from harness import binary, check, passed, skip_soak, slow, wait_until
from operations_items.monitored import Monitored

# The scrape configuration in deploy/monitoring asks every 15 s; here it is asked fifteen times as often.
SECONDS = 2 if skip_soak() else 12
MOST = 0.01
# With a process's number this is the name of its clock (linux/posix-timers_types.h), as clock_getcpuclockid(3) gives it.
CPUCLOCK_SCHED = 2


def run_time(pid):
    """Nanoseconds for which the threads of the process have been on a processor, also those that have ended."""
    return time.clock_gettime_ns((~pid << 3) | CPUCLOCK_SCHED)


class Asker:
    """Calls the HTTP servers of the daemons as Prometheus and browsers do, which keep their connections."""

    def __init__(self, cluster):
        files = cluster.certificates / "prometheus"
        self.context = ssl.create_default_context(cafile=files / "ca.crt")
        self.context.load_cert_chain(files / "tls.crt", files / "tls.key")
        self.ports = cluster.ports

    def connect(self, name):
        connection = http.client.HTTPSConnection("127.0.0.1", self.ports[name], context=self.context, timeout=SECONDS + 20)
        connection.connect()
        return connection


class Watched:
    """What the page of a job has open: the stream of its changes, and that of its logs."""

    def __init__(self, asker, job):
        # By path, of which each has a thread: whether it was answered, and how many events came.
        self.answered, self.events, self.sockets = {}, {}, []
        for path in ("/watch", "/logs/follow?tail=50"):
            connection = asker.connect("coordinator")
            self.sockets.append(connection.sock)
            threading.Thread(target=self.read, args=(connection, f"/api/v1/jobs/{job}{path}"), daemon=True).start()

    def read(self, connection, path):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            self.answered[path] = answer.status == 200
            for line in answer:
                self.events[path] = self.events.get(path, 0) + line.startswith(b"data:")
        except (OSError, ValueError, http.client.HTTPException):
            pass  # closed by end()

    def is_open(self):
        """The log follows whatever its job writes, which may be nothing."""
        return list(self.answered.values()) == [True, True] and any(self.events.values())

    def end(self):
        # To close the answer would wait for the reader, and so for the next words of a stream.
        for one in self.sockets:
            one.shutdown(socket.SHUT_RDWR)


def run(site):
    cluster = Monitored(site)
    cluster.add("n1", "--slots", 4)
    binary("//jobs/geoid:geoid")
    job = cluster.ask("submit", "--nproc", 2, "--job", "geoid", "--", "--steps", 1_000_000).split()[0]

    def ranks():
        found = json.loads(cluster.ask("describe", job, "--output", "json"))
        job_now = found.get("job", found)
        return [int(rank["pid"]) for rank in job_now.get("ranks", []) if rank.get("pid") and rank.get("progress", {}).get("step")]

    wait_until(lambda: len(ranks()) == 2, 120, "both ranks train")
    pids = ranks()
    daemons = [cluster.coordinator.pid, cluster.workers["n1"].pid]

    def cost(each_second=lambda: None):
        """Run time of the daemons by that of the ranks."""
        before = sum(map(run_time, daemons)), sum(map(run_time, pids))
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            each_second()
            time.sleep(1)
        return (sum(map(run_time, daemons)) - before[0]) / (sum(map(run_time, pids)) - before[1])

    asker = Asker(cluster)
    scraper = {name: asker.connect(name) for name in cluster.ports}

    def scrape():
        for name, connection in scraper.items():
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            check(answer.read() and answer.status == 200, f"{name} is not scraped")

    without, scraped = cost(), cost(scrape)
    watched = Watched(asker, job)
    if skip_soak():  # To open a page costs once what these few seconds would make much of; the soak run counts it.
        wait_until(watched.is_open, 20, "both streams of the page answer")
    seen = cost()
    watched.end()
    check(watched.is_open(), "the page's streams said nothing")
    # A debugger's own work is not the training's: what the daemons do for it is counted.
    began = time.monotonic()
    cluster.ask("stack", job)
    took = time.monotonic() - began
    asked = cost()
    cluster.ask("cancel", "--now", job)
    more = {"scraped once a second": scraped - without, "with the job's page open": seen - without, "after a stack of both ranks": asked - without}
    figures = (f"of the ranks' run time both daemons take {without * 100:.2f} %, and more: "
               + ", ".join(f"{what} {part * 100:.2f} %" for what, part in more.items()) + f"; the stack came after {took:.1f} s")
    return passed(figures) if max(more.values()) <= MOST else slow(figures, "1 %")
