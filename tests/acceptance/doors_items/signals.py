"""Item 1: what a shell and its user mean by signals, on a pseudo-terminal and without one."""

import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import time

from terminal_and_scripts_items.terminal import Terminal
from harness import check, lenient, meshrun, passed, running, wait_until

# Writes which signals it got; ends as the first argument says: "python" by KeyboardInterrupt, else after so many signals.
RANK = """
import os, pathlib, signal, sys, time
kind, seconds = sys.argv[1], float(sys.argv[2])
rank, job = os.environ["RANK"], pathlib.Path(sys.argv[3])
def note(text):
    with open(job / f"{rank}.notes", "a") as file:
        file.write(text + "\\n")
def on_signal(number, frame):
    note(signal.Signals(number).name)
    if kind == "handles":
        sys.exit(7)
if kind != "python":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, on_signal)
(job / f"{rank}.pid").write_text(str(os.getpid()))
try:
    (job / f"{rank}.ready").touch()
    end = seconds
    while end > 0:
        time.sleep(0.05)
        end -= 0.05
    note("done")
except KeyboardInterrupt:
    note("KeyboardInterrupt")
    raise
finally:
    note("finally")
"""


# The job that Ctrl-Z stops: it stands for longer than its time limit, and has that for its 2 s of work.
STOPPED_S, LIMIT_S = 16, 15


class Job:
    """One call of `meshrun run` with two ranks of RANK, and what they note."""

    def __init__(self, site, name, kind, seconds, *flags):
        self.site, self.directory = site, site.directory / name
        self.directory.mkdir()
        self.command = [meshrun(), "run", "--nproc", "2", *flags, sys.executable, site.directory / "rank.py", kind, str(seconds),
                        str(self.directory)]

    def start(self, *before, **streams):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **streams}
        self.process = subprocess.Popen([*before, *self.command], cwd=self.site.directory, env=self.site.env, text=True,
                                        stdin=subprocess.DEVNULL, **streams)
        self.site.cleanup.callback(self.end)
        self.wait_ready()
        return self

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def wait_ready(self):
        wait(lambda: all((self.directory / f"{rank}.ready").exists() for rank in (0, 1)), f"{self.directory.name}: two ranks run")

    def finish(self):
        """Exit code, and what was shown."""
        text, _ = self.process.communicate(timeout=60)
        return self.process.returncode, text

    def notes(self):
        return [(self.directory / f"{rank}.notes").read_text().split() if (self.directory / f"{rank}.notes").exists() else []
                for rank in (0, 1)]

    def pids(self):
        return [int((self.directory / f"{rank}.pid").read_text()) for rank in (0, 1)]

    def states(self):
        """Of the rank processes, as /proc has them: T where stopped."""
        return "".join(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in self.pids())


def wait(condition, what):
    wait_until(condition, 30, what)


