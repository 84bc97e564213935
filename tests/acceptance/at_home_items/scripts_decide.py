"""Item 8: the scripts of docs/scripting.md, in sh and in Python, submit, wait, read JSON and decide; its gRPC client too."""

import subprocess

from harness import ROOT, check, passed


def run(site):
    said = []
    for case in ("the_scripts_that_decide_run", "the_python_client_runs"):
        done = subprocess.run([ROOT / "tests/docs/samples", "--only", case], cwd=ROOT, capture_output=True, text=True, timeout=600)
        check(done.returncode == 0, f"{case}: {done.stdout}{done.stderr}")
        said.append(done.stdout.splitlines()[0])
    return passed("; ".join(said))
