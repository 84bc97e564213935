"""Item 7: what it costs a running training that it is watched: by Prometheus, by somebody who has the job's page open, and by requests
for its ranks' stacks."""

import json
import pathlib
import ssl
import threading
import time
import urllib.request

from harness import binary, check, passed, short, skip_soak, wait_until
from operations_items.monitored import Monitored

# The scrape configuration in deploy/monitoring asks every 15 s; here it is asked fifteen times as often.
SECONDS = 4 if skip_soak() else 12
MOST = 0.01


def run_time(pid):
    """Nanoseconds for which the threads of the process have been on a processor."""
    total = 0
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total


class Watched:
    """What the page of a job has open: the stream of its changes, and that of its logs."""

    def __init__(self, cluster, job):
        files = cluster.certificates / "prometheus"
        self.context = ssl.create_default_context(cafile=files / "ca.crt")
        self.context.load_cert_chain(files / "tls.crt", files / "tls.key")
        self.base = f"https://127.0.0.1:{cluster.ports['coordinator']}/api/v1/jobs/{job}"
        self.events, self.streams = 0, []
        self.threads = [threading.Thread(target=self.read, args=(path,), daemon=True) for path in ("/watch", "/logs/follow?tail=50")]
        for thread in self.threads:
            thread.start()

    def read(self, path):
        try:
            with urllib.request.urlopen(self.base + path, context=self.context, timeout=SECONDS + 10) as stream:
                self.streams.append(stream)
                for line in stream:
                    self.events += line.startswith(b"data:")
        except (OSError, ValueError, AttributeError):
            pass  # closed by end()

    def end(self):
        for stream in self.streams:
            stream.close()


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

    def scrape():
        for name in cluster.ports:
            check(cluster.get(name, "/metrics")[0] == 200, f"{name} is not scraped")

    without, scraped = cost(), cost(scrape)
    watched = Watched(cluster, job)
    seen = cost()
    watched.end()
    check(watched.events > 0, "the page's streams said nothing")
    # A debugger's own work is not the training's: what the daemons do for it is counted.
    began = time.monotonic()
    cluster.ask("stack", job)
    took = time.monotonic() - began
    asked = cost()
    cluster.ask("cancel", "--now", job)
    more = {"scraped once a second": scraped - without, "with the job's page open": seen - without, "after a stack of both ranks": asked - without}
    figures = (f"of the ranks' run time both daemons take {without * 100:.2f} %, and more: "
               + ", ".join(f"{what} {part * 100:.2f} %" for what, part in more.items()) + f"; the stack came after {took:.1f} s")
    return passed(figures) if max(more.values()) <= MOST else short(figures, "1 %")
