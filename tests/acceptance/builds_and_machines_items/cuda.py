#!/usr/bin/env python3
"""Everything builds with --config=cuda, what the CUDA kernels compute is right on the host, and on a GPU gpu-check passes."""

import pathlib
import subprocess
import sys

ACCEPTANCE = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ACCEPTANCE), str(ACCEPTANCE.parent / "soak")]
from environments import last_line
from harness import ROOT, bazel, check, cuda_flags, item, main, not_applicable, passed, skip_soak
from programs import has_gpu, tested

BODIES = "//tests/parallel/kernels:cuda_bodies_test"


def call(command, what, timeout):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)
    failed = [line for line in done.stderr.splitlines() if "error" in line.lower() or line.startswith("FAIL")]
    check(done.returncode == 0, f"{what}: exit code {done.returncode}: {' | '.join(failed[:2]) or last_line(done.stderr)}")
    return done.stdout


def gpu_check(site):
    """Its table goes to stdout; returns its last line."""
    tree = site.directory / "meshrun"
    call([ROOT / "tools/bundle", "--out", tree, "--tests", "gpu"], "tools/bundle", timeout=3600)
    done = subprocess.run([tree / "gpu-check"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=3600)
    print(done.stdout + done.stderr, flush=True)
    check(done.returncode == 0, f"gpu-check: exit code {done.returncode}: {last_line(done.stdout)}")
    return last_line(done.stdout)


def run(site):
    """(verdict, figures) of an item."""
    if not cuda_flags():
        return not_applicable("no CUDA toolkit in CUDA_HOME or /usr/local/cuda")
    built = "everything builds with --config=cuda"
    if not skip_soak():  # tools/test has done both
        call(bazel("build", "--config=cuda", "--nobuild_tests_only", "--noshow_progress", "//..."), "the build", timeout=7200)
        ok, _ = tested(BODIES, "*")
        built += f", {len(ok)} tests of the kernels' bodies pass on the host"
    if not has_gpu():
        return not_applicable(f"no GPU ({built})")
    return passed(f"{built}; gpu-check: {gpu_check(site)}")


if __name__ == "__main__":
    item(7, "CUDA")(run)
    sys.exit(main(__doc__))
