"""Item 5: who asked for what. A script of changes and refusals, a killed coordinator in its middle, and what the audit says."""

import base64
import json
import os
import pwd
import signal
import typing

from harness import check, wait_until
from many_users_items.shared_cluster import SharedCluster

# google.rpc.Code
OK, INVALID_ARGUMENT, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNAUTHENTICATED = 0, 3, 7, 8, 9, 16
JOBS = "/meshrun.v1.JobService/"
NODES = "/meshrun.v1.ClusterService/"


class Record(typing.NamedTuple):
    """What the audit must say of a call."""

    actor: str
    certificate: str
    peer: str
    method: str
    target: str
    request: str
    code: int
    # Part of the error's text.
    message: str = ""


class Script:
    """Makes calls, and remembers what the audit must say of each."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.expected = []

    def expect(self, user, method, target, request, code, message=""):
        # gRPC does not tell where a call comes from that the roles, or the deny list, alone refuse.
        peer = "" if method.startswith("/") else "ipv4:127.0.0.1"
        serial = self.cluster.serial(user).lower().lstrip("0")
        self.expected.append(Record(self.cluster.name_of(user), serial, peer, method, target, request, code, message))

    def call(self, user, words, *expected):
        code, out, err, _ = self.cluster.run(user, *words)
        self.expect(user, *expected)
        should = self.expected[-1].code == OK
        check((code == 0) == should, f"{user}: meshrun {' '.join(map(str, words))} exited {code}: {err.strip()[-200:]}")
        return out

    def submit(self, user, flags, *command):
        words = ["submit", "-o", "json", "--working-dir", self.cluster.home(user), *flags, "--", *command]
        job = json.loads(self.call(user, words, "SubmitJob", "", "", OK))
        target = job.get("arrayId") or job["jobId"]
        # There is one array here.
        self.expected[-1] = self.expected[-1]._replace(target=target, request="3 jobs" if "--array" in flags else "")
        return target


def records(cluster, *flags):
    return json.loads(cluster.ask("audit", "-o", "json", *flags)).get("records", [])


def said(record):
    peer = record.get("peer", "").rpartition(":")[0] or record.get("peer", "")
    return Record(record.get("actor", ""), record.get("certificate", ""), peer, record["method"], record.get("target", ""),
                  record.get("request", ""), record.get("code", 0), record.get("message", ""))


def of_a_script(site):
    policy = site.directory / "policy.yaml"
    policy.write_text("limits: {kill_grace: 1s, time_limit: {max: 1h}, ranks: 8}\nusers: {eve: {limits: {queued_jobs: 1}}}\n")
    file = site.directory / "audit.jsonl"
    cluster = SharedCluster(site, coordinator_flags=["--policy", policy, "--audit-file", file])
    cluster.issue("reader", "--role", "read", "--user", "reader")
    cluster.issue("eve", "--role", "submit", "--user", "eve")
    cluster.add("n1")
    script = Script(cluster)

    held = script.submit("ada", ["--hold"], "true")
    sweep = script.submit("ada", ["--array", "0-2", "--hold"], "true")
    script.call("bob", ["cancel", held], "CancelJob", held, "", PERMISSION_DENIED)
    script.call("bob", ["cancel", "--now", sweep], "CancelJob", sweep, "now", PERMISSION_DENIED)
    script.call("reader", ["submit", "--", "true"], JOBS + "SubmitJob", "", "", PERMISSION_DENIED)
    script.call("ada", ["drain", "n1"], NODES + "DrainNode", "", "", PERMISSION_DENIED)
    script.call("ada", ["audit"], NODES + "ListAudit", "", "", PERMISSION_DENIED)
    script.call("ada", ["priority", "--set", 5, held], "UpdateJob", held, "priority 5", PERMISSION_DENIED)
    script.call("client", ["priority", "--set", 5, held], "UpdateJob", held, "priority 5", OK)
    # By the policy: what a job may ask for, and how many may wait.
    script.call("bob", ["submit", "--nproc-per-node", 9, "--", "true"],
                "SubmitJob", "true", "", INVALID_ARGUMENT, "ranks: 9 is more than 8")
    script.call("bob", ["submit", "--time-limit", "2h", "--array", "0-2", "--", "true"],
                "SubmitJob", "true", "3 jobs", INVALID_ARGUMENT, "time_limit: 2h is more than 1h")
    eves = script.submit("eve", ["--hold"], "true")
    script.call("eve", ["submit", "--", "true"], "SubmitJob", "true", "", RESOURCE_EXHAUSTED, "eve has 1 jobs in the queue")
    denied = denied_and_renewed(script)
    script.call("eve", ["cancel", eves], "CancelJob", eves, "", OK)
    runs = script.submit("bob", [], "sh", "-c", "trap : USR1; while :; do sleep 1; done")
    cluster.wait_state(runs, "RUNNING", 20)
    before = len(script.expected)

    # Whatever was answered is there after a crash, once.
    address = site.env["MESHRUN_COORDINATOR"]
    cluster.kill_coordinator()
    cluster.start_coordinator(address=address)
    wait_until(lambda: cluster.node("n1").get("state") == "NODE_STATE_HEALTHY", 20, "n1 is back")
    script.call("ada", ["release", held], "UpdateJob", held, "release", OK)
    cluster.succeeds([held])
    script.call("bob", ["signal", runs, "USR1"], "SignalJob", runs, "SIGUSR1", OK)
    script.call("client", ["drain", "n1", "--reason", "a new disk"], "DrainNode", "n1", "", OK)
    script.call("client", ["undrain", "n1"], "UndrainNode", "n1", "", OK)
    script.call("client", ["node", "rm", "n1"], "RemoveNode", "n1", "", FAILED_PRECONDITION)
    policy.write_text("limits: {kill_grace: 2s}\n")
    os.kill(cluster.coordinator.pid, signal.SIGHUP)
    wait_until(lambda: cluster.events(kind="PolicyChanged"), 10, "the policy is read again")
    # By the user that the coordinator runs as.
    script.expected.append(Record(pwd.getpwuid(os.getuid()).pw_name, "", "signal", "SetPolicy", "", "", OK))
    script.call("bob", ["cancel", "--now", runs], "CancelJob", runs, "now", OK)
    script.call("ada", ["cancel", sweep], "CancelJob", sweep, "", OK)
    # Reads, and a job that ends by itself, are no changes.
    for user in ("ada", "reader", "client"):
        for words in (["ps", "--all"], ["nodes"], ["events"], ["usage"], ["describe", held], ["limits"]):
            cluster.run(user, *words)

    found = records(cluster)
    changes = [record for record in found if record["method"] != "OpenSession"]
    for i, (record, wanted) in enumerate(zip(changes, script.expected)):
        found_here = said(record)
        check(found_here._replace(message="") == wanted._replace(message="") and wanted.message in found_here.message,
              f"record {i} is {found_here}, and not {wanted}")
    check(len(changes) == len(script.expected), f"{len(changes)} records of {len(script.expected)} calls: {[said(r) for r in changes]}")
    joins = [record.get("target") for record in found if record["method"] == "OpenSession"]
    check(joins == ["n1"], f"{joins} joined")
    sequences = [int(record["sequence"]) for record in found]
    check(sequences == list(range(1, len(found) + 1)), f"their numbers are {sequences}")

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    check([int(line["sequence"]) for line in lines] == sequences, f"the file has {[line['sequence'] for line in lines]}")
    check([said(line) for line in lines] == [said(record) for record in found], "the file says something else than the audit")
    check(file.stat().st_mode & 0o777 == 0o600, f"the file has mode {file.stat().st_mode & 0o777:o}")
    events = cluster.events(kind="CancelRequested")
    check({(event["jobId"], event.get("actor")) for event in events} >= {(runs, "bob"), (sweep + "_0", "ada")}, events)
    refused = [said(record) for record in records(cluster, "--refused", "--user", "bob")]
    check(refused == [said(record) for record in changes if record["actor"] == "bob" and record.get("code", 0) != OK], f"bob's: {refused}")
    by_policy = sum(record.code in (INVALID_ARGUMENT, RESOURCE_EXHAUSTED) for record in script.expected)
    return (f"{len(changes)} changes and refusals, each once and in order, with actor, certificate, peer, target and result, in the audit "
            f"and in its file; {by_policy} refused by the policy, {denied} by the deny list; the coordinator was killed after {before}")


def denied_and_renewed(script):
    """Eve's certificate is denied by its number: her calls are refused until she has another. Returns how many were."""
    cluster = script.cluster
    log = cluster.site.directory / "daemons.log"
    spec = {"name": "true", "command": [base64.b64encode(b"true").decode()]}
    serial = cluster.serial("eve").lower().lstrip("0")
    cluster.deny(serial)
    wait_until(lambda: "the deny list was read serials=1" in log.read_text(), 10, "the coordinator reads the deny list")
    # Two calls, and not two commands: a command first asks what the cluster is, and repeats that over a new connection.
    methods = {"SubmitJob": {"spec": spec}, "ListJobs": {}}
    for (method, _), answer in zip(methods.items(), cluster.calls("eve", methods.items())):
        check(answer["code"] == UNAUTHENTICATED, f"{method} with a denied certificate: {answer}")
        script.expect("eve", JOBS + method, "", "", UNAUTHENTICATED, f"serial {serial}, is on the deny list")
    cluster.ask("ca", "renew", "--ca", cluster.certificates / "ca", cluster.certificates / "eve")
    return len(methods)
