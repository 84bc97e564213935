"""Item 5: what a first build costs, how long tools/test takes, and that both are seen to move.

By default only the progress lines are checked, with one action and one suite that say nothing for 34 s. The soak run measures the
builds from empty caches (tests/bench/build/build_cost) and calls tools/test twice in a clone."""

import concurrent.futures
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import time

from harness import ROOT, check, lenient, passed, short, skip_soak

TERMINAL_SECONDS = 10
PIPED_SECONDS = 30
COLD_MINUTES = 42
WARM_MINUTES = 12
QUIET_SECONDS = 34


def slowly_built(directory, script):
    """A workspace whose one action takes QUIET_SECONDS, and the script that builds it as tools/ does."""
    tree = directory / "slow"
    (tree / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools/common.sh", tree / "tools")
    (tree / "WORKSPACE").write_text("")
    (tree / "BUILD.bazel").write_text(
        f'genrule(name = "slow", outs = ["slow.txt"], cmd = "sleep {QUIET_SECONDS}; echo done >$@")\n')
    (tree / "tools/call").write_text(f"set -euo pipefail\nsource {tree}/tools/common.sh\n{script}\n")
    return ["bash", str(tree / "tools/call")]


def longest_pause(command, env, terminal):
    """(seconds between two changes of what is shown, lines or redraws, exit code) of a command."""
    if terminal:
        ours, its = pty.openpty()
    else:
        ours, its = os.pipe()
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    pause, last, shown, before = 0.0, time.monotonic(), 0, ""
    while True:
        readable, _, _ = select.select([ours], [], [], 1)
        now = time.monotonic()
        pause = max(pause, now - last)
        if not readable:
            continue
        try:
            text = os.read(ours, 65536).decode(errors="replace")
        except OSError:  # a terminal that nobody holds any more
            break
        if not text:
            break
        # A move of the cursor alone is not a change.
        said = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).strip()
        if said and said != before:
            last, before, shown = now, said, shown + 1
    os.close(ours)
    return pause, shown, process.wait(timeout=60)


def progress(context):
    """How long a terminal and a pipe stay unchanged, for Bazel and for a suite that says nothing. All four at once: they
    sleep nearly all of the time."""
    scripts = {"bazel": 'visible_bazel "" build "${progress[@]}" //:slow', "suite": f"(sleep {QUIET_SECONDS}; echo end) | heartbeat suite"}
    watched = [Watched(context, name, script, terminal) for name, script in scripts.items() for terminal in (True, False)]
    try:
        with concurrent.futures.ThreadPoolExecutor(len(watched)) as pool:
            return "; ".join(pool.map(Watched.look, watched))
    finally:
        for one in watched:
            one.end()


class Watched:
    """A command of tools/, slow and silent, on a terminal or a pipe."""

    def __init__(self, context, name, script, terminal):
        self.name, self.terminal = name, terminal
        self.directory = context.directory / f"{name}-{terminal}"
        self.command = slowly_built(self.directory, script)
        # An output base of its own: another one's result would be taken.
        self.bazel = f"bazel --output_base={self.directory}/output --max_idle_secs=60"
        self.env = dict(context.env, MESHRUN_BAZEL=self.bazel, TERM="xterm")
        # Starting Bazel's server is not what is looked at.
        if name == "bazel":
            self.call_bazel("info")

    def call_bazel(self, command):
        subprocess.run([*self.bazel.split(), command], cwd=self.directory / "slow", env=self.env, capture_output=True)

    def look(self):
        limit = lenient(TERMINAL_SECONDS) if self.terminal else PIPED_SECONDS
        what = f"{self.name} on a {'terminal' if self.terminal else 'pipe'}"
        started = time.monotonic()
        pause, shown, code = longest_pause(self.command, self.env, self.terminal)
        seconds = time.monotonic() - started
        check(code == 0, f"{what} exited {code}")
        check(seconds >= QUIET_SECONDS, f"{what} took only {seconds:.0f} s")
        check(pause <= limit, f"{what}: unchanged for {pause:.0f} s, {shown} changes (target {limit} s)")
        return f"{what}: at most {pause:.0f} of {seconds:.0f} s unchanged"

    def end(self):
        if self.name == "bazel":
            self.call_bazel("shutdown")
        subprocess.run(["chmod", "-R", "u+w", self.directory], capture_output=True)


def builds():
    """(within their bounds, figures) of builds from empty caches."""
    done = subprocess.run([ROOT / "tests/bench/build/build_cost"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    check(done.stdout, f"build_cost exited {done.returncode}: {done.stderr[-300:]}")
    return done.returncode == 0, "; ".join(done.stdout.splitlines())


def tools_test(context):
    """(within their bounds, figures) of tools/test in a clone, cold and warm."""
    tree = context.directory / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, tree], check=True)
    # Not a file of tools/setup's: it stays.
    (tree / "user.bazelrc").write_text(f"build --disk_cache={context.directory}/disk-cache\n")
    env = dict(os.environ, MESHRUN_BAZEL=f"bazel --output_base={context.directory}/clone-output")
    within, figures = True, []
    try:
        for name, limit in (("cold", COLD_MINUTES), ("warm", WARM_MINUTES)):
            started = time.monotonic()
            done = subprocess.run(["tools/test"], cwd=tree, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            minutes = (time.monotonic() - started) / 60
            check(done.returncode == 0, f"tools/test {name} exited {done.returncode}: {done.stdout[-300:]}")
            within = within and minutes <= limit
            figures.append(f"tools/test {name}: {minutes:.1f} min (target {limit})")
    finally:
        subprocess.run([*env["MESHRUN_BAZEL"].split(), "shutdown"], cwd=tree, capture_output=True)
        subprocess.run(["chmod", "-R", "u+w", context.directory], capture_output=True)
    return within, "; ".join(figures)


def run(context):
    """context: the item's Site. Returns (verdict, figures)."""
    figures = [progress(context)]
    if skip_soak() or os.environ.get("MESHRUN_TOOLS_TEST"):
        return passed(figures[0], left_out="the builds from empty caches, and tools/test cold and warm")
    in_time, text = builds()
    figures.append(text)
    tested, text = tools_test(context)
    figures.append(text)
    figures = "; ".join(figures)
    return passed(figures) if in_time and tested else short(figures, "the bounds named")
