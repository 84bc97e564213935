"""Items 1 and 4: what the operator's policy says, by the commands of docs/operations.md."""

import csv
import datetime
import json
import os
import re
import signal
import time

from harness import ROOT, check, lenient, meshrun, wait_until
from many_users_items.faults import fault
from many_users_items.shared_cluster import SharedCluster


def cluster_with(site, policy, nodes=1):
    path = site.directory / "policy.yaml"
    path.write_text(policy)
    cluster = SharedCluster(site, coordinator_flags=["--policy", path])
    for i in range(nodes):
        cluster.add(f"n{i + 1}", "--label", "gpu" if i == 0 and nodes > 1 else "plain")
    return cluster, path


def refused(cluster, user, flags, *command):
    code, _, err, _ = cluster.run(user, "submit", "--working-dir", cluster.home(user), *flags, "--", *command)
    check(code != 0, f"submit {' '.join(map(str, flags))} was taken")
    return err.strip()


def at(timestamp):
    """A time of JSON's, in a form in which the earlier one is less."""
    second, _, fraction = timestamp.rstrip("Z").partition(".")
    return second, fraction.ljust(9, "0")


@fault("a time limit with a grace of a year")
def endless_grace(site):
    cluster, path = cluster_with(site, "limits: {kill_grace: 2s}\n")
    said = refused(cluster, "ada", ["--time-limit", "1s", "--kill-grace", "8760h"], "true")
    check("the most for a job of user ada" in said, said)
    began = time.monotonic()
    job_id = cluster.submit("ada", ["--time-limit", "1s", "--kill-grace", "2s"], "sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    code, _, _, _ = cluster.run("ada", "wait", job_id)
    took = time.monotonic() - began
    check(code == 124 and took < lenient(10), f"exit code {code} after {took:.1f} s")
    return f"refused; with the longest grace allowed it ends {took:.1f} s after its submit"


@fault("whatever bob has queued, ada is next")
def ada_is_next(site):
    cluster, _ = cluster_with(site, "{}\n")
    # However long the submits take: the first job of bob's runs until hers waits.
    gate = cluster.home("bob") / "gate"
    gate.touch()
    for _ in range(30):
        cluster.submit("bob", ["--nproc-per-node", 4], "sh", "-c", f"while [ -e {gate} ]; do sleep 0.05; done")
    adas = cluster.submit("ada", ["--nproc-per-node", 4], "true")
    began = time.monotonic()
    gate.unlink()
    cluster.succeeds([adas])
    took = time.monotonic() - began
    jobs = {job["jobId"]: job for job in json.loads(cluster.ask("ps", "--all", "-o", "json", "--limit", 1000))["jobs"]}
    submitted, started = (at(jobs[adas][what]) for what in ("submittedAt", "startedAt"))
    bobs = [job for job in jobs.values() if job["submitter"] == "bob"]
    before = sum("startedAt" in job and submitted < at(job["startedAt"]) < started for job in bobs)
    waiting = sum("startedAt" not in job or at(job["startedAt"]) > started for job in bobs)
    # One may have been placed before her submit, and have begun after it.
    check(before <= 1 and waiting > 10, f"it took {took:.1f} s; {before} of bob's jobs went before it, {waiting} wait")
    return f"{took:.1f} s, and {waiting} jobs of bob's that were there before her start later"


def of_the_docs(site):
    """The policy that docs/operations.md shows, and what it says of it."""
    page = (ROOT / "docs/operations.md").read_text()
    shown = next(block for block in re.findall(r"```yaml\n(.*?)```", page, re.S) if "partitions:" in block)
    cluster, path = cluster_with(site, shown, nodes=2)
    gpus = cluster.submit("ada", ["--partition", "gpu"], "true")
    plain = cluster.submit("bob", [], "true")
    cluster.succeeds([gpus, plain])
    where = {job: cluster.job(job)["ranks"][0]["nodeName"] for job in (gpus, plain)}
    check(where == {gpus: "n1", plain: "n2"}, f"they ran on {where}")
    check(cluster.job(gpus)["spec"]["account"] == "physics", "ada's account is not physics")
    check(cluster.job(plain)["spec"]["timeLimit"] == "86400s", f"the default is {cluster.job(plain)['spec'].get('timeLimit')}")
    for user, flags, what in (("bob", ["--partition", "gpu"], "bob may not use 'gpu'"),
                              ("ada", ["--partition", "gpu", "--time-limit", "13h"], "the most for a job of partition gpu"),
                              ("ada", ["--account", "biology"], "there is no 'biology'"),
                              ("ada", ["--nproc-per-node", 513], "513 is more than 512"),
                              ("ada", ["--max-restarts", 21], "21 is more than 20")):
        said = refused(cluster, user, flags, "true")
        check(what in said, f"{flags}: {said}")
    said = json.loads(cluster.run("ada", "limits", "-o", "json")[1])
    check([scope["name"] for scope in said["scopes"]] == ["ada", "physics", "cpu", "gpu"], said)
    table = cluster.run("ada", "limits")[1]
    check("0 of 100" in table and "account physics" in table, table)

    # Quotas, and a change of them while the coordinator runs.
    path.write_text("limits: {running_jobs: 1, queued_jobs: 1}\n")
    os.kill(cluster.coordinator.pid, signal.SIGHUP)
    wait_until(lambda: cluster.events(kind="PolicyChanged"), 10, "an event says that the policy has changed")
    sleeping = cluster.submit("bob", [], "sleep", 100)
    waiting = cluster.submit("bob", [], "true")
    cluster.wait_state(sleeping, "RUNNING", 20)
    reason = cluster.job(waiting)["reason"]
    check("user bob runs 1 jobs, and its limit is 1" in reason, reason)
    said = refused(cluster, "bob", [], "true")
    check("has 1 jobs in the queue, the most that it may" in said, said)
    cluster.succeeds([cluster.submit("ada", [], "true")])
    path.write_text("limits: {running_jobs: two}\n")
    os.kill(cluster.coordinator.pid, signal.SIGHUP)
    wait_until(lambda: cluster.events(kind="PolicyRefused"), 10, "an event says that the policy is wrong")
    message = cluster.events(kind="PolicyRefused")[0]["message"]
    check("policy.yaml:1:24: limits.running_jobs: write a whole number" in message, message)
    path.write_text("limits: {running_jobs: 2}\n")
    os.kill(cluster.coordinator.pid, signal.SIGHUP)
    cluster.succeeds([waiting])
    cluster.run("bob", "cancel", "--now", sleeping)
    return "; ".join(["the policy of docs/operations.md: partitions, accounts, defaults and 5 refusals; quotas hold up bob and nobody else; "
                      "three reloads, one refused", scripts_of_the_docs(cluster, page), private_job(cluster), usage(cluster)])


def scripts_of_the_docs(cluster, page):
    """Arrays and dependencies: the page's blocks of a shell, as ada."""
    (cluster.site.directory / "prepare").write_text("#!/bin/sh\nexit 0\n")
    (cluster.site.directory / "prepare").chmod(0o755)
    (cluster.site.directory / "train").write_text("#!/bin/sh\nexit 0\n")
    (cluster.site.directory / "train").chmod(0o755)
    blocks = [re.sub(r"^  ", "", block, flags=re.M) for block in re.findall(r"```sh\n(.*?)```", page, re.S)
              if "--array" in block or "--after" in block]
    check(len(blocks) == 2, f"the page has {len(blocks)} such scripts")
    for block in blocks:
        code, out, err, _ = cluster.site.run(["bash", "-euc", 'meshrun() { "$MESHRUN" "$@"; }\n' + block], timeout=60,
                                             env={**cluster.env_of("ada"), "MESHRUN": str(meshrun())})
        check(code == 0, f"a script of the page exited {code}: {err.strip()[-300:]}")
        if "--array" in block:
            check(out.count("SUCCEEDED") == 4 and out.endswith("learning rate number 3\n"), out)
    array = cluster.submit("ada", ["--array", "0-7%2"], "sleep", 0.5).rpartition("_")[0]
    most, jobs = 0, []
    while not jobs or any(job["state"] not in ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED") for job in jobs):
        jobs = [job for job in json.loads(cluster.run("ada", "ps", "--all", "-o", "json")[1])["jobs"] if job.get("arrayId") == array]
        most = max(most, sum(job["state"] in ("JOB_STATE_RENDEZVOUS", "JOB_STATE_RUNNING", "JOB_STATE_QUIESCING") for job in jobs))
        time.sleep(0.02)
    check(len(jobs) == 8 and all(job["state"] == "JOB_STATE_SUCCEEDED" for job in jobs), f"{[job['state'] for job in jobs]}")
    # One look may miss that two run: their times tell.
    spans = [(at(job["startedAt"]), at(job["finishedAt"])) for job in jobs]
    together = max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans)
    check(most <= 2 and together == 2, f"{most} of the array were seen at a time, and {together} ran")
    return "the page's scripts of arrays and dependencies; 8 jobs of an array, 2 at a time"


def private_job(cluster):
    job_id = cluster.submit("ada", ["--private", "--env", "TOKEN=hush"], "sh", "-c", "echo hush; exit 3")
    cluster.run("ada", "wait", job_id)
    shown = [["describe", job_id], ["describe", job_id, "-o", "json"], ["ps", "--all", "-o", "json"], ["events", job_id], ["why", job_id],
             ["logs", job_id], ["usage", "--by", "job"]]
    for words in shown:
        for user, may in (("bob", False), ("ada", True), ("client", True)):
            code, out, err, _ = cluster.run(user, *words)
            check(may or "hush" not in out + err, f"bob sees it in {words[0]}: {out}{err}")
            check((code == 0) == (may or words[0] != "logs"), f"{user}: {words[0]} exited {code}: {err}")
    check("hush" in cluster.run("ada", "logs", job_id)[1], "ada does not see her own output")
    return f"a private job shows nothing in {len(shown)} commands of bob's"


def usage(cluster):
    job_id = cluster.submit("ada", ["--nproc-per-node", 2], "sleep", 1)
    cluster.succeeds([job_id])
    rows = list(csv.DictReader(cluster.run("ada", "usage", "--since", "1h", "-o", "csv")[1].splitlines()))
    ended = [job for job in json.loads(cluster.ask("ps", "--all", "-o", "json", "--limit", 1000))["jobs"] if "finishedAt" in job]
    check(sorted(row["job_id"] for row in rows) == sorted(job["jobId"] for job in ended), f"{len(rows)} records of {len(ended)} ended jobs")
    row = next(row for row in rows if row["job_id"] == job_id)
    [job] = (job for job in ended if job["jobId"] == job_id)
    submitted, finished = (datetime.datetime.fromisoformat(job[what]) for what in ("submittedAt", "finishedAt"))
    # A job that is placed at once holds its slots from its submission on; the csv rounds to milliseconds.
    held, at_most = float(row["cpu_seconds"]), 2 * (finished - submitted).total_seconds() + 0.001
    check(row["user"] == "ada" and 2 <= held <= at_most, f"{held} CPU seconds are counted of at most {at_most}: {row}")
    return f"{len(rows)} of {len(ended)} ended jobs in usage, 2 ranks for a second are {float(row['cpu_seconds']):.2f} CPU seconds"
