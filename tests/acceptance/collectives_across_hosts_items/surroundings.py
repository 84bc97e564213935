"""Where ranks run is seldom an empty machine: part of a core, several NUMA nodes, bridges of containers that lead nowhere."""

import contextlib
import os
import pathlib
import random
import re
import subprocess
import time
import types

from collectives_across_hosts_items.two_levels import by_env, even, run_ranks
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
NUMA_NODES = pathlib.Path("/sys/devices/system/node")
HALF = 0.5


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


def used(site, size):
    """What each rank has logged of what it uses, once: rows of key -> value."""
    rows = []
    for rank in range(size):
        said = (site.directory / f"rank-{rank}.log").read_text()
        lines = [line for line in said.splitlines() if ": ucx uses " in line]
        check(len(lines) == 1, f"rank {rank} has logged {len(lines)} times what ucx uses: {lines}")
        rows.append({key: value.strip('"') for key, value in re.findall(r'(\w+)=("[^"]*"|\S+)', lines[0])})
    return rows


def conformance(site, hosts, places, more):
    """Runs a sample of the collectives' suite on these ranks: results, in the soak run gradients and closed forms, too. Returns
    how many seconds it took."""
    binary(CONFORMANCE)
    started = time.monotonic()
    part = "results" if skip_soak() else "conformance"
    run_ranks(site, hosts, places, by_env, {"MESHRUN_BACKEND": "ucx", "MESHRUN_TEST_RANK_FUNCTION": part,
                                            "MESHRUN_TEST_SEED": random.randrange(2**32), **more}, CONFORMANCE)
    return time.monotonic() - started


def two_nodes(site):
    """A directory as Linux lists NUMA nodes: this process's first core is node 0's, the others are node 8's."""
    first, *others = sorted(os.sched_getaffinity(0))
    for node, cores in ((0, [first]), (8, others or [first + 1])):
        directory = site.directory / f"nodes/node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(",".join(map(str, cores)) + "\n")
    return site.directory / "nodes", first


def in_half_a_core(site):
    """Two ranks on one host in such a cgroup and on two NUMA nodes: one on a core of one node, the other on all cores."""
    processes, reason = make_cgroup(site, HALF)
    nodes, first = two_nodes(site)
    has_nodes = NUMA_NODES.is_dir()
    several = len(os.sched_getaffinity(0)) > 1
    enter = 'echo $$ > "$0"; ' + (f"mount --bind {nodes} {NUMA_NODES} && " if has_nodes else "") + 'exec "$@"'

    def on(place, command):
        pinned = ["taskset", "--cpu-list", str(first)] if place == "pinned" else []
        return ["unshare", "--mount", "sh", "-c", enter, str(processes or "/dev/null"), *pinned, *command]

    places = ("pinned", "free")
    seconds = conformance(site, types.SimpleNamespace(on=on, links=dict.fromkeys(places, "lo")), places,
                          {"MASTER_ADDR": "127.0.0.1", "UCX_NET_DEVICES": "lo"})
    for place, row in zip(places, used(site, len(places))):
        expected = {"interfaces": "those of UCX"}
        if processes:
            expected.update(cores=f"{HALF:g}", cpu_quota="true")
        if has_nodes:
            expected.update(numa_nodes="2", heap_node="0" if place == "pinned" or not several else "any")
        check(expected.items() <= row.items(), f"the log of a {place} rank has {row}, not {expected}")
    what = f"half a core and two NUMA nodes: conformance of two ranks in {seconds:.0f} s, each logs both once"
    if not has_nodes:
        what += "; no NUMA in this kernel"
    if not processes:
        return f"{what}; {reason}"
    return what if skip_soak() else f"{what}; {whole_suite_in(processes)}"


def whole_suite_in(processes):
    """The suite of conformance, its own launches of all worlds included, within that cgroup."""
    started = time.monotonic()
    done = subprocess.run(["sh", "-c", 'echo $$ > "$0" && exec "$@"', processes, binary(CONFORMANCE),
                           "--gtest_filter=Ucx/*"], capture_output=True, text=True, timeout=1500, stdin=subprocess.DEVNULL)
    ok = re.findall(r"^\[ +OK +\]", done.stdout, re.MULTILINE)
    check(done.returncode == 0 and ok, f"in half a core: exit code {done.returncode}, {len(ok)} tests passed: "
                                       f"{done.stdout[-400:]}")
    return f"{len(ok)} tests of conformance in half a core in {time.monotonic() - started:.0f} s"


def on_hosts_with_docker(site):
    hosts = Hosts(site, {"a": "node-a", "b": "node-b"}, "rank-zero")
    hosts.add_pair(SECOND)
    for host in "ab":
        for command in DOCKER:
            done = subprocess.run(hosts.on(host, command.split()), capture_output=True, text=True)
            if done.returncode:
                raise NotPermitted(f"{command}: {done.stderr.strip()}")
    first, places = hosts.links["a"], even(hosts, 4)

    def sent(run, interfaces, left_out):
        before = {name: hosts.sent(name) for name in (first, SECOND, "docker0")}
        result = run()
        for place, row in zip(places, used(site, len(places))):
            # A veth's end has another name on each host.
            names = row["interfaces"].replace(hosts.links[place], "mrt")
            check((set(names.split(",")), row["left_out"]) == (interfaces, left_out), f"the log on host {place} has {row}")
        return {name: (hosts.sent(name) - before[name]) / 2**20 for name in before}, result

    def crossing(more):
        rows = run_ranks(site, hosts, places, by_env, {"MESHRUN_BACKEND": "ucx", "MESHRUN_TEST_ROUNDS": 1, **more})
        check(len(rows) == 5 and all(row["right"] for row in rows), f"{more}: {rows}")

    def by_default(run):
        mebibytes, result = sent(run, {"mrt", SECOND}, "docker0")
        check(mebibytes["docker0"] < 1, f"docker0 sent {mebibytes['docker0']:.1f} MiB")
        return result

    seconds = by_default(lambda: conformance(site, hosts, places, {"MESHRUN_REDUCTION_ORDER": "rank"}))
    if not skip_soak():
        by_default(lambda: crossing({}))
    both, _ = sent(lambda: crossing({"MESHRUN_NET_DEVICES": f"mrt*,{SECOND}"}), {"mrt", SECOND}, "none")
    check(min(both[first], both[SECOND]) > 10, f"of two named interfaces they sent {both} MiB")
    alone, _ = sent(lambda: crossing({"MESHRUN_NET_DEVICES": SECOND}), {SECOND}, "none")
    check(alone[first] < 1 < alone[SECOND], f"of one named interface they sent {alone} MiB")
    hosts.remove()
    return (f"docker0 on both hosts is left out, and each rank logs that once; conformance on 2 x 2 ranks there in {seconds:.0f} s; "
            f"two interfaces that are named sent {both[first]:.0f} and {both[SECOND]:.0f} MiB, one sent all {alone[SECOND]:.0f}")


def run(site):
    if not skip_soak():
        tested(BASE, "NumaTest.*:SharedHeapTest.PagesLieOnTheOwnersNode:ChooseInterfacesTest.*:LeadsNowhereTest.*")
    try:
        interfaces = on_hosts_with_docker(site)
    except NotPermitted as reason:
        return not_applicable(f"no such namespaces here: {reason}")
    return passed(f"{interfaces}; {in_half_a_core(site)}; NUMA nodes are files of the tests, and the heap's policy is read back",
                  "all of conformance in half a core, gradients and 16 MiB on hosts with docker0" if skip_soak() else "")
