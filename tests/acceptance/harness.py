"""Runs an acceptance list item by item, and starts and ends the processes that its items need.

An item is a function decorated with @item(number, title). It returns passed(...), short(...), not_applicable(...) or
skipped(...); anything it raises counts as short, with the reason. Everything that an item started is killed when the
item ends.
"""

import argparse
import contextlib
import ctypes
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import typing
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
_ITEMS = {}
# So many items that wait run at once: two cores carry them without one disturbing the times of another.
AT_ONCE = 3
_PR_SET_PDEATHSIG = 1


class Item(typing.NamedTuple):
    title: str
    soak: bool
    tests: bool
    waits: bool
    run: typing.Callable


def item(number, title, soak=False, tests=False, waits=False):
    """Registers an item. soak: too long for tools/test, whose --skip-soak leaves it out. tests: all that it shows are tests which
    tools/test has run before the lists; --skip-soak names these items in one line, and neither runs nor counts them. waits: within
    tools/test it waits most of its time, measures no speed, and changes and looks at nothing but its own site, so --skip-soak runs
    it beside others of its kind, before the items that run alone. Items with a form for both ask skip_soak() and say with
    passed(..., left_out=...) what they did not do."""

    def register(function):
        _ITEMS[number] = Item(title, soak, tests, waits, function)
        return function

    return register


class Short(Exception):
    """A figure or behaviour that falls short of its target."""


# Under nohup, and in a script's background, these are ignored, and what is started would ignore them too. Handlers are for this
# process alone.
for _ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_ignored) == signal.SIG_IGN:
        signal.signal(_ignored, lambda *_: None)


def passed(figures, left_out=""):
    """left_out: what the soak run does beside."""
    return "pass", f"{figures}; in the soak run: {left_out}" if left_out and skip_soak() else figures


def short(figures, target):
    return "short", f"{figures} (target {target})"


def slow(figures, target):
    """Short by a matter of speed alone. tools/test, which runs on any machine beside anything, prints it and does not
    count it as a failure; the full run does."""
    return "slow", f"{figures} (target {target})"


def not_applicable(reason):
    return "n/a", reason


def skipped(reason):
    return "skip", reason


class NotHere(Exception):
    """What this machine cannot have: no GPU, no right to mount."""


def check(condition, what):
    if not condition:
        raise Short(what)


def leave_on_sigterm():
    """What a list or a script has started ends with it, also where tools/test is ended."""
    def leave(number, _):
        # A second one would cut short what ends the items.
        signal.signal(number, lambda *_: None)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def main(description):
    leave_on_sigterm()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", help="items to run whole, for example 3 or 3,7")
    parser.add_argument("--skip-soak", action="store_true",
                        help="leave out what belongs to the soak run, and items that are tests of Bazel alone")
    parser.add_argument("--list", action="store_true", help="print the items and stop")
    options = parser.parse_args()
    chosen = sorted(_ITEMS) if not options.only else [int(n) for n in options.only.split(",")]
    if options.list:
        for number in chosen:
            print(number, _ITEMS[number][0])
        return 0
    os.environ["MESHRUN_SKIP_SOAK"] = "1" if options.skip_soak and not options.only else ""
    for number in chosen:
        if number not in _ITEMS:
            parser.error(f"there is no item {number}; items are {', '.join(map(str, sorted(_ITEMS)))}")
    ran_before = [str(number) for number in chosen if _ITEMS[number].tests and skip_soak()]
    to_run = [number for number in chosen if str(number) not in ran_before]
    beside = [number for number in to_run if _ITEMS[number].waits and skip_soak()]
    counts = {"pass": 0, "short": 0, "n/a": 0, "skip": 0}
    for counted in [*_all_at_once(beside), *(_play(number) for number in to_run if number not in beside)]:
        counts[counted] += 1
    if ran_before:
        print(f"tests of Bazel's, which --only runs again: {', '.join(ran_before)}")
    # A skipped item was not run: it never counts as passed.
    print(f"{counts['pass']} passed, {counts['short']} failed, {counts['skip'] + counts['n/a']} skipped")
    return 1 if counts["short"] else 0


def _play(number):
    """Runs an item to its end, prints its line and returns how it counts."""
    title, soak, _, _, function = _ITEMS[number]
    if soak and skip_soak():
        _say(f"{number} skip {title}: part of the soak run")
        return "skip"
    started = time.monotonic()
    try:
        with contextlib.ExitStack() as cleanup:
            verdict, text = function(Site(cleanup))
    except Short as error:
        verdict, text = "short", str(error)
    except Exception as error:  # an output that nobody foresaw, or a cleanup that fails, must not end the list
        verdict, text = "short", f"{type(error).__name__}: {error}"
    counted = verdict
    if verdict == "slow":
        verdict, counted = "short", "skip" if skip_soak() else "short"
    text = " ".join(str(text).split())
    _say(f"{number} {verdict} {text} [{title}; {time.monotonic() - started:.1f} s]")
    return counted


