"""What items run: GoogleTest programs, and benchmarks that end with a verdict."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from harness import ROOT, bazel, binary, check, passed, skip_soak, slow

# Environment of a test that then runs its whole matrix, not a sample.
WHOLE = {"MESHRUN_TEST_WHOLE": "1"}


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "(no output)"


def tested(label, chosen, timeout=1800, env=None):
    """Runs the tests of a GoogleTest program whose names match, in its runfiles as Bazel does. Returns the names of those that
    passed, and all that the program said. Within tools/test Bazel has run them: items ask skip_soak(), or are items of tests."""
    check(not skip_soak(), f"{label} would run a second time within tools/test")
    program = pathlib.Path(binary(label))
    runfiles = program.with_name(f"{program.name}.runfiles")
    with tempfile.TemporaryDirectory(prefix="mrt-") as scratch:
        done = subprocess.run([program, f"--gtest_filter={chosen}"], cwd=runfiles / "meshrun", capture_output=True, text=True,
                              errors="replace", timeout=timeout, stdin=subprocess.DEVNULL,
                              env=dict(os.environ, TEST_SRCDIR=str(runfiles), TEST_TMPDIR=scratch, TEST_WORKSPACE="meshrun", **(env or {})))
    said = done.stdout + done.stderr
    verdicts = re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+)(?:, where .*?)? \(\d+ ms\)", said, re.MULTILINE)
    failed = sorted({name for verdict, name in verdicts if verdict == "FAILED"})
    check(not failed, f"{label}: failed: {', '.join(failed)}: {first_failure(said)}")
    ok = [name for verdict, name in verdicts if verdict == "OK"]
    check(ok, f"{label}: no test {chosen} ran to its end{', SKIPPED' if verdicts else ''}: {last_line(said)}")
    check(done.returncode == 0, f"{label}: exit code {done.returncode}: {last_line(said)}")
    return ok, said


def fuzzed(site, names, seconds):
    """Parsers of tests/fuzz under libFuzzer and AddressSanitizer, for so long each: what is said of them."""
    if not shutil.which("clang++"):
        return "libFuzzer not run: clang is not installed"
    flags = ["--config=fuzz", "--symlink_prefix=/"]
    built = subprocess.run(bazel("build", "--noshow_progress", *flags, "//tests/fuzz", suffix="-fuzz"), cwd=ROOT, capture_output=True, text=True)
    check(built.returncode == 0, f"//tests/fuzz does not build: {built.stderr[-500:]}")
    place = subprocess.run(bazel("info", *flags, "bazel-bin", suffix="-fuzz"), cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    def units(name):
        corpus = site.directory / "corpus" / name
        corpus.mkdir(parents=True)
        env = dict(os.environ, MESHRUN_FUZZ_PARSER=name, MESHRUN_FUZZ_CORPUS=str(corpus), TMPDIR=str(site.directory))
        done = subprocess.run([f"{place}/tests/fuzz/fuzz", f"-max_total_time={seconds}", "-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1",
                               f"-artifact_prefix={corpus}/", str(corpus)], cwd=site.directory, capture_output=True, text=True,
                              env=env, timeout=seconds + 120)
        check(done.returncode == 0, f"parser {name}: {' | '.join(re.findall('^(?:==[0-9]+==ERROR.*|SUMMARY.*)$', done.stderr, re.MULTILINE))}")
        return int(re.search(r"number_of_executed_units: (\d+)", done.stderr)[1])

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = list(pool.map(units, names))
    return f"{len(names)} parsers under libFuzzer for {seconds} s each: {sum(counts)} inputs, the fewest {min(counts)}"


def first_failure(said):
    found = re.search(r"(?:Failure\n|escaped: )(.{0,600})", said, re.DOTALL)
    return found[1] if found else last_line(said)


def has_gpu():
    said = subprocess.run("nvidia-smi -L 2>/dev/null", shell=True, capture_output=True, text=True).stdout
    return said.startswith("GPU")


def program_verdict(command, timeout, left_out="", speed=False):
    """A benchmark's last line is `verdict: pass FIGURES` or `verdict: short FIGURES (target ...)`."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)
    said = done.stdout + done.stderr
    found = re.findall(r"^verdict: (pass|short|n/a):? *(.*)$", said, re.MULTILINE)
    print((done.stderr if found else said)[-8000:], end="", file=sys.stderr, flush=True)
    check(found, f"{pathlib.Path(command[0]).name} exited {done.returncode}: {last_line(said)}")
    verdict, figures = found[-1]
    if verdict == "pass":
        check(done.returncode == 0, f"exited {done.returncode} after: {figures}")
        return passed(figures, left_out)
    return ("slow" if speed and verdict == "short" else verdict), figures


def time_of_tools_test(began, warm_seconds):
    """Within tools/test: what this list adds to it, and may add when warm. Else tools/test itself, cold and warm, which runs
    every list."""
    if skip_soak():
        seconds = time.monotonic() - began
        figures = f"this list adds {seconds:.0f} s to a warm tools/test"
        return (passed(figures, left_out="tools/test itself") if seconds <= warm_seconds else
                slow(figures, f"{warm_seconds} s"))
    done = subprocess.run([ROOT / "tests/acceptance/first_run", "--only", "2"], cwd=ROOT, capture_output=True, text=True,
                          timeout=4 * 3600)
    said = [line for line in done.stdout.splitlines() if line.startswith("2 ")]
    check(said and done.returncode == 0, said[-1] if said else last_line(done.stdout + done.stderr))
    return passed(said[-1])
