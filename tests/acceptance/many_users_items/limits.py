"""Items 1 and 3: what a job may use of a host, and that it ends."""

import json
import os
import pathlib
import random
import time

from clusters import kill
from harness import NotHere, alive, check, lenient, wait_until
from many_users_items.faults import fault
from many_users_items.local_users import why_not
from many_users_items.shared_cluster import SharedCluster
from programs import tested

MIB = 1 << 20
# Touches so many bytes, and says how far it came.
EATER = """#!/usr/bin/python3
import sys
held = []
for step in range(int(sys.argv[1])):
    held.append(bytearray(16 << 20))
    print(16 * (step + 1), "MiB", flush=True)
"""
# A process of another session, without an environment, whose supervisor dies. A rank of another user cannot kill it, and says which one
# it is.
ESCAPE = "setsid env -i sleep {seconds} & sleep 0.2; kill -9 $PPID || {{ echo $PPID > supervisor.$$; mv supervisor.$$ supervisor; }}; sleep 1000"
# Its child is of a session of its own and ends by no signal that can be caught.
STUBBORN = "trap '' TERM; while :; do sleep 1; done"
FORKS = """#!/usr/bin/python3
import os, time
for _ in range(100):
    if os.fork() == 0:
        time.sleep(100)
"""
# Eight processes, for 2 s.
SPIN = """#!/usr/bin/python3
import os, time
for _ in range(3): os.fork()
until = time.monotonic() + 2
while time.monotonic() < until: pass
time.sleep(0.2)
os.write(1, b'cpu %f\\n' % sum(os.times()[:4]))
"""
# A GPU that no host has: the driver, where there is one, has no device of this number.
GPU = "/dev/nvidia250"
# For a mount namespace: /dev with a few nodes of the host's, and one that is ours.
DEVICES = """
mkdir -p {0}; mount -t tmpfs -o mode=755 tmpfs {0}; mkdir {0}/shm
for name in null zero full random urandom tty; do touch {0}/$name; mount --bind /dev/$name {0}/$name; done
mount --bind /dev/shm {0}/shm; ln -s /proc/self/fd {0}/fd; ln -s fd/0 {0}/stdin; ln -s fd/1 {0}/stdout; ln -s fd/2 {0}/stderr
mknod -m 666 {0}/nvidia250 c 195 250; mount --rbind {0} /dev
"""
# Says how opening each ends: "done", or the error's name.
OPENS = """#!/usr/bin/python3
import errno, os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDONLY))
        print("done")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def needs(cluster, name, limit):
    """The host's limits, as `nodes` tells them."""
    limits = cluster.node(name)["resources"].get("limits", [])
    if limit not in limits:
        raise NotHere(f"no cgroup here for {limit}")
    return limits


def cgroups_of(cluster):
    """Directories of jobs' cgroups that are left."""
    jobs = {job["jobId"] for job in json.loads(cluster.ask("ps", "-a", "-o", "json")).get("jobs", [])}
    found = []
    for top, directories, _ in os.walk("/sys/fs/cgroup"):
        found += [os.path.join(top, name) for name in directories
                  if name.startswith("meshrun-") and any(job in name for job in jobs)]
    return found


@fault("a job that uses more than its --memory")
def too_much_memory(site):
    cluster = SharedCluster(site)
    for name in ("n1", "n2", "n3"):
        cluster.add(name)
    needs(cluster, "n1", "memory")
    eater = site.script("eater", EATER)
    jobs = {restarts: cluster.submit("ada", ["--memory", "500MiB", "--max-restarts", restarts], eater, 200) for restarts in (0, 3)}
    most = 0
    for restarts, job_id in jobs.items():
        code, _, _, _ = cluster.run("ada", "wait", job_id)
        job = cluster.job(job_id)
        check(code == 1 and job.get("restarts", 0) == restarts, f"exit code {code} after {job.get('restarts')} restarts")
        message = job["failure"]["message"]
        check("killed for memory: the 500.0 MiB of the job on this host" in message, message)
        check(not cluster.events(job_id, "NodeAvoided"), "the job goes from host to host")
        most = max([most, *(int(line.split()[-2]) for line in cluster.run("ada", "logs", job_id)[1].splitlines() if line.endswith(" MiB"))])
    check(400 < most <= 500, f"it had {most} MiB")
    check(all(cluster.node(name)["state"] == "NODE_STATE_HEALTHY" for name in ("n1", "n2", "n3")), "a host is blamed")
    # Without a limit of its own it may have all that the host offers, and the next job is not concerned.
    cluster.succeeds([cluster.submit("ada", [], eater, 40)])
    check(not cgroups_of(cluster), f"left are {cgroups_of(cluster)}")
    return f"killed at {most} MiB of 500, with its sentence, and no host is blamed for it"


