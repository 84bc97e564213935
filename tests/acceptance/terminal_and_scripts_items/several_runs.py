"""Item 7: two `meshrun run --nnodes 2` in two network namespaces, by torchrun's flags: a Gloo DDP program gets the parameters
that it gets under torchrun, and a stranger without the secret gets in nowhere."""

import pathlib
import re
import subprocess
import sys

from harness import ROOT, binary, check, meshrun, not_applicable, passed, skip_soak, wait_until
from namespaces import Namespaces, NotPermitted

sys.path.append(str(ROOT / "tests/soak"))
from environments import DDP, TORCH, Missing, environment, packages

PORT = 29517
SCRIPT = pathlib.Path(__file__).with_name("ddp.py")


class Pair:
    """One launcher on each host. What both have said, by host."""

    def __init__(self, site, hosts):
        self.site, self.hosts, self.count = site, hosts, 0

    def start(self, host, command, env=None):
        self.count += 1
        path = self.site.directory / f"said-{self.count}"
        with open(path, "w") as output:
            process = self.site.start(self.hosts.on(host, command),
                                      {"GLOO_SOCKET_IFNAME": self.hosts.links[host], "MESHRUN_BACKEND": "gloo",
                                       "OMP_NUM_THREADS": "1", **(env or {})}, stdout=output, stderr=subprocess.STDOUT)
        return process, path

    def end(self, started, what):
        texts = []
        for process, path in started:
            code = process.wait(timeout=180)
            text = path.read_text()
            check(code == 0, f"{what} exited {code}: {text[-500:]}")
            texts.append(text)
        return texts


def flags(hosts, node, procs=2):
    """As torchrun has them, and in its spelling with underscores."""
    return ["--nnodes=2", f"--node_rank={node}", f"--nproc_per_node={procs}", f"--master_addr={hosts.addresses['a']}",
            f"--master_port={PORT}"]


def secret_of(path):
    wait_until(lambda: "MESHRUN_RDZV_SECRET=" in path.read_text(), 20, "node 0 prints the secret")
    return re.search(r"MESHRUN_RDZV_SECRET=(\S+)", path.read_text())[1]


def by_meshrun(pair, program):
    first = pair.start("a", [meshrun(), "run", *flags(pair.hosts, 0), *program])
    secret = secret_of(first[1])
    second = pair.start("b", [meshrun(), "run", *flags(pair.hosts, 1), *program], {"MESHRUN_RDZV_SECRET": secret})
    return pair.end([first, second], "meshrun run")


