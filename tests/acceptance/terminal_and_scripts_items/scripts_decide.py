"""Item 8: the scripts of docs/scripting.md, in sh and in Python, submit, wait, read JSON and decide; its gRPC client too."""

import subprocess

from harness import ROOT, check, passed


def run(site):
    said, left_out = [], []
    for case in ("the_scripts_that_decide_run", "the_python_client_runs"):
        done = subprocess.run([ROOT / "tests/docs/samples", "--only", case], cwd=ROOT, capture_output=True, text=True, timeout=600)
        check(done.returncode == 0, f"{case}: {done.stdout}{done.stderr}")
        verdict, _, which = done.stdout.splitlines()[0].partition(" ")
        check(verdict in ("passed", "skipped") and which.startswith(case), f"{case}: {done.stdout}")
        (said if verdict == "passed" else left_out).append(which)
    check(said, f"nothing ran: {'; '.join(left_out)}")
    return passed("; ".join(said), "; ".join(left_out))
