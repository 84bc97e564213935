#!/usr/bin/env python3
"""Item 8: what another local user gets of a control plane, its agents and its state.

It plays three parties: root, whose clusters are attacked; `nobody`, who tries everything that a local user can; and
a squatter, who waits where root's programs might call. The site's directory is open to all, so that only what
meshrun makes itself keeps nobody out. Needs root, to become another user.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT, binary, check, item, lenient, main, make_certificates, passed, skipped, wait_until

NOBODY = 65534
OLD_PORT = 7480
# What no reader may find.
SECRET = "a-secret-of-root"
PROGRAMS = {"meshrun": "//client:meshrun", "meshrun-coordinator": "//coordinator:meshrun-coordinator",
            "meshrun-worker": "//worker:meshrun-worker"}

# Run as nobody. Reads {"sockets": [...], "ports": [...], "paths": [...], "directories": [...]}, tries each, and prints what
# it got.
INTRUDER = r"""
import errno, json, os, socket, ssl, stat, sys
asked = json.load(sys.stdin)
got = {"connected": [], "answered": [], "read": [], "listed": [], "bound": [], "refusals": {}}

def refused(error):
    name = errno.errorcode.get(error.errno, str(error))
    got["refusals"][name] = got["refusals"].get(name, 0) + 1

for path in asked["sockets"]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as s:
            s.settimeout(5)
            try:
                s.connect(path)
                got["connected"].append(path)
            except OSError as error:
                refused(error)
                if error.errno not in (errno.EACCES, errno.ECONNREFUSED, errno.ENOENT, errno.EPROTOTYPE):
                    got["connected"].append(f"{path}: {error}")

# The client's side of HTTP/2, and a request without a certificate.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.set_alpn_protocols(["h2"])
for port in asked["ports"]:
    for secure in (False, True):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
                plain.settimeout(5)
                s = context.wrap_socket(plain) if secure else plain
                s.sendall(PREFACE)
                answer = s.recv(1 << 16)
                # A TLS alert is a refusal; a frame of HTTP/2 is not.
                if answer and answer[0] != 0x15:
                    got["answered"].append([port, secure, answer[:40].hex()])
                else:
                    got["refusals"]["no answer"] = got["refusals"].get("no answer", 0) + 1
        except ssl.SSLError as error:
            got["refusals"]["TLS"] = got["refusals"].get("TLS", 0) + 1
        except OSError as error:
            refused(error)

for path in asked["paths"]:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
        got["read"].append(path)
    except OSError as error:
        refused(error)
for path in asked["directories"]:
    try:
        os.listdir(path)
        got["listed"].append(path)
    except OSError as error:
        refused(error)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        try:
            s.bind(path + "/squatted.sock")
            got["bound"].append(path)
        except OSError as error:
            refused(error)
print(json.dumps(got))
"""

# Run as nobody: listens at a port and at Unix sockets that everybody can open, and says for each line read how many have
# connected.
SQUATTER = r"""
import os, selectors, socket, sys
port, *paths = sys.argv[1:]
listeners, visits = selectors.DefaultSelector(), 0
os.umask(0)
for path in paths:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.bind(path)
    s.listen()
    listeners.register(s, selectors.EVENT_READ)
if port != "0":
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", int(port)))
    s.listen()
    listeners.register(s, selectors.EVENT_READ)
listeners.register(sys.stdin, selectors.EVENT_READ)
print("listens", flush=True)
while True:
    for key, _ in listeners.select():
        if key.fileobj is sys.stdin:
            if not sys.stdin.readline():
                sys.exit()
            print(visits, flush=True)
        else:
            connection, _ = key.fileobj.accept()
            visits += 1
"""


def as_nobody(command):
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", *map(str, command)]


def intrude(asked):
    done = subprocess.run(as_nobody([sys.executable, "-I", "-c", INTRUDER]), input=json.dumps(asked), cwd="/",
                          capture_output=True, text=True, timeout=120)
    check(done.returncode == 0, f"the intruder itself failed: {done.stderr}")
    return json.loads(done.stdout)


class Squatter:
    def __init__(self, site, port, paths):
        self.process = site.start(as_nobody([sys.executable, "-I", "-c", SQUATTER, port, *paths]), bufsize=1)
        check(self.process.stdout.readline() == "listens\n", "the squatter could not listen")

    def visits(self):
        self.process.stdin.write("how many\n")
        return int(self.process.stdout.readline())


def start_with_pipes(site):
    """site.start gives no pipes; the squatter is asked through them."""
    start = site.start

    def started(command, **options):
        process = subprocess.Popen([str(c) for c in command], cwd="/", text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, start_new_session=True, **options)

        def end():
            process.kill()
            process.wait()

        site.cleanup.callback(end)
        return process

    site.start = started
    return start


def install(site):
    """The three programs where nobody can run them."""
    directory = site.directory / "bin"
    directory.mkdir(mode=0o755)
    for name, label in PROGRAMS.items():
        shutil.copy(binary(label), directory / name)
        (directory / name).chmod(0o755)
    return {name: str(directory / name) for name in PROGRAMS}


def family(*roots):
    """The processes below these, and they themselves."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, todo = set(), list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(children.get(pid, []))
    return found