def escape(site, *flags):
    cluster = SharedCluster(site)
    cluster.add("n1", *flags)
    seconds = random.randrange(10**5, 10**6)
    began = time.monotonic()
    first = cluster.submit("bob", ["--nproc-per-node", 4], "sh", "-c", ESCAPE.format(seconds=seconds))
    # In the queue until all slots are free.
    second = cluster.submit("ada", ["--nproc-per-node", 4], "sh", "-c", f"pgrep -x -f 'sleep {seconds}' && exit 1; exit 0")
    if cluster.users:
        supervisor = cluster.home("bob") / "supervisor"
        wait_until(supervisor.exists, 20, "bob's ranks may not kill their supervisor")
        kill(int(supervisor.read_text().split()[0]))
    cluster.run("bob", "wait", first)
    cluster.succeeds([second])
    took = time.monotonic() - began
    check(not alive(f"sleep {seconds}"), "the process is still there")
    more = ", and no rank of bob may kill its supervisor" if cluster.users else ""
    return f"{took:.1f} s until the next job had ended on its slots{more}"


@fault("a process that leaves its session and kills its supervisor")
def escape_with_cgroups(site):
    return escape(site)


@fault("the same where there are no cgroups")
def escape_without_cgroups(site):
    return escape(site, "--limits", "none")


@fault("--now, after a grace that has begun")
def now_means_now(site):
    cluster = SharedCluster(site)
    cluster.add("n1")
    job_id = cluster.submit("ada", ["--kill-grace", "50m"], "sh", "-c", STUBBORN)
    cluster.wait_state(job_id, "RUNNING", 20)
    time.sleep(0.3)
    cluster.run("ada", "cancel", job_id)
    began = time.monotonic()
    cluster.run("ada", "cancel", "--now", job_id)
    code, _, _, _ = cluster.run("ada", "wait", job_id)
    took = time.monotonic() - began
    check(took < lenient(5), f"it took {took:.1f} s, and ended with {code}")
    return f"{took:.2f} s"


def forks(cluster):
    job_id = cluster.submit("ada", [], cluster.site.script("forks", FORKS))
    cluster.run("ada", "wait", job_id)
    job = cluster.job(job_id)
    message = job["failure"]["message"] if "failure" in job else job["state"]
    check("a fork was refused: the 32 processes and threads" in message, message)
    return "a fork beyond 32 processes is refused, and said"


def quota(cluster):
    job_id = cluster.submit("ada", ["--cpus-per-proc", 1], cluster.site.script("spin", SPIN))
    cluster.succeeds([job_id])
    used = sum(float(line.split()[-1]) for line in cluster.run("ada", "logs", job_id)[1].splitlines() if "cpu " in line)
    check(used < 2.6, f"eight processes with a quota of one core used {used:.1f} s in 2 s")
    return f"eight spinning processes with a quota of one core used {used:.2f} s of it in 2 s"


def devices(cluster, before, no_devices):
    """A job that has no GPU opens one, on a host that holds it to its own, and on one that holds it to nothing."""
    if no_devices:
        raise NotHere(no_devices)
    cluster.add("n2", "--limits", "none", "--label", "free", before=before)
    opens = cluster.site.script("opens", OPENS)
    said = {}
    for label in ("held", "free"):
        job_id = cluster.submit("ada", ["--constraint", label], opens, "/dev/null", GPU)
        cluster.succeeds([job_id])
        said[label] = cluster.run("ada", "logs", job_id)[1].split()
    if said["free"][1] in ("EPERM", "EACCES"):
        raise NotHere("this machine itself lets nobody open such a device")
    check(said["free"][0] == said["held"][0] == "done", f"/dev/null: {said}")
    check(said["held"][1] == "EPERM", f"{GPU} of another: {said}")
    return f"a GPU that is not the job's is EPERM ({said['free'][1]} where jobs are held to nothing: there is none)"


def held(site):
    """Item 3: memory is in item 1; processes, cores and devices. Returns (figures, limits that cannot be had here)."""
    figures = []
    cluster = SharedCluster(site)
    before = DEVICES.format(site.directory / "dev")
    if no_devices := why_not(before):
        before = ""
    cluster.add("n1", "--pids-per-rank", 32, "--limits", "memory,cpu,cpu-quota,pids,devices", "--label", "held", before=before)
    limits = cluster.node("n1")["resources"].get("limits", [])
    if "pids" in limits:
        figures.append(forks(cluster))
    if "cpu-quota" in limits:
        figures.append(quota(cluster))
    missing = {"memory", "cpu", "cpu-quota", "pids", "devices"} - set(limits)
    if "devices" in limits:
        try:
            figures.append(devices(cluster, before, no_devices))
        except NotHere as reason:
            figures.append(f"no device is opened: {reason}")
            missing.add("devices")
    check(not cgroups_of(cluster), f"left are {cgroups_of(cluster)}")
    figures.append(f"this host's kernel holds {', '.join(limits) or 'nothing'} ({version()})")
    return figures, sorted(missing)


def version():
    """How this process's own groups are mounted."""
    mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    kinds = {line.split(" - ")[1].split()[0] for line in mounts if " - cgroup" in line}
    names = {"cgroup": "cgroups of version 1", "cgroup2": "of version 2"}
    return " and ".join(names[kind] for kind in sorted(kinds)) or "no cgroups"


def in_files():
    """What the kernel's files of either version are told, in trees of files; and the kernel's own answers once more."""
    ok, _ = tested("//tests/worker:cgroups_test", "*")
    trees = [name for name in ok if name.startswith("CgroupsInFilesTest.")]
    older = [name for name in trees if "Version1" in name or "Container" in name]
    return (f"cgroups_test: {len(ok)} tests, of them {len(trees) - len(older)} in a tree of files of version 2 and {len(older)} in one of "
            "version 1")
