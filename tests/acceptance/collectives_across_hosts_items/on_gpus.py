"""NCCL: on a GPU all that gpu-check runs, without one everything that runs on the host instead."""

import pathlib
import re
import subprocess

from environments import packages
from harness import ROOT, bazel, check, cuda_flags, not_applicable, passed, skip_soak, slow
from programs import has_gpu, last_line, tested

# What NCCL is called with and on which streams, the collectives over such calls, and what the kernels compute.
BODIES = ("//tests/parallel:on_nccl_test", "//tests/parallel:point_to_point_v_collectives_test",
          "//tests/parallel/kernels:cuda_bodies_test")
# An NCCL that lets ranks of one host share a GPU; LibTorch brings along an older one. 200 MB, fetched where there is a GPU.
LATER_NCCL = pathlib.Path(__file__).with_name("nccl-requirements.txt")
# Percent of the measured copy rate; where rows lie at random places, percent of what the memory then gives.
KERNEL_SHARE = 85
HOST_TIME_US = 12  # of a collective on uneven pieces


def build():
    """What was built, in words."""
    if not cuda_flags():
        return "no CUDA toolkit, so nothing for GPUs is compiled"
    if skip_soak():  # tools/test has compiled everything
        return "everything compiles"
    done = subprocess.run(bazel("build", "--config=cuda", "--nobuild_tests_only", "--noshow_progress", "//..."), cwd=ROOT,
                          capture_output=True, text=True, timeout=7200, stdin=subprocess.DEVNULL)
    check(done.returncode == 0, f"the build: {last_line(done.stderr)}")
    return "everything compiles"


def shares_of(table):
    """Row of gpu-check's Markdown -> percent of the copy's rate and of the bound that a kernel reached."""
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines() if line.startswith("|")]
    shares = {}
    for row in cells:
        name = re.fullmatch(r".*?: (.*) \(copy ([\d.]+) us\)", row[1]) if len(row) == 6 else None
        if name and re.fullmatch(r"\d+%", row[-1]):
            shares[name[1]] = (round(100 * float(name[2]) / float(row[2].split()[0])), int(row[-1].rstrip("%")))
    return shares


def host_times_of(log):
    """Collective on pieces -> microseconds, of what the ranks that share a GPU have printed."""
    return {name: float(time) for name, time in re.findall(r"^host time of (\w+_v\b.*?): ([\d.]+) us$", log, re.MULTILINE)}


def own_host_times_of(log):
    """Microseconds of NCCL's functions, from the same log as host_times_of."""
    return [float(time) for time in re.findall(r"^host time of nccl\w+ on .*?: ([\d.]+) us$", log, re.MULTILINE)]


def host_waits_of(log):
    """How often the training steps of all ranks made the host wait, of each world that counted."""
    return [int(count) for count in re.findall(r"^host waits of \d+ training steps on \d+ ranks: (\d+)$", log, re.MULTILINE)]


def on_gpu(site, bodies):
    tree, table, logs = site.directory / "meshrun", site.directory / "table.md", site.directory / "logs"
    made = subprocess.run([ROOT / "tools/bundle", "--out", tree, "--tests", "gpu"], cwd=ROOT, capture_output=True, text=True,
                          timeout=3600, stdin=subprocess.DEVNULL)
    check(made.returncode == 0, f"tools/bundle: {last_line(made.stderr)}")
    nccl = packages(LATER_NCCL) / "nvidia/nccl/lib/libnccl.so.2"
    done = subprocess.run([tree / "gpu-check", "--timeout", "1500", "--nccl", nccl, "--out", table, "--logs", logs],
                          capture_output=True, text=True, timeout=7200, stdin=subprocess.DEVNULL)
    print(done.stdout + done.stderr, flush=True)
    check(done.returncode == 0, f"gpu-check: exit code {done.returncode}: {last_line(done.stdout)}")
    shares = shares_of(table.read_text())
    of_ranks = (logs / "nccl_ranks_test.log").read_text()
    left_out = sorted(set(re.findall(r"^\[ +SKIPPED +\] (\S*NcclRanksTest\.[^\s,]+)", of_ranks, re.MULTILINE)))
    check(not left_out, f"skipped: {', '.join(left_out)}")
    times, own_times, waits = host_times_of(of_ranks), own_host_times_of(of_ranks), host_waits_of(of_ranks)
    check(shares and times and own_times and waits,
          f"gpu-check printed {len(shares)} kernels, {len(times)} host times, {len(own_times)} of NCCL's own and {len(waits)} "
          "counts of host waits")
    check(not any(waits), f"training steps made the host wait, in the worlds that counted: {waits} times")
    scattered = [f"{name} {copy} %" for name, (copy, bound) in shares.items() if copy < KERNEL_SHARE <= bound]
    figures = (f"{bodies}; gpu-check: {last_line(done.stdout)}; {len(shares) - len(scattered)} kernels at "
               f"{min(max(both) for both in shares.values())} % of the copy rate or more, {len(scattered)} of the rate of rows at "
               f"random places (of the copy's: {', '.join(scattered)}); "
               f"training steps of {len(waits)} worlds made the host wait {sum(waits)} times; host time: " +
               ", ".join(f"{name} {time} us" for name, time in times.items()) +
               f" (NCCL's own functions: from {min(own_times)} us)")
    short = [f"{name} {max(both)} %" for name, both in shares.items() if max(both) < KERNEL_SHARE]
    short += [f"{name} {time} us" for name, time in times.items() if time > HOST_TIME_US]
    if short:
        return slow(f"{figures}; short: {', '.join(short)}", f"{KERNEL_SHARE} % and {HOST_TIME_US} us")
    return passed(figures)


def run(site):
    bodies = build()
    if not skip_soak():
        count = sum(len(tested(label, "*")[0]) for label in BODIES)
        bodies += f", {count} tests of its calls, streams and kernels pass on the CPU"
    if not has_gpu():
        return not_applicable(f"no GPU ({bodies})")
    if not cuda_flags():
        return not_applicable(f"a GPU and no CUDA toolkit ({bodies})")
    return on_gpu(site, bodies)