def _say(line):
    """In one write, also where Python does not buffer: several processes have this pipe."""
    print(line + "\n", end="", flush=True)


def _end_with(parent, libc=ctypes.CDLL(None)):
    """This process gets SIGTERM when its parent ends, however that ends."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def _all_at_once(numbers):
    """Runs items at the same time, each in a process of its own. Returns how each counts."""
    fork = multiprocessing.get_context("fork")
    waiting, running, counted, own = list(numbers), {}, [], os.getpid()

    def play(number, tells):
        _end_with(own)
        tells.send(_play(number))

    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                number = waiting.pop(0)
                told, tells = fork.Pipe(duplex=False)
                process = fork.Process(target=play, args=(number, tells))
                process.start()
                tells.close()
                running[told] = number, process
            for told in multiprocessing.connection.wait(running):
                number, process = running.pop(told)
                try:
                    counted.append(told.recv())
                except EOFError:
                    _say(f"{number} short its process ended before it [{_ITEMS[number].title}]")
                    counted.append("short")
                process.join()
    finally:
        # Some are left where this process is ended.
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join(60)
            process.kill()
    return counted


def suites():
    """The commands of tests/acceptance/suites, in its order."""
    lines = (ROOT / "tests/acceptance/suites").read_text().splitlines()
    return [line.removeprefix("& ") for line in lines if line and not line.startswith("#")]


def skip_soak():
    return bool(os.environ.get("MESHRUN_SKIP_SOAK"))


def lenient(limit):
    """A limit of time; within tools/test, which runs beside anything, five times as long."""
    return 5 * limit if skip_soak() else limit


def bazel(*arguments, suffix=""):
    """A bazel command. suffix: with an output base of its own, the one that the scripts of tools/ use for it."""
    words = os.environ.get("MESHRUN_BAZEL", "bazel").split()
    if not suffix:
        return [*words, *arguments]
    script = 'source tools/common.sh; bazel_command=(echo "${bazel_command[@]}"); run_bazel "$1"'
    said = subprocess.run(["bash", "-c", script, "bash", suffix], cwd=ROOT, capture_output=True, text=True, check=True)
    return [*said.stdout.split(), *arguments]


def cuda_flags():
    """As tools/test builds, so that what it has just built is there already."""
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64/libcudart.so.13")
    return ["--config=cuda"] if toolkit.exists() else []


_BIN = None


def binary(label, *flags):
    """Path of a built target; builds it on first use, with these flags of Bazel too. "//client:meshrun" -> .../client/meshrun."""
    global _BIN
    package, name = label[2:].split(":")
    # tools/test has just built this tree: each call of Bazel takes half a second, and some seconds after one with other flags.
    if not flags and os.environ.get("MESHRUN_TEST_TREE") == str(ROOT):
        path = pathlib.Path(os.environ["MESHRUN_TEST_BIN"], package, name)
        if path.exists():
            return str(path)
    if _BIN is None:
        info = subprocess.run(bazel("info", *cuda_flags(), "bazel-bin"), cwd=ROOT, capture_output=True, text=True, check=True)
        _BIN = pathlib.Path(info.stdout.strip())
    path = _BIN / package / name
    if (label, flags) not in _BUILT:
        done = subprocess.run(bazel("build", "--noshow_progress", *cuda_flags(), *flags, label), cwd=ROOT, text=True, errors="replace",
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        check(done.returncode == 0, f"{label} does not build: {' | '.join(done.stderr.splitlines()[-8:])}")
        _BUILT.add((label, flags))
    return str(path)


_BUILT = set()


def meshrun():
    binary("//coordinator:meshrun-coordinator")
    binary("//worker:meshrun-worker")
    return binary("//client:meshrun")


def make_certificates(directory, *hosts, workers=()):
    """By `meshrun ca`: an authority in directory/ca, and below directory coordinator/ (for these hosts, beside this one), worker/
    (for every node; with --http of these hosts) and client/ (with the role operate), each with tls.crt, tls.key and ca.crt."""
    def at(names):
        return [word for name in names for word in ("--host", name)]
    calls = [["init"], ["issue", "--role", "coordinator", *at(hosts)], ["issue", "--role", "worker", "--node", "*", *at(workers)],
             ["issue", "--role", "operate"]]
    for name, call in zip((None, "coordinator", "worker", "client"), calls):
        out = ["--out", directory / name] if name else []
        done = subprocess.run([binary("//client:meshrun"), "ca", *call, "--ca", directory / "ca", *out], capture_output=True, text=True)
        check(done.returncode == 0, f"meshrun ca {' '.join(call)}: {done.stderr}")


def get(url, files, shows=True):
    """(status, body) of an HTTPS server, asked with the certificate of this directory, unless it is not shown. Status 0: no connection,
    or none over TLS."""
    context = ssl.create_default_context(cafile=files / "ca.crt")
    if shows:
        context.load_cert_chain(files / "tls.crt", files / "tls.key")
    try:
        with urllib.request.urlopen(url, context=context, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


# Variables of the caller's that change what programs do or write: whose cluster, rank or allocation they are in, the width and the
# colours of a terminal, writes in smaller pieces.
FOREIGN = re.compile("MESHRUN_(COORDINATOR|RDZV_SECRET|TLS_.*)|RANK|WORLD_SIZE|MASTER_.*|LOCAL_.*|GROUP_.*|ROLE_.*|TORCHELASTIC_.*|SLURM_.*|"
                     "OMPI_.*|PMI.*|XDG_RUNTIME_DIR|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|PYTHONUNBUFFERED")
# A longer path leaves no room for those of Unix sockets, which end at 107 bytes.
LONGEST_PARENT = 40


class Site:
    """A scratch directory and the processes of one item."""

    def __init__(self, cleanup):
        self.cleanup = cleanup
        parent = tempfile.gettempdir()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="mrt-", dir=parent if len(parent) <= LONGEST_PARENT else "/tmp"))
        cleanup.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.env = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
        self.env["XDG_STATE_HOME"] = str(self.directory / "state")

    def script(self, name, text, mode=0o755):
        path = self.directory / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def run(self, command, timeout=60, env=None):
        """Runs to its end. Returns (exit code, stdout, stderr, seconds)."""
        started = time.monotonic()
        done = subprocess.run([str(c) for c in command], cwd=self.directory, env=dict(self.env, **(env or {})),
                              capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr, time.monotonic() - started

    def start(self, command, env=None, **options):
        """Starts in the background, in a session of its own; killed with the item. env: beside the site's own."""
        process = subprocess.Popen([str(c) for c in command], cwd=self.directory, env=dict(self.env, **(env or {})), text=True,
                                   stdin=subprocess.DEVNULL, start_new_session=True, **options)

        def end():
            if process.poll() is None:
                process.kill()
            process.wait()

        self.cleanup.callback(end)
        return process

    def daemon(self, command, env=None):
        """Starts a daemon and returns (process, what it said on its --ready-fd)."""
        read_end, write_end = os.pipe()
        with open(self.directory / "daemons.log", "a") as log:
            process = self.start([*command, "--ready-fd", write_end], env, pass_fds=[write_end], stderr=log)
        os.close(write_end)
        with os.fdopen(read_end) as ready:
            line = ready.readline()
        check(line, f"{pathlib.Path(command[0]).name} did not start; its log ends: {self.log_tail()}")
        return process, json.loads(line)

    def log_tail(self):
        log = self.directory / "daemons.log"
        return " | ".join(log.read_text().splitlines()[-3:]) if log.exists() else ""

    def coordinator(self, listen=None, state="coordinator"):
        listen = listen or f"unix:{self.directory}/{state}.sock"
        process, ready = self.daemon([binary("//coordinator:meshrun-coordinator"), "--listen", listen,
                                      "--state-dir", self.directory / state])
        self.env["MESHRUN_COORDINATOR"] = ready["address"]
        return process, ready["address"]

    def worker(self, name, *flags):
        process, _ = self.daemon([binary("//worker:meshrun-worker"), "--coordinator",
                                  self.env["MESHRUN_COORDINATOR"], "--state-dir", self.directory / name,
                                  "--name", name, *flags])
        return process

    def cluster(self, workers=2):
        """A coordinator and workers n1, n2, ...; returns their processes."""
        coordinator, _ = self.coordinator()
        return coordinator, [self.worker(f"n{i + 1}") for i in range(workers)]


def wait_until(condition, seconds, what):
    """Polls a condition of other processes; returns how long it took. A function as `what` tells of the end of the wait."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started >= seconds:
            raise Short(f"not within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(0.01)
    return time.monotonic() - started


def running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def alive(pattern):
    """Processes, other than this one, whose command line holds the pattern."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if pattern in command and state != "Z":
                    found.append(f"{entry.name} {command.strip()}")
    return found


def pid_of(entry):
    """The process of a line of alive()."""
    return int(entry.split()[0])


def interrupt(process, number=signal.SIGINT):
    os.kill(process.pid, number)


if __name__ == "__main__":
    sys.exit("this is the acceptance lists' library; run tests/acceptance/first_run")
