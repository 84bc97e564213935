"""Item 3: the coordinator is killed again and again, or its disk hangs, or a worker's directory of a job hangs: no training
notices, nothing that was said is lost."""

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import threading

from clusters import Cluster, now
from harness import Site, binary, check, meshrun, skip_soak, wait_until
from elastic_items.report import Report, whole
from elastic_items.scenarios_control import numbers
from elastic_items.scenarios_hosts import go_on, nothing_happened

GEOID = ["--batch", 512, "--hidden", 32, "--seed", 1, "--no-evaluation", "--png", ""]
EVERY = 2.0


def run(site):
    report = Report()
    library = binary("//tests/worker:libhanging_files.so")
    if not skip_soak():
        with contextlib.ExitStack() as cleanup:
            killed(Site(cleanup), report, binary("//jobs/geoid:geoid"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(hang, part, library) for part in (coordinator_hangs, worker_hangs)]:
            part = done.result()
            report.figures += part.figures
            report.over += part.over
    if skip_soak():
        report.say("in the soak run: a minute of kills while geoid trains, and disks that hang as long")
    return report.verdict()


def hang(part, library):
    report = Report()
    with contextlib.ExitStack() as cleanup:
        site = Site(cleanup)
        flag = site.directory / "hangs"
        part(site, report, flag, {"LD_PRELOAD": library, "MESHRUN_HANG_WHILE": str(flag)})
    return report


def killed(site, report, geoid):
    cluster = Cluster(site, 2, worker_flags=["--cores", 1])
    talker = cluster.submit_journal(["--max-restarts", 1], "--print", "--step-ms", 50)
    cluster.wait_stepping(1, 1, 20, talker)
    followed = site.directory / "followed"
    with open(followed, "w") as out:
        site.start([meshrun(), "logs", "-f", talker, "--stream", "stdout"], stdout=out, stderr=subprocess.DEVNULL)

    rate, _, _ = train(cluster, geoid, 400)
    steps = max(200, int(rate * 20))
    quiet, loud, rates, kills, seen, calls = [], [], ([], []), 0, {}, None
    for _ in range(3):
        rate, step, _ = train(cluster, geoid, steps)
        quiet.append(step)
        rates[0].append(rate)
        with Killer(cluster) as killer:
            rate, step, counted = train(cluster, geoid, steps, count=calls is None)
        loud.append(step)
        rates[1].append(rate)
        kills += killer.kills
        calls = calls or counted
        for event in cluster.events():
            seen[event["sequence"]] = event
    check(kills >= 2, f"the coordinator was killed {kills} times")
    present = {event["sequence"]: event for event in cluster.events()}
    check(all(present.get(sequence) == event for sequence, event in seen.items()), "an event that was shown is gone")
    view = cluster.job(talker)
    check(int(view["generation"]) == 1 and not int(view.get("restarts", 0)), f"the other job is in generation {view['generation']}")
    newest = max(e["step"] for e in cluster.journal(what="step"))
    wait_until(lambda: newest in numbers(followed.read_text()), 20, f"the follower shows line {newest}")
    lines = numbers(followed.read_text())
    check(lines == list(range(1, lines[-1] + 1)), f"the follower shows {len(lines)} lines of {lines[-1]}")
    slower = statistics.median(loud) / statistics.median(quiet) - 1
    fewer = 1 - statistics.median(rates[1]) / statistics.median(rates[0])
    load = os.getloadavg()[0]
    report.say(f"{kills} kills, generation 1 throughout, {len(lines)} log lines each once, {len(seen)} events kept")
    report.say(f"median step {statistics.median(quiet):.2f} ms undisturbed, {100 * slower:+.1f} % disturbed; {100 * fewer:.1f} % fewer steps "
               f"a second in all (each new coordinator takes its share of {os.cpu_count()} cores; load {load:.1f})")
    if calls:
        report.say(f"{calls[0]} messages to the daemon during {calls[1]} steps")
        check(calls[0] <= max(4, calls[1] // 20), f"{calls[0]} messages to the daemon during {calls[1]} steps")
    if slower > 0.05:
        report.over.append(f"{100 * slower:+.1f} %, not +5 %")


def train(cluster, geoid, steps, count=False):
    """(steps per second, milliseconds of the median step, (messages of a rank to its daemon, steps meanwhile) or None)"""
    path, traces = cluster.site.directory / "report.json", cluster.site.directory / "traces"
    path.unlink(missing_ok=True)
    shutil.rmtree(traces, ignore_errors=True)
    job = cluster.submit(["--name", "geoid", "--nodes", 2, "--max-restarts", 2, "--env", f"MESHRUN_TRACE_DIR={traces}",
                          "--env", f"MESHRUN_TRACE_STEPS=50-{steps}"],
                         [geoid, *GEOID, "--steps", steps, "--report", path])
    counted = None
    if count and shutil.which("strace"):
        counted = count_messages(cluster, job, steps)
    cluster_is_back = lambda: cluster.site.run([meshrun(), "describe", job, "-o", "json"])
    def ended():
        code, out, _, _ = cluster_is_back()
        return code == 0 and json.loads(out)["job"]["state"] in ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED")
    wait_until(ended, 240, f"{job} ends")
    wait_until(lambda: cluster.site.run([meshrun(), "nodes"])[0] == 0, 10, "the coordinator answers")
    view = cluster.job(job)
    check(view["state"] == "JOB_STATE_SUCCEEDED", f"{job} is {view['state']}: {view.get('reason')}")
    check(int(view["generation"]) == 1 and not int(view.get("restarts", 0)), f"{job} was started {view['generation']} times")
    told = json.loads(path.read_text())
    events = [event for file in traces.glob("*-rank-0-*.json") for event in json.loads(file.read_text())]
    begins = sorted(event["ts"] for event in events if event.get("name") == "forward")  # microseconds
    check(len(begins) == steps - 49, f"the trace of {steps} steps has {len(begins)}")
    return told["steps_per_second"], statistics.median(b - a for a, b in zip(begins, begins[1:])) / 1000, counted


def count_messages(cluster, job, steps):
    """What rank 0 sends on streams of its host while it trains: calls to its daemon. Reports are datagrams and wait for nobody."""
    def pid():
        code, out, _, _ = cluster.site.run([meshrun(), "describe", job, "-o", "json"])
        ranks = json.loads(out)["job"].get("ranks", []) if code == 0 else []
        progress = ranks and ranks[0].get("progress", {}).get("step")
        return int(ranks[0]["pid"]) if progress else 0
    try:
        wait_until(pid, 60, "rank 0 trains")
    except Exception:
        return None
    rank = 0
    while not rank:
        rank = pid()
    trace = cluster.site.directory / "trace"
    done = subprocess.run(["timeout", "--signal=INT", "1.5", "strace", "-f", "-qq", "-yy", "-e", "trace=sendmsg,sendto", "-o", trace, "-p", str(rank)],
                          capture_output=True, text=True)
    if not trace.exists() or "ptrace" in done.stderr and "permitted" in done.stderr:
        return None
    text = trace.read_text()
    # gRPC writes by sendmsg; reports are one datagram each, and UCX wakes its peers by datagrams of one byte.
    steps = [int(step) for step in re.findall(r'sendto\(.*"{\\"step\\":(\d+)', text)]
    return (len(re.findall(r"sendmsg\(", text)), steps[-1] - steps[0]) if len(steps) > 1 else None


class Killer:
    """kill -9 of the coordinator every two seconds."""

    def __init__(self, cluster):
        self.cluster, self.kills, self.failure = cluster, 0, None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        if self.failure:
            raise self.failure

    def _run(self):
        try:
            while not self.over.wait(EVERY):
                self.cluster.kill_coordinator()
                self.cluster.start_coordinator()
                self.kills += 1
        except Exception as error:  # of another thread: told at the end
            self.failure = error


def coordinator_hangs(site, report, flag, env):
    state = site.directory / "coordinator"
    cluster = Cluster(site, 2, coordinator_env=dict(env, MESHRUN_HANG_BELOW=str(state)))
    job = cluster.submit_journal(["--nodes", 2, "--max-restarts", 1])
    cluster.wait_stepping(1, 2, 20, job)
    before = cluster.events(job)
    seconds = whole(7, 60)
    flag.write_text("")
    # What has to be written while it hangs.
    client = site.start([meshrun(), "submit", "--", "true"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    gap = go_on(cluster, seconds)
    flag.unlink()
    said, _ = client.communicate(timeout=60)
    wait_until(lambda: site.run([meshrun(), "submit", "--", "true"])[0] == 0, 30, "jobs are taken when the disk answers")
    nothing_happened(cluster, job, 2)
    check(cluster.events(job)[:len(before)] == before, "events are gone")
    report.say(f"coordinator's disk hung for {seconds} s: no node lost, generation 1; a submit meanwhile said '{said.strip().splitlines()[-1][:160]}'")
    report.time("longest step", gap, 1.0)


def worker_hangs(site, report, flag, env):
    cluster = Cluster(site, 1)
    # Job ids begin with the job's name.
    cluster.add("n2", env=dict(env, MESHRUN_HANG_BELOW=str(site.directory / "n2/logs/hung-")))
    job = cluster.submit_journal(["--nodes", 2, "--max-restarts", 1])
    cluster.wait_stepping(1, 2, 20, job)
    flag.write_text("")
    hung = cluster.submit(["--name", "hung", "--nodes", 2], ["true"])
    seconds = whole(7, 60)
    gap = go_on(cluster, seconds)
    during = cluster.job(hung)
    flag.unlink()
    nothing_happened(cluster, job, 2)
    report.say(f"a job's directory on a worker hung for {seconds} s: that job was {during['state'].removeprefix('JOB_STATE_')}, the other one's ranks live")
    report.time("longest step", gap, 1.0)
