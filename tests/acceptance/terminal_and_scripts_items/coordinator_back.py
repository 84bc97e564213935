"""Item 4: kill -9 of a dev cluster's coordinator; the hint of the next command, followed literally, keeps the running job alive."""

import json
import os
import re
import shlex
import signal

from harness import check, meshrun, passed, wait_until

RANK = """#!/bin/sh
echo $$ > .pid.$RANK
mv .pid.$RANK pid.$RANK
until [ -e go ]; do sleep 0.05; done
echo "rank $RANK is still $$"
"""


def run(site):
    program = meshrun()
    site.cleanup.callback(lambda: site.run([program, "dev", "down", "--purge"]))
    code, _, err, _ = site.run([program, "dev", "up", "--workers", 2, "--slots", 2])
    check(code == 0, f"dev up: {err}")
    code, job, err, _ = site.run([program, "submit", "--nodes", 2, "--", site.script("rank.sh", RANK)])
    check(code == 0, f"submit: {err}")
    job = job.strip()
    wait_until(lambda: all((site.directory / f"pid.{r}").exists() for r in range(2)), 20, "both ranks run")
    pids = [(site.directory / f"pid.{r}").read_text().strip() for r in range(2)]
    before = json.loads(site.run([program, "dev", "status", "-o", "json"])[1])
    os.kill(before["coordinator"]["pid"], signal.SIGKILL)
    code, _, err, _ = site.run([program, "ps"])
    hint = re.search(r"start one with '([^']*)'", err)
    check(code == 75 and hint, f"without a coordinator: {code}, {err}")
    words = shlex.split(hint[1])
    code, _, err, seconds = site.run([program, *words[1:]])
    check(words[0] == "meshrun" and code == 0, f"{hint[1]}: exit code {code}: {err}")
    after = json.loads(site.run([program, "dev", "status", "-o", "json"])[1])
    check(after["workers"] == before["workers"], f"workers were {before['workers']}, are {after['workers']}")
    check(after["coordinator"]["pid"] != before["coordinator"]["pid"] and after["running"], "no coordinator runs")
    (site.directory / "go").touch()
    code, _, err, _ = site.run([program, "wait", job])
    check(code == 0, f"the job ended with {code}: {err}")
    out = site.run([program, "logs", job])[1]
    check(all(f"rank {r} is still {pid}" in out for r, pid in enumerate(pids)), f"ranks {pids} wrote: {out}")
    code, _, err, _ = site.run([program, "dev", "up", "--port", 1])
    check(code == 2, f"dev up --port on a running cluster: {code}: {err}")
    return passed(f"'{hint[1]}' took {seconds:.1f} s; 2 workers and 2 ranks lived on, the job succeeded")
