"""Item 5: who asked for what. A script of changes and refusals, a killed coordinator in its middle, and what the audit says."""

import json
import os
import pwd
import signal

from harness import check, wait_until
from many_users_items.shared_cluster import SharedCluster

# google.rpc.Code
OK, NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION = 0, 5, 7, 9
JOBS = "/meshrun.v1.JobService/"
NODES = "/meshrun.v1.ClusterService/"


class Script:
    """Makes calls, and remembers what the audit must say of them: (actor, method, target, request, code)."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.expected = []

    def call(self, user, words, *record):
        code, out, err, _ = self.cluster.run(user, *words)
        check((code == 0) == (record[-1] == OK), f"{user}: meshrun {' '.join(map(str, words))} exited {code}: {err.strip()[-200:]}")
        self.expected.append((self.cluster.name_of(user), *record))
        return out

    def submit(self, user, flags, *command):
        words = ["submit", "-o", "json", "--working-dir", self.cluster.home(user), *flags, "--", *command]
        job = json.loads(self.call(user, words, "SubmitJob", None, "", OK))
        target = job.get("arrayId") or job["jobId"]
        size = len([flag for flag in flags if flag == "--array"]) and 3  # the one array here
        self.expected[-1] = (user, "SubmitJob", target, f"{size} jobs" if size else "", OK)
        return target


def records(cluster, *flags):
    return json.loads(cluster.ask("audit", "-o", "json", *flags)).get("records", [])


def said(record):
    return (record.get("actor", ""), record["method"], record.get("target", ""), record.get("request", ""), record.get("code", 0))


def of_a_script(site):
    policy = site.directory / "policy.yaml"
    policy.write_text("limits: {kill_grace: 1s}\n")
    file = site.directory / "audit.jsonl"
    cluster = SharedCluster(site, coordinator_flags=["--policy", policy, "--audit-file", file])
    cluster.issue("reader", "--role", "read", "--user", "reader")
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
    script.expected.append((pwd.getpwuid(os.getuid()).pw_name, "SetPolicy", "", "", OK))
    script.call("bob", ["cancel", "--now", runs], "CancelJob", runs, "now", OK)
    script.call("ada", ["cancel", sweep], "CancelJob", sweep, "", OK)
    # Reads, and a job that ends by itself, are no changes.
    for user in ("ada", "reader", "client"):
        for words in (["ps", "--all"], ["nodes"], ["events"], ["usage"], ["describe", held], ["limits"]):
            cluster.run(user, *words)

    found = records(cluster)
    changes = [record for record in found if record["method"] != "OpenSession"]
    for i, (record, wanted) in enumerate(zip(changes, script.expected)):
        check(said(record) == wanted, f"record {i} is {said(record)}, and not {wanted}")
    check(len(changes) == len(script.expected), f"{len(changes)} records of {len(script.expected)} calls: {[said(r) for r in changes]}")
    joins = [record.get("target") for record in found if record["method"] == "OpenSession"]
    check(joins == ["n1"], f"{joins} joined")
    sequences = [int(record["sequence"]) for record in found]
    check(sequences == list(range(1, len(found) + 1)), f"their numbers are {sequences}")
    for record in changes:
        if record["method"] == "SetPolicy":
            continue
        check(record.get("certificate") == cluster.serial(user_of(cluster, record["actor"])).lower().lstrip("0"),
              f"{record['actor']}'s certificate is {record.get('certificate')}")
        by_role_alone = record["method"].startswith("/")
        check(bool(record.get("peer")) != by_role_alone, f"{record['method']} came from '{record.get('peer', '')}'")

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    check([int(line["sequence"]) for line in lines] == sequences, f"the file has {[line['sequence'] for line in lines]}")
    check([(line["actor"], line["target"], line["code"]) for line in lines] ==
          [(record.get("actor", ""), record.get("target", ""), record.get("code", 0)) for record in found],
          "the file says something else than the audit")
    check(file.stat().st_mode & 0o777 == 0o600, f"the file has mode {file.stat().st_mode & 0o777:o}")
    events = cluster.events(kind="CancelRequested")
    check({(event["jobId"], event.get("actor")) for event in events} >= {(runs, "bob"), (sweep + "_0", "ada")}, events)
    refused = records(cluster, "--refused", "--user", "bob")
    check(len(refused) == 2, f"bob was refused {len(refused)} times")
    return (f"{len(changes)} changes and refusals, each once and in order, with actor and certificate, in the audit and in its file; "
            f"the coordinator was killed after {before} of them")


def user_of(cluster, actor):
    """Whose files have the certificate of this name."""
    return next(user for user in ("ada", "bob", "reader", "client") if cluster.name_of(user) == actor)