def sockets_of(pids):
    """Unix paths and TCP ports that these processes have bound; and their abstract sockets, which have no permissions."""
    inodes = set()
    for pid in pids:
        for fd in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd))
                if match:
                    inodes.add(match[1])
    paths, abstract, ports = set(), set(), set()
    for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[6] in inodes:
            (abstract if fields[7].startswith("@") else paths).add(fields[7])
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in inodes and fields[3] == "0A":
                    ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return paths, abstract, ports


def below(*roots):
    """(files, directories) under these, the roots among them."""
    files, directories = [], []
    for root in map(pathlib.Path, roots):
        if root.is_dir():
            directories.append(str(root))
            # Runs of others remove theirs meanwhile: os.walk goes past what is no more.
            for folder, inner, others in os.walk(root):
                for path in (os.path.join(folder, name) for name in inner + others):
                    (directories if os.path.isdir(path) and not os.path.islink(path) else files).append(path)
        elif root.exists():
            files.append(str(root))
    return files, directories


def daemon(site, command, env):
    read_end, write_end = os.pipe()
    process = subprocess.Popen([*map(str, command), "--ready-fd", str(write_end)], env=env, pass_fds=[write_end],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=open(site.directory / "daemons.log", "a"), start_new_session=True)

    def end():
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        process.kill()
        process.wait()

    site.cleanup.callback(end)
    os.close(write_end)
    with os.fdopen(read_end) as ready:
        line = ready.readline()
    check(line, f"{command[0]} did not start; its log ends: {site.log_tail()}")
    return process, json.loads(line)


