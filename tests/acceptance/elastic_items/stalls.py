#!/usr/bin/env python3
"""Item 3 of the elastic control plane, its second half: for a minute the coordinator's disk hangs, and with it a worker's
directory of one job. No rank of any other job ends, and nothing that was said is lost."""

import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import binary, check, item, main, meshrun, passed, running, skip_soak, wait_until

STEPS = 'echo $$ > "$0.pid"; while :; do date +%s.%N >> "$0.steps"; sleep 0.1; done'


def described(site, job):
    code, out, err, _ = site.run([meshrun(), "describe", job, "-o", "json"])
    check(code == 0, f"describe {job}: {err}")
    return json.loads(out)["job"]


def submit(site, *arguments):
    code, out, err, _ = site.run([meshrun(), "submit", "-o", "json", *arguments])
    check(code == 0, f"submit: {err}")
    said = json.loads(out)
    return said.get("job_id") or said["job"]["job_id"]


def run(site):
    seconds = 12 if skip_soak() else 60
    disk, directory, shared = (site.directory / name for name in ("disk-hangs", "directory-hangs", "nfs"))
    shared.mkdir()
    library = binary("//tests/worker:libhanging_files.so")

    def hanging(start, below, flag):
        usual = dict(site.env)
        site.env |= {"LD_PRELOAD": library, "MESHRUN_HANG_WHILE": str(flag), "MESHRUN_HANG_BELOW": str(below)}
        started = start()
        address = site.env.get("MESHRUN_COORDINATOR")
        site.env.clear()
        site.env.update(usual)
        if address:
            site.env["MESHRUN_COORDINATOR"] = address
        return started

    hanging(lambda: site.coordinator(), site.directory / "coordinator/state", disk)
    hanging(lambda: site.worker("n1"), shared, directory)
    job = submit(site, "--working-dir", site.directory, "--", "sh", "-c", STEPS, "other")
    steps, pid_file = site.directory / "other.steps", site.directory / "other.pid"
    wait_until(steps.exists, 30, "the first job's first step")
    wait_until(lambda: described(site, job)["state"] == "JOB_STATE_RUNNING", 30, "the first job runs")
    pid = int(pid_file.read_text())

    # It is to run where the directory hangs: its Prepare is answered while the disk hangs.
    directory.touch()
    second = submit(site, "--working-dir", shared, "--", "sh", "-c", "exit 0")
    wait_until(lambda: described(site, second)["state"] == "JOB_STATE_RENDEZVOUS", 30, "the second job is prepared")
    disk.touch()
    third = site.start([meshrun(), "submit", "--working-dir", site.directory, "--", "sh", "-c", "exit 0"])
    end = time.monotonic() + seconds
    longest = 0
    while time.monotonic() < end:
        check(running(pid), "the rank of the other job has ended")
        longest = max(longest, time.time() - steps.stat().st_mtime)
        time.sleep(0.2)
    code, _, said, _ = site.run([meshrun(), "submit", "--working-dir", site.directory, "--", "sh", "-c", "exit 0"])
    check(code != 0 and "read-only" in said, f"a submit meanwhile: {code} {said}")
    disk.unlink()
    wait_until(lambda: third.poll() is not None, 60, "the submit that was under way")
    # Accepted, or its own patience was over: it then says that it may have been accepted.
    check(third.returncode in (0, 75, 124), f"the submit that was under way: {third.returncode}")
    wait_until(lambda: described(site, second)["state"] == "JOB_STATE_FAILED", 60, "the second job has failed")
    why = described(site, second)["failure"]["message"]
    check(f"working directory {shared} has not answered" in why, f"the second job failed since: {why}")
    directory.unlink()
    now = described(site, job)
    check(running(pid) and now["state"] == "JOB_STATE_RUNNING", f"the other job is {now['state']}")
    check(str(now["generation"]) == "1" and not int(now.get("restarts", 0)), "the other job was started again")
    check(longest < 5, f"the rank of the other job stood for {longest:.1f} s")
    after = submit(site, "--working-dir", site.directory, "--", "sh", "-c", "exit 0")
    wait_until(lambda: described(site, after)["state"] == "JOB_STATE_SUCCEEDED", 60, "a job after the hang")
    return passed(f"disk and directory hung for {seconds} s: the other job's rank {pid} lives in generation 1, its longest pause "
                  f"was {longest:.1f} s", left_out="60 s" if skip_soak() else "")


if __name__ == "__main__":
    item(3, "a disk and a directory that hang")(run)
    sys.exit(main(__doc__))
