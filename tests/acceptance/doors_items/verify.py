"""Item 8: `meshrun verify` on one host and on two, as it is and with a fault: wrong sums, on all ranks or on one, a link of 10 Mbit/s, a
full disk, a clock 3 s ahead. Each is named, with exit code 1; every JSON file validates against its schema and holds no name of a host or
a user."""

import contextlib
import getpass
import json
import os
import pathlib
import shutil
import socket
import subprocess
import time

from disks import small_disk
from harness import ROOT, NotHere, binary, check, meshrun, not_applicable, passed, skip_soak
from namespaces import Namespaces, NotPermitted
from schema import problems

HERE = pathlib.Path(__file__).resolve().parent
PORT = 17431
# On 2 hosts; beside others, on the two cores of a small machine, everything takes longer.
LONGEST = 180
# Rows without which a table says little.
EXPECTED = {"topology": "world", "clocks": "clock of host 1", "memory": "copies in a host's memory", "links": "from host 0 to host 1",
            "collectives": "all_gather_v of uneven pieces", "transforms": "distributed_irfft2", "shards": "conv2d with halos",
            "files": "saved and read back", "recovery": "a rank is killed, and the job goes on"}


def preloaded(site, name):
    """A library of one of the C files beside this one."""
    library = site.directory / f"{name}.so"
    if not library.exists():
        done = subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, HERE / f"{name}.c", "-ldl"],
                              capture_output=True, text=True)
        check(done.returncode == 0, f"cc {name}.c: {done.stderr}")
    return {"LD_PRELOAD": str(library)}


def read_report(path, hosts):
    """A report that validates, and what is wrong with its world."""
    text = path.read_text()
    report = json.loads(text)
    wrong = problems(report, json.loads((ROOT / "docs/verify.schema.json").read_text()))
    check(not wrong, f"{path.name} is not as its schema says: {'; '.join(wrong)}")
    for name in (socket.gethostname(), *([] if getpass.getuser() == "root" else [getpass.getuser()]), "10.213.117", "/mrt-"):
        check(len(name) < 3 or name not in text, f"the report names '{name}'")
    check(report["finished"], "the report is not finished")
    check(len(report["topology"]["hosts"]) == hosts, f"{len(report['topology']['hosts'])} hosts in the report, and not {hosts}")
    return report


def rows(report, result):
    return [f"{row['stage']}, {row['what']}: {row['found']}" for row in report["rows"] if row["result"] == result]


class Site1:
    """One host."""

    hosts = 1

    def __init__(self, site):
        self.site = site

    def verify(self, name, directory=".", env=None, on_host_1=None):
        del on_host_1
        started = time.monotonic()
        code, out, err, _ = self.site.run([meshrun(), "verify", "--report", f"{name}.json", "--dir", directory], timeout=LONGEST + 60,
                                          env=env)
        return code, out, err, time.monotonic() - started


