#!/usr/bin/env python3
"""Ranks run as the user who submitted their job, where the daemon is root and told so: what they reach then, and what not."""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from elastic_items.access import COORDINATOR, WORKER, daemon
from harness import binary, check, item, main, passed, skipped, wait_until

# Two users of every Debian that are not root.
USERS = {"nobody": 65534, "daemon": 1}

RANK = r"""#!/usr/bin/python3
import json, os, pathlib, socket, sys, time
out, forbidden = pathlib.Path(sys.argv[1]), sys.argv[2:]
said = {"ids": os.getresuid() + os.getresgid(), "groups": os.getgroups(), "home": os.environ["HOME"], "user": os.environ["USER"],
        "agent": os.environ["MESHRUN_AGENT"], "read": [], "listed": [], "connected": []}
for path in forbidden:
    try:
        if path.endswith(".sock"):
            socket.socket(socket.AF_UNIX).connect(path)
            said["connected"].append(path)
        elif os.path.isdir(path):
            os.listdir(path)
            said["listed"].append(path)
        else:
            open(path, "rb").read()
            said["read"].append(path)
    except OSError:
        pass
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
    s.sendto(b'{"step": 7}', os.environ["MESHRUN_REPORT"])
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(10)
    s.connect(os.environ["MESHRUN_AGENT"].removeprefix("unix:"))
    s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
    said["answered"] = len(s.recv(100)) > 0
with open("/dev/stderr", "a") as again:
    again.write("written through /dev/stderr\n")
pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": "what " + said["user"] + " wrote"}))
print(json.dumps(said), flush=True)
(out / said["user"]).touch()
while not (out / "end").exists():
    time.sleep(0.02)
sys.exit(3)
"""


def run(site):
    """(verdict, figures) of an item."""
    if os.geteuid() != 0:
        return skipped("needs root, to become another user")
    meshrun, state = binary("//client:meshrun"), site.directory
    state.chmod(0o755)
    out = state / "out"
    out.mkdir()
    out.chmod(0o777)

    def call(*words, ok=True):
        code, said, err, _ = site.run([meshrun, *words])
        check((code == 0) == ok, f"meshrun {' '.join(map(str, words))} exited {code}: {said}{err}")
        return said

    def tls(name):
        return [word for flag, file in (("cert", "tls.crt"), ("key", "tls.key"), ("ca", "ca.crt"))
                for word in (f"--tls-{flag}", state / name / file)]

    call("ca", "init", "--ca", state / "ca")
    wanted = {"head": ["--role", "coordinator"], "host": ["--role", "worker", "--node", "host"],
              "operator": ["--role", "operate", "--user", "root"],
              **{user: ["--role", "submit", "--user", user] for user in USERS}}
    for name, words in wanted.items():
        call("ca", "issue", "--ca", state / "ca", "--out", state / name, *words)
    _, ready = daemon(site, [binary(COORDINATOR), "--listen", "127.0.0.1:0", "--state-dir", state / "c", *tls("head")])
    at = ["--coordinator", ready["address"]]
    daemon(site, [binary(WORKER), *at, "--state-dir", state / "w", "--name", "host", "--run-as-submitter", *tls("host")])
    rank = site.script("rank", RANK)

    def submit(user, *forbidden):
        job = json.loads(call("submit", *at, *tls(user), "-o", "json", "--working-dir", out, "--", rank, out, *forbidden))
        return job.get("jobId") or job["job"]["jobId"]

    def describe(job):
        return json.loads(call("describe", *at, *tls("operator"), job, "-o", "json"))["job"]

    def said_by(user):
        """The rank writes it to a pipe, and its supervisor to the log, in its own time."""
        said = []

        def is_there():
            lines = call("logs", *at, *tls(user), jobs[user]).splitlines()
            said[:] = [json.loads(line[line.index("{"):]) for line in lines if line.endswith("}")]
            return said
        wait_until(is_there, 10, f"what the rank of {user} said is in its log")
        return said[0]

    jobs = {"nobody": submit("nobody")}
    wait_until(lambda: (out / "nobody").exists(), 30, "the first rank runs")
    first = said_by("nobody")
    check(first["ids"] == [USERS["nobody"]] * 3 + [65534] * 3 and 0 not in first["groups"], f"it runs as {first}")

    # What is the daemon's, and what is the first job's.
    forbidden = [state / "host/tls.key", state / "ca/ca.key", state / "c/state.sqlite", state / "w", state / "w/node.json",
                 *(path for path in (state / "w").rglob("*") if path.is_file() or path.suffix == ".sock"),
                 first["agent"].removeprefix("unix:"), pathlib.Path(first["agent"].removeprefix("unix:")).parent]
    jobs["daemon"] = submit("daemon", *forbidden)
    wait_until(lambda: (out / "daemon").exists(), 30, "the second rank runs")
    second = said_by("daemon")
    check(second["user"] == "daemon" and second["answered"] and first["answered"], f"it said {second}")
    for what in ("read", "listed", "connected"):
        check(not second[what], f"a rank {what} what is not its user's: {second[what]}")
    (out / "end").touch()
    for user, job in jobs.items():
        wait_until(lambda job=job: describe(job)["state"] == "JOB_STATE_FAILED", 30, f"{job} has ended")
        ended = describe(job)
        check(ended["submitter"] == user, f"{job} was submitted by {ended['submitter']}")
        failure = ended["failure"]["exit"]
        check(failure["errorMessage"] == f"what {user} wrote", f"its error file was not read: {failure}")
        check("written through /dev/stderr" in failure["lastLines"], f"its last lines are {failure['lastLines']}")
        check(ended["ranks"][0]["progress"]["step"] in (7, "7"), f"its report did not arrive: {ended['ranks'][0]}")
    # Whoever may not enter the directory of a program does not find it: root looks for nobody.
    home = state / "home"
    home.mkdir()
    (home / "rank").write_text("#!/bin/sh\nexit 0\n")
    (home / "rank").chmod(0o755)
    os.chown(home, USERS["nobody"], -1)
    home.chmod(0o700)
    for user, ends in (("nobody", "JOB_STATE_SUCCEEDED"), ("daemon", "JOB_STATE_FAILED")):
        said = call("submit", *at, *tls(user), "-o", "json", "--working-dir", out, "--", home / "rank")
        job = json.loads(said)["jobId"]
        wait_until(lambda job=job, ends=ends: describe(job)["state"] == ends, 30, f"the job of {user} is {ends}")
    check(describe(job)["failure"]["cause"] == "FAILURE_CAUSE_BAD_COMMAND", f"it was started: {describe(job)['failure']}")
    refused = submit("operator")
    wait_until(lambda: describe(refused)["state"] == "JOB_STATE_FAILED", 30, "root's job is refused")
    check("no rank runs as root" in json.dumps(describe(refused)), f"it says {describe(refused)['reason']}")
    return passed(f"ranks of {len(jobs)} users run as these, reach their agent, report and error file, and none of "
                  f"{len(forbidden)} files, directories and sockets of the daemon and of the other; root's job is refused")


if __name__ == "__main__":
    item(1, "ranks run as the submitter")(run)
    sys.exit(main(__doc__))
