#!/usr/bin/env python3
"""Members of an etcd cluster on loopback, with TLS, for tests: started, killed, paused, started again.

As a module: Members(directory, tls). As a program, for tests in C++ (members.h): members.py DIRECTORY IN OUT COUNT CERT KEY CA
[FLAG ...] reads commands from the descriptor IN, a line of JSON each, and answers each with a line on OUT; the first answer says
that the members serve. It ends, and its members with it, when IN is closed.

No member outlives the thread that started it, however that ends.
"""

import ctypes
import json
import os
import pathlib
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

_PATIENCE = 60
_PR_SET_PDEATHSIG = 1


def free_ports(count):
    """Below those that the kernel gives to sockets which ask for any: nobody else gets one before it is taken."""
    first_given = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    bound = []
    for port in random.sample(range(min(10_000, first_given // 2), first_given), min(first_given // 4, 100 * count)):
        try:
            bound.append(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        if len(bound) == count:
            break
    ports = [one.getsockname()[1] for one in bound]
    for one in bound:
        one.close()
    if len(ports) < count:
        raise Failed(f"there are no {count} free ports below {first_given}")
    return ports


def _die_with_parent(parent, libc=ctypes.CDLL(None)):
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class Failed(Exception):
    """Members that do not serve, or a command of etcdctl that is refused."""


class Members:
    """tls: paths of a certificate for 127.0.0.1, its key, and the authority's certificate, which every member and client shows;
    None: plaintext. flags: beside our own, for each member."""

    def __init__(self, directory, tls, count=3, flags=()):
        if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
            raise Failed("there is no etcd here: apt-get install etcd-server etcd-client, or tools/setup")
        self.directory = pathlib.Path(directory)
        self.tls, self.count, self.flags, self.root = tls, count, list(flags), ()
        self.processes = [None] * count
        for attempt in range(5):
            ports = free_ports(2 * count)
            self.endpoints = [f"127.0.0.1:{port}" for port in ports[:count]]
            self._peers = [f"{self._scheme}://127.0.0.1:{port}" for port in ports[count:]]
            try:
                for member in range(count):
                    self.start(member)
                self.wait_serving()
                return
            except Failed:
                # Another process may have taken a port meanwhile.
                self.close()
                if attempt == 4:
                    raise
                for member in range(count):
                    shutil.rmtree(self._data(member), ignore_errors=True)

    @property
    def _scheme(self):
        return "https" if self.tls else "http"

    def _data(self, member):
        return self.directory / f"etcd{member}"

    def target(self, prefix="meshrun"):
        """As --state takes it."""
        return f"etcd://{','.join(self.endpoints)}/{prefix}"

    def start(self, member):
        """For the first time, or again with what it has on its disk."""
        client, peer = f"{self._scheme}://{self.endpoints[member]}", self._peers[member]
        words = ["etcd", "--name", f"etcd{member}", "--data-dir", self._data(member), "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", ",".join(f"etcd{i}={url}" for i, url in enumerate(self._peers)), "--logger", "zap",
                 "--log-outputs", "stderr", *self.flags]
        if self.tls:
            cert, key, ca = self.tls
            words += ["--client-cert-auth", "--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca, "--peer-client-cert-auth",
                      "--peer-cert-file", cert, "--peer-key-file", key, "--peer-trusted-ca-file", ca]
        parent = os.getpid()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._data(member).mkdir(mode=0o700, exist_ok=True)
        with open(self.directory / f"etcd{member}.log", "ab") as log:
            self.processes[member] = subprocess.Popen(
                [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=lambda: _die_with_parent(parent))

    def signal(self, member, number):
        os.kill(self.processes[member].pid, number)

    def kill(self, member):
        process = self.processes[member]
        process.kill()
        process.wait()

    def pause(self, member):
        self.signal(member, signal.SIGSTOP)

    def go_on(self, member):
        self.signal(member, signal.SIGCONT)

    def majority(self):
        """Members without which the others cannot serve: a leader of theirs is among them."""
        leader = self.leader()
        return [leader, *(i for i in range(self.count) if i != leader)][:self.count // 2 + 1]

    def want_users(self, user, password, prefix):
        """From now on etcd wants users: this one, whose role has its name and may do all below the prefix."""
        self.ctl("role", "add", user)
        self.grant(user, prefix)
        for name, secret, role in ((user, password, user), ("root", "root", "root")):
            self.ctl("user", "add", f"{name}:{secret}")
            self.ctl("user", "grant-role", name, role)
        self.ctl("auth", "enable")
        self.root = ("--user", "root:root")

    def grant(self, role, prefix):
        self.ctl("role", "grant-permission", role, "readwrite", "--prefix=true", f"{prefix}/")

    def revoke(self, role, prefix):
        self.ctl("role", "revoke-permission", role, "--prefix=true", f"{prefix}/")

    def set_password(self, user, password):
        self.ctl("user", "passwd", user, "--interactive=false", said=password + "\n")

    def ctl(self, *words, members=None, timeout=10, said=""):
        """What etcdctl writes; raises Failed. said: to its stdin."""
        asked = range(self.count) if members is None else members
        command = ["etcdctl", "--endpoints", ",".join(f"{self._scheme}://{self.endpoints[i]}" for i in asked)]
        if self.tls:
            command += [word for flag, file in zip(("--cert", "--key", "--cacert"), self.tls) for word in (flag, file)]
        command += self.root
        try:
            done = subprocess.run([str(word) for word in [*command, *words]], env=dict(os.environ, ETCDCTL_API="3"), timeout=timeout,
                                  capture_output=True, text=True, input=said, check=False)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"etcdctl {words[0]}: no answer for {timeout} s") from error
        if done.returncode:
            raise Failed(f"etcdctl {words[0]}: {done.stderr.strip()[-400:]}")
        return done.stdout

    def leader(self):
        """Its number, as soon as the members that run agree on one."""
        end = time.monotonic() + _PATIENCE
        while True:
            for member, process in enumerate(self.processes):
                if process is None or process.poll() is not None:
                    continue
                try:
                    status = json.loads(self.ctl("endpoint", "status", "-w", "json", members=[member], timeout=3))[0]["Status"]
                except (Failed, ValueError, IndexError):
                    continue
                if status.get("leader", 0) and status["leader"] == status["header"]["member_id"]:
                    return member
            if time.monotonic() > end:
                raise Failed("no member of etcd leads")
            time.sleep(0.05)

    def wait_serving(self):
        """Returns when a majority answers."""
        end = time.monotonic() + _PATIENCE
        while True:
            ended = [i for i, process in enumerate(self.processes) if process is not None and process.poll() is not None]
            if len(ended) > (self.count - 1) // 2:
                raise Failed(f"etcd has ended: {(self.directory / f'etcd{ended[0]}.log').read_text()[-600:]}")
            try:
                self.ctl("get", "anything", timeout=5)
                return
            except Failed:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def close(self):
        for process in self.processes:
            if process is not None and process.poll() is None:
                process.kill()
        for process in self.processes:
            if process is not None:
                process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _serve(directory, commands, answers, count, tls, flags):
    lines = queue.Queue()

    def read():
        with os.fdopen(commands) as stream:
            for line in stream:
                lines.put(json.loads(line))
        # The members end with us.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    answered = os.fdopen(answers, "w")

    def answer(**fields):
        answered.write(json.dumps(fields) + "\n")
        answered.flush()

    try:
        members = Members(directory, tls, count, flags)
    except Failed as error:
        answer(error=str(error))
        return
    answer(endpoints=members.endpoints)
    while True:
        command, *arguments = lines.get()
        try:
            answer(result=getattr(members, command)(*arguments))
        except (Failed, OSError) as error:
            answer(error=str(error))


if __name__ == "__main__":
    directory_, commands_, answers_, count_, cert_, key_, ca_, *flags_ = sys.argv[1:]
    _serve(directory_, int(commands_), int(answers_), int(count_), (cert_, key_, ca_) if ca_ else None, flags_)
