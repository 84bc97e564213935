"""Saves and loads of a large state, beside torch.distributed.checkpoint in the same run."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys

import built
from harness import ROOT, binary, check, passed, skip_soak, slow

sys.path.append(str(ROOT / "tests/etcd"))
from members import free_ports

RANKS = 2
# A parameter has so many, in both programs of ranks.
TENSOR_BYTES = 16 << 20


class Side:
    """The ranks of one side: processes that wait for commands."""

    def __init__(self, site, command, env=None, wrap=lambda rank: [], said=None, ranks=RANKS):
        [port] = map(str, free_ports(1))
        self._ranks = []
        for rank in range(ranks):
            own = dict(env or os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1")
            process = subprocess.Popen([str(word) for word in [*wrap(rank), *command]], env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=open(said, "a") if said else None, text=True)
            site.cleanup.callback(process.wait)
            site.cleanup.callback(process.kill)
            self._ranks.append(process)
        for process in self._ranks:
            said = process.stdout.readline()
            check(said == "ready\n", f"{command[0]} said {said!r}")

    def do(self, command):
        """What each rank says of it."""
        for process in self._ranks:
            process.stdin.write(command + "\n")
            process.stdin.flush()
        lines = [process.stdout.readline() for process in self._ranks]
        check(all(lines), f"a rank has ended in {command}")
        return [json.loads(line) for line in lines]

    def end(self):
        for process in self._ranks:  # a rank waits for the others before it ends
            process.stdin.write("end\n")
            process.stdin.close()
        for process in self._ranks:
            process.wait(60)


def compare(site, python, megabytes, rounds, directory, env):
    """By side and command: the median of the slowest rank's seconds, and the greatest growth of a rank."""
    ours_at, theirs_at = directory / "ours", directory / "dcp"
    sides = {"ours": Side(site, [binary("//tests/acceptance/ranks:checkpoint_rank"), ours_at, megabytes]),
             "dcp": Side(site, [*python, ROOT / "tests/acceptance/checkpoints_items/dcp_rank.py", theirs_at, megabytes], env)}
    times = {}
    for _ in range(rounds):
        for command in ("save", "load", "async"):
            for name, side in sides.items():
                said = side.do(command)
                row = times.setdefault((name, command), {"call": [], "whole": [], "peak": []})
                for key in row:
                    row[key].append(max(each[key] for each in said))
        for old in sorted(theirs_at.iterdir(), key=lambda path: int(path.name))[:-1]:
            shutil.rmtree(old)  # ours keeps two by itself
    for side in sides.values():
        side.end()
    return {key: {"call": statistics.median(row["call"]), "whole": statistics.median(row["whole"]), "peak": max(row["peak"])}
            for key, row in times.items()}



SAVE_AND_LOAD = 1.0  # of DCP's time
STALL = 0.5
PEAK = 256 << 20  # beside a rank's own state


def _syscalls(site, megabytes, directory):
    """Of rank 0 in one save: calls, and bytes that it wrote, by strace."""
    traces = [site.directory / f"trace-{rank}" for rank in range(RANKS)]
    side = Side(site, [binary("//tests/acceptance/ranks:checkpoint_rank"), directory, megabytes],
                wrap=lambda rank: ["strace", "-f", "-qq", "-e", "trace=pwrite64,write,fdatasync,fsync", "-o", traces[rank]])
    side.do("save")
    side.end()
    calls = written = 0
    for trace in traces:
        for line in trace.read_text(errors="replace").splitlines():
            found = re.search(r"\b(pwrite64|fdatasync|fsync)\(.*= (\d+)$", line)
            if found:
                calls += 1
                written += int(found[2]) if found[1] == "pwrite64" else 0
    return calls, written


def run(site):
    """At 50 MB peak and bytes gate; the whole run has the sizes of the issue's table: 500 MB of parameters with Adam's moments."""
    megabytes, rounds = (50, 3) if skip_soak() else (500, 5)
    python_with_torch = built.python()
    figures = compare(site, [python_with_torch], megabytes, rounds, site.directory, built.environ())
    calls, written = _syscalls(site, megabytes, site.directory / "traced")
    state = 3 * TENSOR_BYTES * -(-(megabytes << 20) // TENSOR_BYTES)
    ratios = {what: figures["ours", what]["call"] / figures["dcp", what]["call"] for what in ("save", "load", "async")}
    text = "; ".join(f"{what} {figures['ours', what]['call']:.2f} s, DCP {figures['dcp', what]['call']:.2f} s, ratio {ratios[what]:.2f}"
                     for what in ratios)
    peaks = {what: figures["ours", what]["peak"] for what in ratios}
    text += (f"; whole async {figures['ours', 'async']['whole']:.2f} s, DCP {figures['dcp', 'async']['whole']:.2f} s; a rank grows by "
             f"{peaks['save'] >> 20} MiB in save, {peaks['load'] >> 20} in load, {peaks['async'] >> 20} in save_async "
             f"(DCP {figures['dcp', 'save']['peak'] >> 20}, {figures['dcp', 'load']['peak'] >> 20}, "
             f"{figures['dcp', 'async']['peak'] >> 20}); {calls} system calls write {written / state:.3f} of the state's bytes")
    check(peaks["save"] <= PEAK and peaks["load"] <= PEAK, f"a rank grows by more than 256 MiB: {text}")
    check(peaks["async"] <= state // RANKS + PEAK, f"a snapshot is larger than a rank's share: {text}")
    check(written < 1.01 * state, f"more is written than the state: {text}")
    slow_ones = [what for what, most in (("save", SAVE_AND_LOAD), ("load", SAVE_AND_LOAD), ("async", STALL)) if ratios[what] > most]
    if slow_ones:
        return slow(f"{megabytes} MB: {text}", "save and load 1.0, async 0.5 of DCP's")
    return passed(f"{megabytes} MB: {text}", left_out="500 MB" if skip_soak() else "")
