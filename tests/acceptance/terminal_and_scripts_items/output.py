"""Item 1: on a pseudo-terminal a bar of 5 s changes on the screen and ends as under plain python, on 1 and 3 ranks; bytes in a pipe
are those that the rank wrote; tee'd files hold each rank's lines whole."""

import concurrent.futures
import re
import subprocess
import sys

from terminal_and_scripts_items.terminal import Terminal
from harness import check, meshrun, passed

# As tqdm draws where nobody tells it a width: a carriage return, the bar, blanks over what was longer.
BAR = """
import os, shutil, sys, time
width = shutil.get_terminal_size((80, 24)).columns
try:
    from tqdm import tqdm
except ImportError:
    def tqdm(values):
        values = list(values)
        began = time.monotonic()
        for i in range(len(values) + 1):
            tail = f"| {i}/{len(values)}"
            head = f"{100 * i // len(values):3d}%|"
            bar = width - len(head) - len(tail)
            sys.stderr.write("\\r" + head + "#" * (bar * i // len(values)) + " " * (bar - bar * i // len(values)) + tail)
            sys.stderr.flush()
            if i < len(values):
                yield values[i]
        sys.stderr.write("\\n")
for _ in tqdm(range(50)):
    time.sleep(0.1)
print("done", end="")
"""
BYTES = "import os; os.write(1, bytes(range(256)) * 300 + b'\\r10%\\r20%' + b'x' * 100000)"
LONG_LINES = """
import os
for i in range(20):
    os.write(1, (f"rank {os.environ['RANK']} line {i} " + "x" * 100000 + "\\n").encode())
"""


def at_the_end(line):
    """A bar's last state, without the speed that it shows."""
    return re.sub(r"\[.*", "", line)


def ranks_of(line):
    """Ranks in a line's prefix, which is "0,2: " or "0-2: "."""
    for part in line.split(":")[0].split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def bars(site, program):
    """Under plain python, on one rank and on three, at the same time: each draws for 5 s."""
    own = Terminal(site, [sys.executable, "bar.py"], columns=80)
    terminals = {ranks: Terminal(site, [program, "run", "--nproc", ranks, "--", sys.executable, "bar.py"], columns=80) for ranks in (1, 3)}
    every = [own, *terminals.values()]
    with concurrent.futures.ThreadPoolExecutor(len(every)) as pool:
        for terminal, code in zip(every, pool.map(Terminal.finish, every)):
            check(code == 0, terminal.text()[-500:])
    plain, found = own.screen.lines(), []
    for ranks, terminal in terminals.items():
        shown = {line for _, state in terminal.states for line in state if "%|" in line}
        check(len(shown) >= 10, f"{ranks} ranks: the bar has {len(shown)} states on the screen")
        lines = terminal.screen.lines()
        ends = [line for line in lines if "%|" in line]
        check(all("100%|" in line and "50/50" in line for line in ends), f"{ranks} ranks: the bar ends as {ends}")
        if ranks == 1:
            check(len(ends) == 1 and at_the_end(ends[0]) == at_the_end(plain[0]), f"it ends as {ends}, and under plain python as {plain[0]!r}")
            check(lines[1] == plain[1] == "done", f"after the bar stands {lines[1]!r}")
        else:
            # How many of them are merged is a matter of time.
            for what in ("%|", "done"):
                of = [rank for line in lines if what in line for rank in ranks_of(line)]
                check(sorted(of) == list(range(ranks)), f"{ranks} ranks: '{what}' is on the screen for ranks {of}")
        found.append(f"{ranks}: {len(shown)}")
    return ", ".join(found)


def follow(site, program):
    """logs -f of a job that fails, on a terminal."""
    site.cluster(1)
    # It goes on once somebody looks.
    rank = ("printf '\\r10%%' >&2; until [ -e looked ]; do sleep 0.05; done; "
            "i=2; while [ $i -lt 6 ]; do printf '\\r%d0%%' $i >&2; sleep 0.4; i=$((i + 1)); done; exit $RANK")
    code, out, err, _ = site.run([program, "submit", "--procs-per-node", "2", "--", "sh", "-c", rank])
    check(code == 0, err)
    [job] = set(re.findall(r"\bsh-[a-z0-9]{6}\b", out + err))
    terminal = Terminal(site, [program, "logs", "-f", job])
    terminal.wait_for("10%")
    (site.directory / "looked").touch()
    code = terminal.finish()
    states = {line for _, state in terminal.states for line in state}
    seen = {int(found) for line in states for found in re.findall(r"(\d+)%$", line)}
    check(len(seen) >= 3, f"logs -f shows a line without end in the states {sorted(states)}")
    check(code == 1, f"logs -f of a job that fails: {code}: {terminal.text()}")


def run(site):
    program = meshrun()
    site.script("bar.py", BAR)
    states = bars(site, program)

    wrote = subprocess.run([sys.executable, "-c", BYTES], capture_output=True, check=True).stdout
    piped = subprocess.run([program, "run", "--", sys.executable, "-c", BYTES], cwd=site.directory, env=site.env, stdin=subprocess.DEVNULL,
                           capture_output=True, timeout=60)
    check(piped.returncode == 0, piped.stderr.decode())
    check(piped.stdout == wrote, f"{len(piped.stdout)} bytes came of {len(wrote)}")

    command = f"'{program}' run --nproc 3 --log-dir logs -- '{sys.executable}' lines.py | tee copy > screen"
    site.script("lines.py", LONG_LINES)
    done = subprocess.run(["sh", "-c", command], cwd=site.directory, env=site.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60)
    check(done.returncode == 0, done.stderr)
    copy = (site.directory / "copy").read_text().splitlines()
    for rank in range(3):
        lines = [f"rank {rank} line {i} " + "x" * 100000 for i in range(20)]
        check([line[3:] for line in copy if line.startswith(f"{rank}: ")] == lines, f"the lines of rank {rank} are not whole in tee's file")
        [file] = (site.directory / "logs").glob(f"*/attempt_0/{rank}/stdout.log")
        check(file.read_text().splitlines() == lines, f"{file.relative_to(site.directory)} does not hold its rank's lines")
    check(len(copy) == 60, f"tee's file has {len(copy)} lines")

    follow(site, program)
    terminal = Terminal(site, ["sh", "-c", f"'{program}' run --nproc 2 -- sh -c 'echo a line; echo aside >&2' | tee copy"], columns=80)
    check(terminal.finish() == 0, terminal.text())
    copy = (site.directory / "copy").read_text()
    check(sorted(copy.splitlines()) == ["0: a line", "1: a line"], f"run | tee wrote {copy!r}")
    return passed(f"states of the bar on the screen by ranks: {states}; {len(wrote)} bytes of a pipe equal; 60 lines of 100 kB whole in "
                  "tee's file and in each rank's; run | tee has neither merged lines nor a bar in the file")
