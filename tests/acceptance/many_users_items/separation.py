"""Item 1: what one user's ranks can do to another's on the same host."""

import json
import pathlib

from harness import NotHere, check, wait_until
from many_users_items.faults import fault
from many_users_items.shared_cluster import SharedCluster

# Says where it runs, and leaves a result behind that everybody could read whom her home let in.
ADAS = 'id -un; umask 022; echo hush > result; echo "$$ $PPID $MESHRUN_AGENT $MESHRUN_REPORT" > where; exec sleep 600'
# Tries each, and says how that ends: "done", or the error's name.
PROBE = r"""#!/usr/bin/python3
import errno, json, os, socket, sys
rank, supervisor, agent, report, *files = sys.argv[1:]

def outcome(action, *arguments):
    try:
        action(*arguments)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]

def connect(path, kind):
    with socket.socket(socket.AF_UNIX, kind) as s:
        s.connect(path)

def read(path):
    with open(path, "rb") as file:
        file.read(1)

print(json.dumps({
    "signal the rank": outcome(os.kill, int(rank), 0), "read its environment": outcome(read, f"/proc/{rank}/environ"),
    "signal its supervisor": outcome(os.kill, int(supervisor), 0),
    "connect to its agent": outcome(connect, agent.removeprefix("unix:"), socket.SOCK_STREAM),
    "report for it": outcome(connect, report, socket.SOCK_DGRAM), "list jobs' sockets": outcome(os.listdir, "/run/meshrun-ranks"),
    "read": {path: outcome(read, path) for path in files}}))
"""


@fault("bob's ranks reach for ada's")
def other_users_ranks(site):
    cluster = SharedCluster(site)
    if not cluster.users:
        raise NotHere(cluster.why_one_user)
    cluster.add("n1")
    adas = cluster.submit("ada", [], "sh", "-c", ADAS)
    where = cluster.home("ada") / "where"
    wait_until(lambda: where.exists() and where.read_text().endswith("\n"), 20, "ada's rank runs")
    rank, supervisor, *sockets = where.read_text().split()
    wait_until(lambda: cluster.run("ada", "logs", adas)[1] == "ada\n", 10, "ada's rank says who it is")
    ids = pathlib.Path(f"/proc/{rank}/status").read_text().split("Uid:")[1].split()[:4]
    check(set(ids) == {str(cluster.users.uids["ada"])}, f"ada's rank has the user ids {ids}")

    result, state = cluster.home("ada") / "result", site.directory / "n1"
    of_the_daemon = [path for path in state.rglob("*") if path.is_file()]
    logs = [path for path in of_the_daemon if path.read_bytes() == b"ada\n"]
    check(logs, "no file of the worker has ada's output")
    keys = [cluster.certificates / name / "tls.key" for name in ("ada", "n1", "head")]
    files = [result, *of_the_daemon, *keys, cluster.certificates / "ca/ca.key", cluster.state / "state.sqlite"]
    probe = site.script("probe", PROBE)

    def said_by(user):
        job = cluster.submit(user, [], probe, rank, supervisor, *sockets, *files)
        cluster.succeeds([job])
        # A supervisor writes the log in its own time.
        wait_until(lambda: cluster.run(user, "logs", job)[1].endswith("}\n"), 10, f"the rank of {user} says what it could do")
        return json.loads(cluster.run(user, "logs", job)[1])

    bobs, hers = said_by("bob"), said_by("ada")
    refused = {"signal the rank": "EPERM", "read its environment": "EACCES", "signal its supervisor": "EPERM",
               "connect to its agent": "EACCES", "report for it": "EACCES", "list jobs' sockets": "EACCES"}
    check({what: bobs[what] for what in refused} == refused, f"bob's rank: {bobs}")
    check(set(bobs["read"].values()) == {"EACCES"}, f"bob's rank reads {[path for path in bobs['read'] if bobs['read'][path] == 'done']}")
    # Another rank of hers may what a user's processes may, and no more.
    allowed = {"signal the rank", "read its environment", "connect to its agent", "report for it"}
    check({what for what in refused if hers[what] == "done"} == allowed, f"ada's rank: {hers}")
    check([path for path in hers["read"] if hers["read"][path] == "done"] == [str(result)], f"ada's rank reads {hers['read']}")
    cluster.run("ada", "cancel", "--now", adas)
    return ("they run as the local users ada and bob; his signals nothing of hers, connects to none of her sockets and reads none of "
            f"{len(files)} files (her result and output, the daemon's, keys)")