def call(command, env, timeout=90, user=None):
    """(exit code, stdout, stderr, seconds)."""
    started = time.monotonic()
    done = subprocess.run(as_nobody(command) if user == NOBODY else [str(c) for c in command], env=env, cwd="/",
                          capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr, time.monotonic() - started


def started(site, programs, env):
    """Root's clusters: dev up with a job, an unconfigured coordinator and worker, `meshrun run`, and one with TLS. Returns
    their processes, the state's roots, and the port of the one with TLS."""
    meshrun = programs["meshrun"]
    before = set(pathlib.Path("/tmp").glob("meshrun-*"))
    code, out, err, _ = call([meshrun, "dev", "up", "--workers", "2"], env)
    check(code == 0, f"dev up exited {code}: {err}")
    site.cleanup.callback(lambda: call([meshrun, "dev", "down"], env, timeout=60))
    check("unix:" in out and "127.0.0.1" not in out, f"dev up does not listen on a Unix socket: {out}")
    rank = site.script("rank", f"#!/bin/sh\necho {SECRET}\ntouch {site.directory}/up.$1.$RANK\nexec sleep 600\n")
    code, _, err, _ = call([meshrun, "submit", "--nodes", "2", "--procs-per-node", "1", "--env", f"KEY={SECRET}", "--",
                            rank, "dev"], env)
    check(code == 0, f"root's own submit exited {code}: {err}")

    # What nobody configured. HOME alone says where; a host with /run/user/0 has it there.
    plain = {name: value for name, value in env.items() if not name.startswith("XDG_")}
    coordinator, ready = daemon(site, [programs["meshrun-coordinator"], "--state-dir", site.directory / "c"], plain)
    check(ready["address"].startswith("unix:"), f"an unconfigured coordinator listens on {ready['address']}")
    worker, _ = daemon(site, [programs["meshrun-worker"], "--state-dir", site.directory / "w"], plain)
    code, _, err, _ = call([meshrun, "submit", "--", rank, "plain"], plain)
    check(code == 0, f"submit to the unconfigured coordinator exited {code}: {err}")

    run = subprocess.Popen([meshrun, "run", "--", rank, "run"], env=env, cwd="/", stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    site.cleanup.callback(lambda: (run.kill(), run.wait()))

    certificates = site.directory / "certificates"
    make_certificates(certificates)
    flags = [word for name, file in (("cert", "tls.crt"), ("key", "tls.key"), ("ca", "ca.crt"))
             for word in (f"--tls-{name}", str(certificates / "coordinator" / file))]
    service, secure = daemon(site, [programs["meshrun-coordinator"], "--listen", "127.0.0.1:0", "--state-dir",
                                    site.directory / "service", *flags], plain)
    wait_until(lambda: all((site.directory / f"up.{name}").exists() for name in ("dev.0", "dev.1", "plain.0", "run.0")),
               30, "the ranks run")
    status = json.loads(call([meshrun, "dev", "status", "-o", "json"], env)[1])
    roots = [coordinator.pid, worker.pid, run.pid, service.pid, status["coordinator"]["pid"],
             *(w["pid"] for w in status["workers"])]
    new = set(pathlib.Path("/tmp").glob("meshrun-*")) - before
    # Runs of others may have begun meanwhile, and go at any moment.
    named = b""
    for pid in family(*roots):
        with contextlib.suppress(OSError):
            named += pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    new = {path for path in new if not path.name.startswith("meshrun-run.") or bytes(path) in named}
    state = [site.directory / "state/meshrun", site.directory / "c", site.directory / "w", site.directory / "service",
             site.directory / "home/.local/state/meshrun", pathlib.Path("/run/user/0/meshrun"),
             *new]
    return roots, state, int(secure["address"].rsplit(":", 1)[1]), ready["address"], status["address"]


def attack_commands(programs, env, tls_port, *addresses):
    """What a user tries first. Returns how many ways were refused."""
    meshrun = programs["meshrun"]
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    ways = [(clean, []), (env, [])]
    ways += [(clean, ["--coordinator", address]) for address in addresses]
    ways += [(clean, ["--insecure-loopback", "--coordinator", f"127.0.0.1:{port}"]) for port in (OLD_PORT, tls_port)]
    for variables, flags in ways:
        code, out, err, seconds = call([meshrun, "submit", "--follow", *flags, "--", "id"], variables, user=NOBODY)
        what = f"submit {' '.join(flags)} as nobody"
        check(code != 0 and "uid=" not in out + err, f"{what} exited {code}: {out}{err}")
        check(seconds < lenient(8), f"{what} took {seconds:.1f} s")
        check(len(err.strip().splitlines()) <= 2, f"{what} said {err}")
    return len(ways)


def squat(site, programs, env):
    """A squatter waits at the old port and at paths that root's programs are told of, or would choose. Returns how many of root's
    commands went past it."""
    open_to_all = site.directory / "shared"
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    squatted = open_to_all / "meshrun/coordinator.sock"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = OLD_PORT
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", OLD_PORT))
            port = 0
    # Somebody else's program has the port: it squats well enough, and is not asked.
    squatter = Squatter(site, OLD_PORT if port == 0 else 0, [squatted])
    lonely = {"PATH": os.environ["PATH"], "HOME": str(site.directory / "lonely"),
              "XDG_STATE_HOME": str(site.directory / "lonely/state")}
    # Its default must not be the running one: a runtime directory of its own, and empty.
    (site.directory / "lonely/run").mkdir(parents=True)
    (site.directory / "lonely/run").chmod(0o700)
    lonely["XDG_RUNTIME_DIR"] = str(site.directory / "lonely/run")
    default = [programs["meshrun"], "ps"]
    code, out, err, seconds = call(default, lonely)
    check(code == 75 and "no coordinator is running at unix:" in err and "dev up" in err, f"ps exited {code}: {out}{err}")
    check(seconds < 5, f"ps took {seconds:.1f} s to find that there is no coordinator")
    for command in ([programs["meshrun"], "ps", "--coordinator", f"unix:{squatted}"],
                    [programs["meshrun"], "submit", "--coordinator", f"unix:{squatted}", "--", "id"],
                    [programs["meshrun"], "ps", "--coordinator", f"127.0.0.1:{OLD_PORT}"],
                    [programs["meshrun-worker"], "--state-dir", site.directory / "ws", "--coordinator", f"unix:{squatted}"],
                    [programs["meshrun-worker"], "--state-dir", site.directory / "ws", "--coordinator",
                     f"127.0.0.1:{OLD_PORT}"],
                    [programs["meshrun-coordinator"], "--ephemeral", "--listen", f"unix:{squatted.parent}/other.sock"],
                    [programs["meshrun-coordinator"], "--ephemeral", "--listen", "127.0.0.1:0"]):
        code, out, err, _ = call(command, lonely)
        check(code == 2, f"{' '.join(map(str, command))} exited {code}: {out}{err}")
        check("belongs to user 65534" in err or "plaintext is refused" in err, f"{' '.join(map(str, command))} said {err}")
    # With no coordinator, a worker of no flags waits at its own place, and asks nobody else.
    worker = subprocess.Popen([programs["meshrun-worker"], "--state-dir", str(site.directory / "ws")], env=lonely,
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    site.cleanup.callback(lambda: (worker.kill(), worker.wait()))
    check("trying again" in worker.stderr.readline(), "a worker without a coordinator said nothing")
    place = site.directory / "lonely/run/meshrun"
    check((place.stat().st_mode & 0o7777, place.stat().st_uid) == (0o700, 0), f"{place} is not root's alone")
    # The short directory for long paths lies in /tmp, where anybody may have been first.
    long_state = site.directory / ("x" * 110)
    del lonely["XDG_RUNTIME_DIR"]
    places = lambda: {path for path in pathlib.Path("/tmp").glob("meshrun-0-*") if path.is_dir()}
    # Other clusters of this user's may have some.
    before = places()
    code, _, err, _ = call([programs["meshrun"], "dev", "up"], dict(lonely, XDG_STATE_HOME=str(long_state)), timeout=60)
    short = places() - before
    call([programs["meshrun"], "dev", "down", "--purge"], dict(lonely, XDG_STATE_HOME=str(long_state)), timeout=60)
    check(code == 0 and short, f"dev up below a long path exited {code}: {err}")
    for path in short:
        shutil.rmtree(path)
    taken = Squatter(site, 0, [path / "coordinator.sock" for path in short])
    site.cleanup.callback(lambda: [shutil.rmtree(path, ignore_errors=True) for path in short])
    code, _, err, _ = call([programs["meshrun"], "dev", "up"], dict(lonely, XDG_STATE_HOME=str(long_state)), timeout=60)
    check(code != 0 and "belongs to user 65534" in err, f"dev up in a squatted directory exited {code}: {err}")
    visits = squatter.visits() + taken.visits()
    check(visits == 0, f"the squatter was called {visits} times")
    return 9


def hub_turns_away_strangers():
    """The listener that ranks open themselves, without meshrun: its own test plays the strangers."""
    test = binary("//tests/parallel/comm/ucx:engine_test")
    done = subprocess.run([test, "--gtest_filter=HubWatchTest.StrangersAreTurnedAway"], cwd="/", capture_output=True,
                          text=True, timeout=120, env=dict(os.environ, UCX_MEM_EVENTS="n"))
    check(done.returncode == 0 and "[  PASSED  ] 1 test." in done.stdout, f"the hub: {done.stdout[-500:]}{done.stderr[-200:]}")


def run(site):
    """(verdict, figures) of an item."""
    if os.geteuid() != 0:
        return skipped("needs root, to become another user")
    if not shutil.which("setpriv"):
        return skipped("needs setpriv (util-linux)")
    site.directory.chmod(0o755)
    for name in ("state", "home"):
        (site.directory / name).mkdir(mode=0o755)
    programs = install(site)
    env = {"PATH": os.environ["PATH"], "HOME": str(site.directory / "home"),
           "XDG_STATE_HOME": str(site.directory / "state")}
    start_with_pipes(site)
    roots, state, tls_port, *addresses = started(site, programs, env)

    pids = family(*roots)
    paths, abstract, ports = sockets_of(pids)
    check(not abstract, f"sockets without permissions: {abstract}")
    check(ports == {tls_port}, f"listens at TCP ports {ports}, and only the coordinator with TLS may, at {tls_port}")
    kinds = {kind: sum(path.endswith(kind) for path in paths)
             for kind in ("coordinator.sock", "c.sock", "sup.sock", "agent.sock")}
    check(kinds["agent.sock"] >= 8 and kinds["coordinator.sock"] >= 2 and kinds["sup.sock"] >= 4,
          f"found {kinds}: not every socket was looked at")
    files, directories = below(*state)
    check(any(SECRET in pathlib.Path(f).read_text(errors="replace") for f in files if pathlib.Path(f).is_file()),
          "the state that was looked at does not hold the ranks' output")
    got = intrude({"sockets": sorted(paths), "ports": sorted(ports | {OLD_PORT}), "paths": files, "directories": directories})
    for what in ("connected", "answered", "read", "listed", "bound"):
        check(not got[what], f"nobody {what}: {got[what][:5]}")
    for pid in pids:
        with contextlib.suppress(OSError):
            line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            check("MESHRUN_TOKEN" not in line, f"a token stands in the command line of {pid}, which everybody can read")
    commands = attack_commands(programs, env, tls_port, *addresses)
    avoided = squat(site, programs, env)
    hub_turns_away_strangers()

    listed = (ROOT / "docs/security.md").read_text()
    for listener in ("TCPStore", "hub", "UCX", "NCCL", "Gloo"):
        check(listener in listed, f"docs/security.md does not list {listener}")
    refusals = ", ".join(f"{count} {name}" for name, count in sorted(got["refusals"].items()))
    return passed(f"nobody tried {len(paths)} Unix sockets, {len(ports) + 1} ports, {len(files)} files and "
                  f"{len(directories)} directories of {len(pids)} processes: {refusals}; {commands} submits refused; "
                  f"{avoided} of root's commands past a squatter, who was called by none; the hub drops callers without the token")


if __name__ == "__main__":
    item(8, "another local user")(run)
    sys.exit(main(__doc__))