def by_hand(pair, program):
    """Each rank by its variables alone: the reference where no torchrun is."""
    started = []
    for rank in range(4):
        env = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": rank // 2,
               "MASTER_ADDR": pair.hosts.addresses["a"], "MASTER_PORT": PORT + 1}
        started.append(pair.start("ab"[rank // 2], program, {name: str(value) for name, value in env.items()}))
    return pair.end(started, "a rank by hand")


def by_torchrun(pair, torchrun, program):
    return pair.end([pair.start(host, [torchrun, *flags(pair.hosts, node), *program]) for node, host in enumerate("ab")],
                    "torchrun")


def refused(pair, site):
    """What strangers on host b get while node 0 waits."""
    first, said = pair.start("a", [meshrun(), "run", *flags(pair.hosts, 0, 1), "sleep", "60"])
    secret_of(said)
    asked = [meshrun(), "run", *flags(pair.hosts, 1, 1), "sleep", "60"]

    def ask(env, words):
        code, _, err, seconds = site.run(pair.hosts.on("b", asked), env=env)
        check(code == 2 and words in err and err.count("\n") <= 2, f"a stranger ended with {code}: {err}")
        return seconds

    ask({}, "this node needs the secret")
    # The secret of another run.
    other, other_said = pair.start("b", [meshrun(), "run", "--nnodes=2", "--node_rank=0", f"--master_addr={pair.hosts.addresses['b']}",
                                         f"--master_port={PORT}", "sleep", "60"])
    seconds = ask({"MESHRUN_RDZV_SECRET": secret_of(other_said)}, "do not accept each other")
    other.terminate()
    # Without a certificate, and in plaintext.
    address = f"{pair.hosts.addresses['a']}:{PORT}"
    code, _, err, _ = site.run(pair.hosts.on("b", [meshrun(), "ps", "--coordinator", address, *pair_of_own(site)]))
    check(code == 75, f"ps with certificates of one's own exited {code}: {err}")
    code, _, err, _ = site.run(pair.hosts.on("b", [meshrun(), "ps", "--coordinator", address]))
    check(code == 2 and "plaintext is refused" in err, f"ps in plaintext exited {code}: {err}")
    greeting = ("import socket\n"
                f"s = socket.create_connection(('{pair.hosts.addresses['a']}', {PORT}), 5)\n"
                "s.settimeout(5)\ns.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n')\n"
                "print(len(b''.join(iter(lambda: s.recv(4096), b''))))\n")
    code, out, err, _ = site.run(pair.hosts.on("b", ["python3", "-c", greeting]))
    check(code == 0 and int(out) < 64 or "reset" in err.lower(), f"plaintext got {out} bytes: {err}")
    check(first.poll() is None, "node 0 ended with a stranger")
    first.terminate()
    check(first.wait(timeout=20) == 143, f"node 0 ended with {first.returncode}: {said.read_text()}")
    return seconds


def pair_of_own(site):
    """Certificates of an authority that the stranger has made."""
    place = site.directory / "stranger"
    for words in (["init", "--ca", place], ["issue", "--ca", place, "--role", "operate", "--out", place / "own"]):
        code, _, err, _ = site.run([meshrun(), "ca", *words])
        check(code == 0, err)
    return ["--tls-cert", place / "own/tls.crt", "--tls-key", place / "own/tls.key", "--tls-ca", place / "own/ca.crt"]


def parameters(texts, pattern, count):
    found = re.findall(pattern, "".join(texts))
    check(len(found) == count and len(set(found)) == 1, f"{len(found)} of {count}, {set(found)}: {texts}")
    return found[0]


def run(site):
    try:
        hosts = Namespaces(site)
    except NotPermitted as reason:
        return not_applicable(f"no such namespaces here: {reason}")
    site.env.pop("MESHRUN_RDZV_SECRET", None)
    pair = Pair(site, hosts)
    seconds = refused(pair, site)
    strangers = f"strangers are refused, the one with another secret after {seconds:.1f} s"
    program, pattern = [binary("//jobs/ddp_recipe:ddp_recipe")], r"ddp_recipe: (\d+ steps on 4 rank.*)"
    ours = by_meshrun(pair, program)
    check("ddp_recipe" in ours[0] and "ddp_recipe" not in ours[1], f"each host shows its own ranks: {ours}")
    result = parameters(ours, pattern, 1)
    check(parameters(by_hand(pair, program), pattern, 1) == result, f"by hand it is not {result}")
    figures = f"ddp_recipe on 2 x 2 ranks as by hand: {result}"
    if skip_soak():
        return passed(f"{figures}; {strangers}", "the Python script, against torchrun")
    try:
        tools = environment(TORCH)
        site.env["PYTHONPATH"] = str(packages(DDP))
    except Missing as missing:
        return not_applicable(str(missing))
    pattern = r"rank \d of 4 on node \d: parameters (\w+)"
    theirs = by_torchrun(pair, tools / "torchrun", [SCRIPT])
    digest = parameters(theirs, pattern, 4)
    ours = by_meshrun(pair, [tools / "python", SCRIPT])
    check(parameters(ours, pattern, 4) == digest, f"torchrun's {digest}: {ours}")
    for node in (0, 1):
        check(len(re.findall(f"on node {node}", ours[node])) == 2, f"node {node} shows {ours[node]}")
    return passed(f"{figures}; ddp.py as under torchrun: {digest}; {strangers}")
