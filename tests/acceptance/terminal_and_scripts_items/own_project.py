"""Projects of one's own build against an installed tree, and in the soak run against the clone."""

import subprocess

from harness import ROOT, check, passed, skip_soak


def run(site):
    command = [ROOT / "tests/deploy/own_project", *(["--skip-soak"] if skip_soak() else [])]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=7200)
    check(done.returncode == 0, f"tests/deploy/own_project: {' | '.join(done.stdout.splitlines()[-4:])}")
    figures = [line for line in done.stdout.splitlines() if " in " in line and not line.startswith(("passed", "skipped"))]
    left = "the rebuild after a changed line, pkg-config, Bazel workspaces, a folder in the clone"
    return passed("; ".join(figures), left_out=left if skip_soak() else "")
