"""Item 5: what bars of several ranks leave in a file, a pipe and on a terminal after 5 s; and the report of a hang, which names
rank, function and line within 5 s of the limit: a Python rank in a lock, one in a collective, a C++ rank built with -g1."""

import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from harness import ROOT, check, lenient, meshrun, passed, wait_until
from terminal_and_scripts_items.terminal import Terminal

sys.path.append(str(ROOT / "tests/soak"))
from environments import TORCH, Missing, environment, packages

BARS = pathlib.Path(__file__).with_name("bars-requirements.txt")
SECONDS = 8
# A person waits for the first line of a bar no longer than this after it was drawn.
FIRST = 6.5
# From a rank's last step to the limit, and from there to the report.
LIMIT = 2
REPORT = 5

# Each draws ten times a second for SECONDS: as tqdm does, as Lightning's bar does (to stdout, with the epoch in front), and rich where a
# user makes it draw.
PROGRAMS = {
    "tqdm": """
import sys, time
from tqdm import tqdm
for _ in tqdm(range(SECONDS * 10), ncols=60):
    time.sleep(0.1)
""",
    "lightning": """
import sys, time
from tqdm import tqdm
for epoch in range(1):
    bar = tqdm(total=SECONDS * 10, desc=f"Epoch {epoch}", file=sys.stdout, ncols=70, leave=True, smoothing=0,
               bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]")
    for step in range(SECONDS * 10):
        time.sleep(0.1)
        bar.set_postfix(loss=f"{1 / (step + 1):.3f}")
        bar.update()
    bar.close()
""",
    "rich": """
import sys, time
from rich.console import Console
from rich.progress import Progress
with Progress(console=Console(force_terminal=True, width=60)) as progress:
    task = progress.add_task("train", total=SECONDS * 10)
    for _ in range(SECONDS * 10):
        time.sleep(0.1)
        progress.advance(task)
""",
}

LOCK = """
import threading, time
import meshrun

def stand_still(lock):
    lock.acquire()  # here it stands

rank = int(__import__("os").environ["RANK"])
for step in range(4):
    meshrun.report(step=step)
    time.sleep(0.1)
lock = threading.Lock()
lock.acquire()
if rank == 1:
    stand_still(lock)
time.sleep(600)
"""
COLLECTIVE = """
import os, time
import torch, torch.distributed as dist
import meshrun

def sum_of_all(value):
    dist.all_reduce(value)  # here it stands

dist.init_process_group("gloo")
for step in range(4):
    meshrun.report(step=step)
    time.sleep(0.1)
if dist.get_rank() == 1:
    sum_of_all(torch.ones(4))
time.sleep(600)
"""
# Reports as a program without meshrun's libraries does.
NATIVE = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace solver {
std::mutex field;
__attribute__((noinline)) void stand_still() {
  field.lock();
  field.lock();  // here it stands
  field.unlock();
}
}  // namespace solver

