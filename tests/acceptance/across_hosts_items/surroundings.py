"""Where ranks run is seldom an empty machine: part of a core, several NUMA nodes, bridges of containers that lead nowhere."""

import contextlib
import os
import pathlib
import re
import subprocess
import time

from across_hosts_items.two_levels import by_env, even, run_ranks
from harness import binary, check, not_applicable, passed, skip_soak
from namespaces import Hosts, NotPermitted
from programs import tested

CONFORMANCE = "//tests/parallel/collectives/conformance:conformance_test"
BASE = "//tests/parallel/base:base_test"
PERIOD = 100000  # microseconds
# As Docker makes it: up, with the same address on every host, and with the end of a pair as its port.
DOCKER = ("ip link add docker0 type bridge", "ip address add 172.17.0.1/16 dev docker0", "ip link set docker0 up",
          "ip link add veth-in type veth peer name veth-out", "ip link set veth-out master docker0 up",
          "ip link set veth-in up")
SECOND = "second"


def make_cgroup(site, cores):
    """A cgroup with this quota: its file for the numbers of processes, or why there is none."""
    name = f"meshrun-test-{os.getpid()}"
    try:
        if pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists():
            root = pathlib.Path("/sys/fs/cgroup")
            (root / "cgroup.subtree_control").write_text("+cpu")
            (root / name).mkdir()
            (root / name / "cpu.max").write_text(f"{int(cores * PERIOD)} {PERIOD}")
        else:
            root = pathlib.Path("/sys/fs/cgroup/cpu")
            (root / name).mkdir()
            (root / name / "cpu.cfs_quota_us").write_text(str(int(cores * PERIOD)))
    except OSError as error:
        return None, f"no cgroup with a quota can be made here: {error}"

    def remove():
        with contextlib.suppress(OSError):
            (root / name).rmdir()

    site.cleanup.callback(remove)
    return root / name / "cgroup.procs", ""


def in_half_a_core(site):
    processes, reason = make_cgroup(site, 0.5)
    if not processes:
        return reason
    # The small messages of two ranks, then of all worlds.
    chosen = "Ucx/*" if not skip_soak() else "Ucx/CollectivesConformanceTest.*Computes/2"
    started = time.monotonic()
    done = subprocess.run(["sh", "-c", 'echo $$ > "$0" && exec "$@"', processes, binary(CONFORMANCE),
                           f"--gtest_filter={chosen}"], capture_output=True, text=True, timeout=1500,
                          stdin=subprocess.DEVNULL)
    ok = re.findall(r"^\[ +OK +\]", done.stdout, re.MULTILINE)
    check(done.returncode == 0 and ok, f"in half a core: exit code {done.returncode}, {len(ok)} tests passed: "
                                       f"{done.stdout[-400:]}")
    return f"half a core: {len(ok)} tests of conformance in {time.monotonic() - started:.0f} s"


def lines_of(site, size):
    """What all ranks wrote of interfaces."""
    return [line for rank in range(size) for line in (site.directory / f"rank-{rank}.log").read_text().splitlines()
            if "interfaces between hosts" in line]


def on_hosts_with_docker(site):
    hosts = Hosts(site, {"a": "node-a", "b": "node-b"}, "rank-zero")
    hosts.add_pair(SECOND)
    for host in "ab":
        for command in DOCKER:
            done = subprocess.run(hosts.on(host, command.split()), capture_output=True, text=True)
            if done.returncode:
                raise NotPermitted(f"{command}: {done.stderr.strip()}")
    first = hosts.links["a"]

    def sent(more):
        before = {name: hosts.sent(name) for name in (first, SECOND, "docker0")}
        rows = run_ranks(site, hosts, even(hosts, 4), by_env, {"MESHRUN_BACKEND": "ucx", **more})
        check(len(rows) == 5 and all(row["right"] for row in rows), f"{more}: {rows}")
        return {name: (hosts.sent(name) - before[name]) / 2**20 for name in before}

    by_default = sent({})
    said = lines_of(site, 4)
    check(len(said) == 1 and "left_out=docker0" in said[0], f"the log has {said}")
    check(by_default["docker0"] < 1, f"docker0 sent {by_default['docker0']:.1f} MiB")
    both = sent({"MESHRUN_NET_DEVICES": f"mrt*,{SECOND}"})
    check(min(both[first], both[SECOND]) > 10, f"of two named interfaces they sent {both} MiB")
    alone = sent({"MESHRUN_NET_DEVICES": SECOND})
    check(alone[first] < 1 < alone[SECOND], f"of one named interface they sent {alone} MiB")
    hosts.remove()
    return (f"docker0 on both hosts is left out, which the log has once; two interfaces that are named sent {both[first]:.0f} "
            f"and {both[SECOND]:.0f} MiB, one sent all {alone[SECOND]:.0f}")


def run(site):
    tested(BASE, "NumaTest.*:SharedHeapTest.PagesLieOnTheOwnersNode:ChooseInterfacesTest.*:LeadsNowhereTest.*")
    try:
        interfaces = on_hosts_with_docker(site)
    except NotPermitted as reason:
        return not_applicable(f"no such namespaces here: {reason}")
    return passed(f"{interfaces}; {in_half_a_core(site)}; NUMA nodes are files of the tests, and the heap's policy is read back",
                  "all tests of conformance in half a core" if skip_soak() else "")