def ignored_signals(site):
    """A signal that was ignored when `run` started does nothing to it."""
    job = Job(site, "nohup", "python", 2).start("nohup")
    job.process.send_signal(signal.SIGHUP)
    code, text = job.finish()
    check(code == 0 and job.notes() == [["done", "finally"]] * 2, f"under nohup SIGHUP ends the job: {code} {text}")
    job = Job(site, "no-nohup", "python", 60).start()
    job.process.send_signal(signal.SIGHUP)
    code, text = job.finish()
    check(code == 129 and job.notes() == [[], []], f"SIGHUP without nohup: {code} {job.notes()} {text}")

    job = Job(site, "background", "python", 2)
    words = " ".join(map(str, job.command))
    job.process = subprocess.Popen(["sh", "-c", f"{words} & echo $! > shell.pid; wait $!"], cwd=site.directory, env=site.env, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    site.cleanup.callback(job.end)
    job.wait_ready()
    os.kill(int((site.directory / "shell.pid").read_text()), signal.SIGINT)
    code, text = job.finish()
    check(code == 0, f"Ctrl-C reaches what a script runs in the background: {code} {text}")

    job = Job(site, "setsid", "python", 1).start("setsid", "--wait")
    code, text = job.finish()
    check(code == 0 and job.notes() == [["done", "finally"]] * 2, f"setsid: {code} {text}")

    job = Job(site, "disown", "python", 3)
    terminal = Terminal(site, ["bash", "--norc", "-i"])
    terminal.type(f"{' '.join(map(str, job.command))} > disowned.txt 2>&1 & disown; echo read''y\n")
    terminal.wait_for("ready")
    job.wait_ready()
    terminal.type("exit\n")
    terminal.finish()
    wait(lambda: job.notes() == [["done", "finally"]] * 2, "a disowned job goes on without its terminal")


def ctrl_c(site):
    job = Job(site, "ctrl-c", "python", 60, "--kill-grace", "30s")
    terminal = Terminal(site, job.command, columns=300)
    job.wait_ready()
    began = time.monotonic()
    terminal.type("\x03")
    code = terminal.finish()
    check(code == 130, f"Ctrl-C: exit code {code}: {terminal.text()[-600:]}")
    check(job.notes() == [["KeyboardInterrupt", "finally"]] * 2, f"Ctrl-C: the ranks noted {job.notes()}")
    seconds = time.monotonic() - began
    check(seconds < lenient(2), f"Ctrl-C took {seconds:.1f} s")

    # What does not end by SIGINT gets SIGTERM after a third of the grace, and SIGKILL at its end.
    job = Job(site, "patient", "notes", 60, "--kill-grace", "3s").start()
    began = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    wait(lambda: all("SIGTERM" in notes for notes in job.notes()), "SIGTERM follows SIGINT")
    term = time.monotonic() - began
    code, text = job.finish()
    killed = time.monotonic() - began
    check(job.notes() == [["SIGINT", "SIGTERM"]] * 2 and code == 130, f"{code} {job.notes()} {text}")
    in_time = 0.9 < term < lenient(2.5) and 2.8 < killed < lenient(6)
    check(in_time, f"of a grace of 3 s: SIGTERM after {term:.1f} s, the end after {killed:.1f} s")

    job = Job(site, "twice", "notes", 60, "--kill-grace", "60s").start()
    job.process.send_signal(signal.SIGINT)
    wait(lambda: all(notes == ["SIGINT"] for notes in job.notes()), "SIGINT reaches both ranks")
    began = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    code, text = job.finish()
    check(code == 130 and time.monotonic() - began < lenient(5), f"Ctrl-C twice: {code} {text}")
    return seconds, term


def ctrl_z(site):
    job = Job(site, "ctrl-z", "python", 2, "--time-limit", f"{LIMIT_S}s")
    terminal = Terminal(site, ["bash", "--norc", "-i"], columns=400)
    terminal.type(f"{' '.join(map(str, job.command))}\n")
    job.wait_ready()
    terminal.type("\x1a")
    wait(lambda: job.states() == "TT", "Ctrl-Z stops the ranks")
    terminal.wait_for("fg continues them")
    terminal.wait_for("Stopped")
    time.sleep(STOPPED_S)
    check(job.states() == "TT", f"the ranks run while their job is stopped: {job.states()}")
    terminal.type("fg; echo code $?.\n")
    terminal.wait_for("code 0.", seconds=30)
    check(job.notes() == [["done", "finally"]] * 2, f"after fg the ranks noted {job.notes()}: {terminal.text()[-800:]}")

    # Killed while stopped: nothing stays.
    job = Job(site, "stopped", "python", 60)
    terminal.type(f"{' '.join(map(str, job.command))}\n")
    job.wait_ready()
    terminal.type("\x1a")
    wait(lambda: job.states() == "TT", "Ctrl-Z stops the ranks")
    terminal.type("kill %1; fg\n")
    wait(lambda: not any(map(running, job.pids())), "kill %1 ends what Ctrl-Z has stopped")
    terminal.type("exit\n")
    terminal.finish()


def other_ways(site):
    """cancel, a time limit and the peers of a failed rank: SIGTERM first."""
    site.run([meshrun(), "dev", "up"])
    site.cleanup.callback(lambda: site.run([meshrun(), "dev", "down", "--purge"]))
    job = Job(site, "cancel", "handles", 60)
    submit = [meshrun(), "submit", *job.command[2:]]
    code, name, text, _ = site.run(submit)
    check(code == 0, f"submit: {code} {text}")
    job.wait_ready()
    site.run([meshrun(), "cancel", "--wait", name.strip()])
    check(job.notes() == [["SIGTERM", "finally"]] * 2, f"cancel: the ranks noted {job.notes()}")

    job = Job(site, "follow", "python", 60)
    job.command[1:2] = ["submit", "--follow"]
    job.start()
    job.process.send_signal(signal.SIGINT)
    code, text = job.finish()
    check(code == 130 and job.notes() == [["KeyboardInterrupt", "finally"]] * 2, f"Ctrl-C on submit --follow: {code} {job.notes()} {text}")

    job = Job(site, "handled", "handles", 60, "--signals-to-handle", "SIGTERM,SIGUSR1").start()
    job.process.send_signal(signal.SIGUSR1)
    code, text = job.finish()
    check(code == 128 + signal.SIGUSR1 and job.notes() == [["SIGUSR1", "finally"]] * 2,
          f"--signals-to-handle SIGUSR1: {code} {job.notes()} {text}")
    job = Job(site, "unhandled", "python", 60, "--signals-to-handle", "SIGTERM").start()
    job.process.send_signal(signal.SIGINT)
    code, text = job.finish()
    check(code == -signal.SIGINT, f"SIGINT that --signals-to-handle does not name: {code} {text}")
    wait(lambda: not any(map(running, job.pids())), "the ranks end with run")


def run(site):
    site.script("rank.py", RANK)
    meshrun()
    # Each of them waits most of its time.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        parts = [pool.submit(part, site) for part in (ctrl_z, ctrl_c, ignored_signals, other_ways)]
        seconds, term = [part.result() for part in parts][1]
    return passed(f"nohup, disown, setsid and a script's background keep the job; KeyboardInterrupt and finally on both ranks, "
                  f"{seconds:.1f} s after Ctrl-C; SIGTERM {term:.1f} s later of a grace of 3 s; Ctrl-Z for {STOPPED_S} s of a time limit of "
                  f"{LIMIT_S} s, fg; kill %1; cancel is SIGTERM first")