int main(int argc, char**) {
  if (argc > 1) prctl(PR_SET_DUMPABLE, 0);
  const int reports = socket(AF_UNIX, SOCK_DGRAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, std::getenv("MESHRUN_REPORT"), sizeof(address.sun_path) - 1);
  for (int step = 0; step < 4; ++step) {
    char text[32];
    const int size = std::snprintf(text, sizeof(text), "{\\"step\\": %d}", step);
    sendto(reports, text, size, 0, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    usleep(100000);
  }
  if (std::atoi(std::getenv("RANK")) == 1) solver::stand_still();
  sleep(600);
}
"""
MARK = "here it stands"


def line_of(text):
    return next(number for number, line in enumerate(text.splitlines(), 1) if MARK in line)


def own_package(site):
    """The directory of the Python package as the tree has it, for PYTHONPATH."""
    place = site.directory / "packages"
    if not place.exists():
        shutil.copytree(ROOT / "python/meshrun", place / "meshrun")
        (place / "meshrun/_version.py").write_text('__version__ = "0"\n')
    return place


class Bars:
    """One program on two ranks, with its output in a file or a pipe, looked at while it runs."""

    def __init__(self, site, name, into):
        self.name, self.into, self.path = name, into, site.directory / f"{name}.{into}"
        script = site.script(f"draw_{name}.py", PROGRAMS[name].replace("SECONDS", str(SECONDS)))
        command = [meshrun(), "run", "--nproc", "2", "--log-dir", site.directory / f"logs-{name}-{into}", "--", sys.executable, script]
        if into == "pipe":
            # It is looked at from now on, and the shell may be slower.
            self.path.touch()
            command = ["sh", "-c", " ".join(f"'{word}'" for word in command) + f" 2>&1 | cat > '{self.path}'"]
            self.process = site.start(command)
        else:
            self.process = site.start(command, stdout=open(self.path, "w"), stderr=subprocess.STDOUT)
        # By rank: when its bar was drawn first, and when the file or the pipe had it. And when all had ended.
        self.drawn, self.first, self.ended = {}, {}, None

    def lines(self):
        """By rank, what a person reads: without colours and our own lines."""
        found = collections.defaultdict(list)
        for line in self.path.read_bytes().decode(errors="replace").split("\n"):
            rank, _, text = line.partition(": ")
            if rank in ("0", "1"):
                found[int(rank)].append(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))
        return found

    def logs(self, rank):
        return self.path.parent.glob(f"logs-{self.name}-{self.into}/*/attempt_0/{rank}/std*.log")

    def look(self, now):
        if self.ended is None and self.process.poll() is not None:
            self.ended = now
        for rank in {0, 1} - self.drawn.keys():
            if any(path.stat().st_size for path in self.logs(rank)):
                self.drawn[rank] = now
        for rank, lines in self.lines().items():
            if any(re.search(r"\d%", line) for line in lines):
                self.first.setdefault(rank, now - self.drawn.get(rank, now))

    def verdict(self):
        check(self.process.wait(60) == 0, f"{self.name} into a {self.into} ended with {self.process.returncode}: {self.path.read_text()[-300:]}")
        late = {rank: self.first.get(rank) for rank in (0, 1) if self.first.get(rank, float("inf")) > lenient(FIRST)}
        check(not late, f"{self.name} into a {self.into}: the first lines of ranks came after {late} s")
        for rank, lines in self.lines().items():
            bars = [line for line in lines if "%" in line]
            # It draws for longer than SECONDS where other programs have the processors.
            lasted = max(SECONDS, (self.ended or SECONDS) - self.drawn.get(rank, 0))
            check(2 <= len(bars) <= 1 + lasted // 5 + 1, f"{self.name} into a {self.into}: rank {rank} has {len(bars)} lines of its bar: {bars}")
            check("100%" in bars[-1] and not any("100%" in line for line in bars[:-1]), f"{self.name}: the bar of rank {rank} ends as {bars}")
            check(not any("\r" in line for line in bars), f"{self.name}: a line still redraws itself: {bars}")
        for rank in (0, 1):
            kept = b"".join(path.read_bytes() for path in self.logs(rank))
            check(kept.count(b"\r") > 20, f"{self.name}: --log-dir does not hold what rank {rank} wrote: {len(kept)} bytes")


def bars(site):
    try:
        site.env["PYTHONPATH"] = str(packages(BARS))
    except Missing as missing:
        return f"bars not drawn: {missing}"
    began = time.monotonic()
    runs = [Bars(site, name, into) for name in PROGRAMS for into in ("file", "pipe")]
    terminal = Terminal(site, [meshrun(), "run", "--nproc", "2", "--", sys.executable, site.directory / "draw_tqdm.py"], columns=100)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        on_terminal = pool.submit(terminal.finish)
        while any(each.process.poll() is None for each in runs):
            for each in runs:
                each.look(time.monotonic() - began)
            time.sleep(0.1)
        check(on_terminal.result() == 0, terminal.text()[-300:])
    for each in runs:
        each.verdict()
    states = {line for _, state in terminal.states for line in state if "%|" in line}
    check(len(states) >= 20, f"on a terminal the bars have {len(states)} states")
    first = max(max(each.first.values()) for each in runs)
    return f"{len(runs)} bars of 2 ranks in files and pipes, first lines after {first:.1f} s at most, {len(states)} states on a terminal"


TTY = """
import os, shutil, sys, time
for stream in (sys.stdout, sys.stderr):
    size = os.get_terminal_size(stream.fileno())
    print(stream.isatty(), size.columns, size.lines, shutil.get_terminal_size().columns, file=stream)
os.write(1, bytes(range(256)) * 50)
"""


def terminals(site):
    """--tty: a rank has a terminal of the caller's size, and its bytes arrive as they are."""
    script = site.script("tty.py", TTY)
    command = [meshrun(), "run", "--tty", "--stdin", "none", "--", sys.executable, script]
    done = subprocess.run([str(word) for word in command], cwd=site.directory, env=site.env, stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=60)
    check(done.returncode == 0, done.stderr.decode(errors="replace"))
    check(done.stdout == b"True 80 24 80\n" + bytes(range(256)) * 50, f"stdout with --tty: {done.stdout[:100]!r}, {len(done.stdout)} bytes")
    check(done.stderr.startswith(b"True 80 24 80\n"), f"stderr with --tty: {done.stderr[:100]!r}")
    shown = Terminal(site, [meshrun(), "run", "--tty", "--nproc", "2", "--", "sh", "-c", "stty size <&2"], columns=100, rows=30)
    check(shown.finish() == 0 and "30 95" in shown.text(), f"two ranks on a terminal of 100 x 30 see {shown.text()!r}")
    return "--tty: isatty, 80x24 and 95x30, 12800 bytes unchanged"


def hang(site, name, command, function, where, env=None):
    """A job whose rank 1 stands still after step 3. Returns how long after its limit the report was there."""
    logs = site.directory / f"hang-{name}"
    log = site.directory / f"hang-{name}.err"
    with open(log, "w") as stderr:
        process = site.start([meshrun(), "run", "--nproc", "2", "--log-dir", logs, "--hang-timeout", f"{LIMIT}s", "--", *command], env,
                             stdout=subprocess.DEVNULL, stderr=stderr)
    named = f"rank 1 is in {function} ({where})"
    wait_until(lambda: " hangs: no step after step 3" in log.read_text() or process.poll() is not None, 60, f"{name}: the hang is told")
    at = time.monotonic()
    wait_until(lambda: named in log.read_text() or process.poll() is not None, 30,
               lambda: f"{name}: the place of rank 1 is told: {log.read_text()[-400:]}")
    took = time.monotonic() - at
    check(named in log.read_text(), f"{name}: '{named}' is not in: {log.read_text()[-600:]}")
    check(took <= lenient(REPORT), f"{name}: the place was told {took:.1f} s after the limit")
    [dump] = logs.glob("*/attempt_0/1/dump.txt")
    text = dump.read_text()
    check(function in text and where.rsplit(":", 1)[0] in text, f"{name}: {dump.name} does not name the function: {text[:600]}")
    check(process.wait(40) == 1, f"{name}: ended with {process.returncode}")
    verdict = log.read_text()
    check(re.search(rf"failed after .*{re.escape(named)}", verdict), f"{name}: the verdict does not say where rank 1 stood: {verdict[-600:]}")
    return f"{name} {took:.1f} s"


def ask_run(site, native):
    """stack of a job of `run`, which nothing names but the start of its id."""
    alone = {"MESHRUN_COORDINATOR": ""}
    process = site.start([meshrun(), "run", "--name", "standing", "--nproc", "2", "--", native], alone, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)

    def shown():
        code, out, _, _ = site.run([meshrun(), "stack", "standing", "--ranks", "1"], env=alone)
        return code == 0 and "stand_still" in out

    wait_until(shown, 30, "stack shows the ranks of a run")
    process.terminate()
    check(process.wait(timeout=20) == 143, f"the run whose stacks were shown ended with {process.returncode}")


def ask(site, native):
    """stack and why of a job on a cluster, and a rank that the worker may not trace."""
    ask_run(site, native)
    site.coordinator()
    # Root without this capability may trace its own processes, but not those that forbid it.
    limited = shutil.which("setpriv") and os.geteuid() == 0
    worker = site.script("worker", "#!/bin/sh\nexec " + ("setpriv --bounding-set=-sys_ptrace " if limited else "")
                         + f"'{_worker()}' \"$@\"\n")
    site.daemon([worker, "--coordinator", site.env["MESHRUN_COORDINATOR"], "--state-dir", site.directory / "n1", "--name", "n1"])

    def submit(*words):
        code, out, err, _ = site.run([meshrun(), "submit", "--nproc", "2", "--hang-timeout", f"{LIMIT}s", "--", *words])
        check(code == 0, err)
        return out.strip()

    def call(*words):
        code, out, err, _ = site.run([meshrun(), *words])
        check(code == 0, err)
        return out

    job = submit(native)
    place = f"rank 1 is in solver::stand_still (native.cc:{line_of(NATIVE)})"
    wait_until(lambda: place in call("why", job), 30, lambda: f"why names the place: {call('why', job)}")
    stacks = call("stack", job, "--ranks", "1")
    check(("stand_still" in stacks or "has ended" in stacks) and "rank 0" not in stacks, f"stack --ranks 1 shows {stacks[:400]}")
    if not limited:
        return "stack and why name the place; a refusal of the kernel not seen: this takes root and setpriv"
    refused = submit(native, "undumpable")
    sentence = re.compile("where rank 0 stands is not known: .*(SYS_PTRACE|ptrace_scope)")
    wait_until(lambda: sentence.search(call("why", refused)), 30, lambda: f"a refusal has a sentence: {call('why', refused)}")
    return "stack and why name the place, or what to do where the kernel refuses"


def _worker():
    from harness import binary
    return binary("//worker:meshrun-worker")


def hangs(site):
    place = own_package(site)
    lock = site.script("lock.py", LOCK)
    source = site.script("native.cc", NATIVE)
    native = site.directory / "native"
    built = subprocess.run(["g++", "-g1", "-O1", "-fno-inline", "-o", native, source], capture_output=True, text=True)
    check(built.returncode == 0, built.stderr)
    python = {"PYTHONPATH": str(place)}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        todo = [pool.submit(hang, site, "a lock", [sys.executable, lock], "stand_still", f"lock.py:{line_of(LOCK)}", python)]
        missing = ""
        if shutil.which("gdb") or shutil.which("eu-stack"):
            todo.append(pool.submit(hang, site, "C++", [native], "solver::stand_still", f"native.cc:{line_of(NATIVE)}"))
            todo.append(pool.submit(ask, site, native))
        else:
            missing += ", neither gdb nor eu-stack"
        try:
            collective = site.script("collective.py", COLLECTIVE)
            torch = environment(TORCH, install=False) / "python"
            todo.append(pool.submit(hang, site, "a collective", [torch, collective], "sum_of_all", f"collective.py:{line_of(COLLECTIVE)}",
                                    python))
        except Missing as reason:
            missing += f", no collective: {reason}"
        told = [each.result() for each in todo]
    return f"rank, function and line after the limit: {'; '.join(told)}{missing}"


def run(site):
    drawn = bars(site)
    return passed(f"{drawn}; {terminals(site)}; {hangs(site)}")