class Site2:
    """Two hosts, each a call of `meshrun verify`; node 0's secret is a file."""

    hosts = 2
    # Else UCX reads the other host's memory, since both are one machine.
    env = {"UCX_TLS": "tcp,self"}

    def __init__(self, site):
        self.site = site
        self.net = Namespaces(site)

    def verify(self, name, directory=".", env=None, on_host_1=None):
        words = [meshrun(), "verify", "--report", f"{name}.json", "--dir", directory, "--nnodes", "2", "--master-addr",
                 self.net.addresses["a"], "--master-port", PORT, "--rdzv-conf", f"secret_file={self.site.directory}/secret"]
        env = {**self.env, **(env or {})}
        started = time.monotonic()
        other = self.site.start(self.net.on("b", [*words, "--node-rank", "1"]), env={**env, **(on_host_1 or {})},
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        code, out, err, _ = self.site.run(self.net.on("a", [*words, "--node-rank", "0"]), timeout=LONGEST + 60, env=env)
        took = time.monotonic() - started
        other.wait(timeout=30)
        return code, out, err, took

    def shape(self, *words):
        """Traffic control on both ends of the link."""
        if not shutil.which("tc"):
            raise NotHere("the command tc is missing: apt-get install iproute2")
        for host in "ab":
            done = subprocess.run(["tc", "-n", self.net.names[host], "qdisc", *words[:1], "dev", self.net.links[host], "root", *words[1:]],
                                  capture_output=True, text=True)
            if done.returncode:
                raise NotHere(f"tc qdisc {' '.join(words)}: {done.stderr.strip()}")


def right(place):
    """A site without a fault."""
    code, out, err, took = place.verify("right")
    said = f"exit code {code} after {took:.0f} s: {out[-1500:]} {err[-500:]}"
    check(code == 0, said)
    report = read_report(place.site.directory / "right.json", place.hosts)
    check(report["ok"] and report["first_wrong"] is None and not rows(report, "wrong"), said)
    there = {(row["stage"], row["what"]): row["result"] for row in report["rows"]}
    for stage, what in EXPECTED.items():
        if place.hosts == 1 and "host 1" in what:
            continue
        check(there.get((stage, what)) in ("ok", "warning"), f"{stage}, {what}: {there.get((stage, what))}; {said}")
        check(what in out, f"the table has no row '{what}': {out}")
    check(took <= LONGEST, f"{took:.0f} s on {place.hosts} hosts, and it should be {LONGEST} s at most")
    return f"{len(report['rows'])} rows in {took:.0f} s"


def faulty(place, name, faults, **how):
    """Each fault is a wrong row with all of its words; the first one is named in the report, by the table and by the command."""
    code, out, err, took = place.verify(name, **how)
    said = f"{name}: exit code {code} after {took:.0f} s: {out[-1500:]} {err[-800:]}"
    check(code == 1, said)
    report = read_report(place.site.directory / f"{name}.json", place.hosts)
    wrong = rows(report, "wrong")
    for words in faults:
        check(any(all(word in row for word in words) for row in wrong), f"{name}: {words} is in none of {wrong}; {said}")
    first = report["first_wrong"] or ""
    check(all(word in first for word in faults[0]), f"{name}: the first wrong thing is '{first}', and not {faults[0]}")
    check(out.count("WRONG") == len(wrong), f"the table has not {len(wrong)} wrong rows: {said}")
    check(faults[0][-1] in err, f"standard error does not name it: {said}")
    return f"{name}: {'; '.join(row[:70] for row in wrong[:3])} ({took:.0f} s)"


WRONG_SUM = ["collectives, all_reduce", "and it should be"]
# Rank 0's pieces are right: the row names the rank that is damaged, and the ranks stay in step.
WRONG_ALONE = ["collectives, all_gather_v of uneven pieces: rank 1: element ", "and it should be"]
FULL_DISK = ["files, saved and read back", "No space left on device"]
LATE_CLOCK = ["clocks, clock of host 1", "3 s ahead of host 0's"]
SLOW_LINK = ["links, from host 0 to host 1", "slower than 100 Mbit/s"]


def damaging(place):
    # Between processes of one host, too, bytes then go through sockets.
    return {**preloaded(place.site, "wrong_bytes"), "UCX_TLS": "tcp,self"}


def damaging_one(place):
    return {**damaging(place), "MESHRUN_TEST_DAMAGED_RANK": "1"}


def ahead(place):
    return {**preloaded(place.site, "clock_ahead"), "MESHRUN_TEST_SECONDS_AHEAD": "3"}


@contextlib.contextmanager
def slow_link(place):
    place.shape("add", "tbf", "rate", "10mbit", "burst", "32kbit", "latency", "400ms")
    try:
        yield
    finally:
        place.shape("del")


def each_alone(one, two):
    yield faulty(one, "full-disk", [FULL_DISK], directory=small_disk(one.site, "disk-1", "8m"))
    yield faulty(two, "clock", [LATE_CLOCK], on_host_1=ahead(two))
    yield faulty(two, "full-disk", [FULL_DISK], directory=small_disk(two.site, "disk-2", "8m"))
    yield faulty(two, "wrong-sum", [WRONG_SUM], env=damaging(two))
    with slow_link(two):
        yield faulty(two, "slow-link", [SLOW_LINK])


def other_ways(site):
    """A cluster's job, and another launcher's tasks."""
    site.cluster()
    words = ["submit", "--follow", "--nodes", "2", "--procs-per-node", "1", "--max-restarts", "1", "--job", "verify"]
    ways = {"submit": [meshrun(), *words, "--", "--report", "submit.json"]}
    if shutil.which("mpirun"):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        ways["mpirun"] = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", "2", meshrun(), "verify", "--report",
                          "mpirun.json"]
    for name, command in ways.items():
        code, out, err, took = site.run(command, timeout=LONGEST)
        check(code == 0, f"{name}: exit code {code}: {out[-1500:]} {err[-500:]}")
        report = read_report(site.directory / f"{name}.json", 2 if name == "submit" else 1)
        done = {row["stage"]: row["result"] for row in report["rows"]}
        check(done["recovery"] == ("ok" if name == "submit" else "not_run"), f"{name}: {done}")
        yield f"by {name} in {took:.0f} s"


def run(site):
    if not shutil.which("cc"):
        return not_applicable("there is no C compiler for the faults")
    # Records of groups that fail are not left in /tmp.
    site.env["MESHRUN_FLIGHT_RECORD_DIR"] = str(site.directory)
    binary("//jobs/verify:verify")
    one = Site1(site)
    figures = [f"1 host: {right(one)}", faulty(one, "wrong-sum", [WRONG_SUM], env=damaging(one)),
               faulty(one, "wrong-alone", [WRONG_SUM, WRONG_ALONE], env=damaging_one(one))]
    try:
        two = Site2(site)
        figures.append(f"2 hosts: {right(two)}")
        with slow_link(two):
            figures.append(faulty(two, "faults", [LATE_CLOCK, SLOW_LINK, FULL_DISK], on_host_1=ahead(two),
                                  directory=small_disk(site, "disk", "8m")))
        if not skip_soak():
            figures += each_alone(one, two)
    except (NotPermitted, NotHere) as reason:
        return not_applicable(f"{'; '.join(figures)}; no more here: {reason}")
    if not skip_soak():
        figures += other_ways(site)
    return passed("; ".join(figures), left_out="each fault alone, by submit and mpirun" if skip_soak() else "")
