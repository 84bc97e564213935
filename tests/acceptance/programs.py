"""What items run: GoogleTest programs, and benchmarks that end with a verdict."""

import os
import pathlib
import re
import subprocess
import time

from harness import ROOT, bazel, binary, check, cuda_flags, passed, skip_soak, slow


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "(no output)"


def tested(label, chosen, by_bazel=False, timeout=1800):
    """What a GoogleTest program says of the tests whose names match. Within tools/test: by Bazel, which has run it.
    by_bazel: always, since the program needs its runfiles."""
    if by_bazel or skip_soak():
        # Whoever names a long test means it.
        done = subprocess.run(bazel("test", "--noshow_progress", "--test_tag_filters=", *cuda_flags(), label), cwd=ROOT,
                              capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        logs = subprocess.run(bazel("info", *cuda_flags(), "bazel-testlogs"), cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout.strip()
        log = pathlib.Path(logs, *label[2:].split(":"), "test.log")
        check(log.exists(), f"{label} was not run: {last_line(done.stderr)}")
        said = log.read_text(errors="replace")
    else:
        # Outside tools/test all points of a matrix, not a sample of them.
        done = subprocess.run([binary(label), f"--gtest_filter={chosen}"], cwd=ROOT, capture_output=True, text=True,
                              timeout=timeout, stdin=subprocess.DEVNULL, env=dict(os.environ, MESHRUN_TEST_WHOLE="1"))
        said = done.stdout + done.stderr
    pattern = re.compile("^(" + "|".join(re.escape(part).replace(r"\*", ".*") for part in chosen.split(":")) + ")$")
    verdicts = [(verdict, name) for verdict, name in
                re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+)(?:, where .*?)? \(\d+ ms\)", said, re.MULTILINE)
                if pattern.match(name)]
    failed = sorted({name for verdict, name in verdicts if verdict == "FAILED"})
    check(not failed, f"{label}: failed: {', '.join(failed)}: {first_failure(said)}")
    ok = [name for verdict, name in verdicts if verdict == "OK"]
    check(ok, f"{label}: no test {chosen} ran to its end: {last_line(said)}")
    return ok, said


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
    done = subprocess.run([ROOT / "tests/acceptance/walking_system", "--only", "2"], cwd=ROOT, capture_output=True, text=True,
                          timeout=4 * 3600)
    said = [line for line in done.stdout.splitlines() if line.startswith("2 ")]
    check(said and done.returncode == 0, said[-1] if said else last_line(done.stdout + done.stderr))
    return passed(said[-1])
