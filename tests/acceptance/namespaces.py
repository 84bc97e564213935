"""Several hosts in one: network namespaces, two joined by a veth pair, more by a switch. Either with a coordinator and two
workers in them, with TLS; or, as Hosts, with a name, /etc/hosts, /dev/shm and IPC of their own."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from harness import binary, check, make_certificates, meshrun, wait_until

# Subnets that no machine is likely to be in.
SUBNET = "10.213.117"
SECOND_SUBNET = "10.213.118"


class NotPermitted(Exception):
    """This user, or this machine, may not make them."""


class Namespaces:
    """Host "a" has the coordinator and a worker, host "b" a worker. Gone with the site. delays: seconds that packets from and
    to a host take more, of more than two hosts."""

    def __init__(self, site, hosts="ab", delays=None):
        if os.geteuid() != 0:
            raise NotPermitted("only root makes them")
        if not shutil.which("ip"):
            raise NotPermitted("the command ip is missing: apt-get install iproute2")
        self.site = site
        self.hosts = list(hosts)
        self.names = {host: f"meshrun-test-{os.getpid()}-{host}" for host in self.hosts}
        self.addresses = {host: f"{SUBNET}.{number}" for number, host in enumerate(self.hosts, 1)}
        # An interface's name has at most 15 bytes.
        self.links = {host: f"mrt{host}{os.getpid() % 1000000}" for host in self.hosts}
        self.is_removed = False
        self.switch = f"meshrun-test-{os.getpid()}-switch" if len(self.hosts) > 2 else None
        for name in (*self.names.values(), *filter(None, [self.switch])):
            self._ip("netns", "add", name)
        site.cleanup.callback(self.remove)
        if self.switch:
            self._connect_to_switch(delays or {})
        else:
            self._ip("link", "add", self.links["a"], "netns", self.names["a"], "type", "veth", "peer", "name",
                     self.links["b"], "netns", self.names["b"])
        for host in self.hosts:
            inside = ["-n", self.names[host]]
            self._ip(*inside, "address", "add", f"{self.addresses[host]}/24", "dev", self.links[host])
            self._ip(*inside, "link", "set", self.links[host], "up")
            self._ip(*inside, "link", "set", "lo", "up")
        # The kernel tells of a carrier up to a second late, and UCX leaves out an interface that does not run yet.
        wait_until(lambda: all(self._interface(host, "carrier") == "1" for host in self.hosts), 10, "all links run")
        wait_until(lambda: all(self.state(host) in ("up", "unknown") for host in self.hosts), 10, "all links are up")

    def _connect_to_switch(self, delays):
        self._ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        self._ip("-n", self.switch, "link", "set", "switch", "up")
        for host in self.hosts:
            port = f"port-{host}"
            if host in delays:
                script = pathlib.Path(__file__).parent / "collectives_across_hosts_items/delayed_link.py"
                link = self.site.start([sys.executable, script, self.names[host], self.links[host], self.switch, port,
                                        delays[host]], stdout=subprocess.PIPE)
                if link.stdout.readline() != "ready\n":
                    raise NotPermitted("/dev/net/tun cannot be used here")
                # Frames wait there while the link's process has no core; what is lost is sent twice.
                self._ip("-n", self.names[host], "link", "set", self.links[host], "txqueuelen", "20000")
                self._ip("-n", self.switch, "link", "set", port, "txqueuelen", "20000")
            else:
                self._ip("link", "add", self.links[host], "netns", self.names[host], "type", "veth", "peer", "name", port,
                         "netns", self.switch)
            self._ip("-n", self.switch, "link", "set", port, "master", "switch", "up")

    def add_pair(self, name):
        """A second way between hosts "a" and "b", called so on both."""
        self._ip("link", "add", name, "netns", self.names["a"], "type", "veth", "peer", "name", name, "netns", self.names["b"])
        for number, host in enumerate("ab", 1):
            self._ip("-n", self.names[host], "address", "add", f"{SECOND_SUBNET}.{number}/24", "dev", name)
            self._ip("-n", self.names[host], "link", "set", name, "up")
        wait_until(lambda: all(self._interface(host, "operstate", name) == "up" for host in "ab"), 10, f"{name} runs")

    def remove(self):
        """Before the end of the site, to make others of its kind."""
        if not self.is_removed:
            self.is_removed = True
            for name in (*self.names.values(), *filter(None, [self.switch])):
                self._ip("netns", "del", name)

    @staticmethod
    def _ip(*words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode:
            raise NotPermitted(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def on(self, host, command):
        """A command, to be run on that host."""
        return ["ip", "netns", "exec", self.names[host], *command]

    def start_cluster(self):
        certificates = self.site.directory / "tls"
        make_certificates(certificates, self.addresses["a"])

        def tls(role):
            place = certificates / role
            return ["--tls-cert", place / "tls.crt", "--tls-key", place / "tls.key", "--tls-ca", place / "ca.crt"]

        self.client_tls = tls("client")
        _, ready = self.site.daemon(self.on("a", [
            binary("//coordinator:meshrun-coordinator"), "--listen", f"{self.addresses['a']}:0", "--state-dir",
            self.site.directory / "coordinator", *tls("coordinator")]))
        self.coordinator = ready["address"]
        for host in "ab":
            self.site.daemon(self.on(host, [
                binary("//worker:meshrun-worker"), "--coordinator", self.coordinator, "--state-dir",
                self.site.directory / host, "--name", host, "--slots", 8, *tls("worker")]))
        wait_until(lambda: self.run(["nodes"])[1].count("HEALTHY") == 2, 20, "two workers across the namespaces")

    def run(self, words, timeout=60):
        """A meshrun command on host a."""
        return self.site.run(self.on("a", [meshrun(), *words[:1], "--coordinator", self.coordinator, *self.client_tls,
                                           *words[1:]]), timeout=timeout)

    def submit(self, words, timeout):
        return self.run(["submit", "--follow", *words], timeout=timeout)

    def state(self, host):
        """State of the host's end of the pair: up, down, unknown."""
        return self._interface(host, "operstate")

    def bytes_between(self):
        """Sent and received so far by host a."""
        return sum(int(self._interface("a", f"statistics/{way}_bytes")) for way in ("rx", "tx"))

    def sent(self, interface):
        """Bytes, so far, by host a."""
        return int(self._interface("a", "statistics/tx_bytes", interface))

    def _interface(self, host, name, interface=None):
        path = f"/sys/class/net/{interface or self.links[host]}/{name}"
        done = subprocess.run(self.on(host, ["cat", path]), capture_output=True, text=True, check=True)
        return done.stdout.strip()


class Hosts(Namespaces):
    """Hosts as Debian and Ubuntu install them: each has its own name at 127.0.1.1. `names` are the hosts' names; other
    hosts find host "a" as `master`, which on host "a" itself leads to 127.0.1.1, too."""

    def __init__(self, site, names, master, delays=None):
        self.keepers = {}
        super().__init__(site, names, delays)
        for command in ("unshare", "nsenter", "hostname"):
            if not shutil.which(command):
                raise NotPermitted(f"the command {command} is missing")
        for host in self.hosts:
            lines = ["127.0.0.1 localhost", f"127.0.1.1 {names[host]}"]
            lines.append(f"{'127.0.1.1' if host == 'a' else self.addresses['a']} {master}")
            # c10d's store asks for the names of its clients; no resolver answers here.
            lines += [f"{self.addresses[other]} link-{other}" for other in self.hosts]
            hosts = site.directory / f"hosts-{host}"
            hosts.write_text("\n".join(lines) + "\n")
            # It holds the namespaces of the host.
            keeper = site.start(
                ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "--ipc", "--mount", "sh", "-c",
                 f"hostname {names[host]} && mount --bind {hosts} /etc/hosts && mount -t tmpfs tmpfs /dev/shm && "
                 "echo ready && exec sleep infinity"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            said = keeper.stdout.readline()
            if said != "ready\n":
                raise NotPermitted(f"host {host}: {said.strip()}")
            self.keepers[host] = keeper.pid

    def remove(self):
        for pid in self.keepers.values():
            with contextlib.suppress(ProcessLookupError):  # the item's end may have been quicker
                os.kill(pid, signal.SIGKILL)
        self.keepers = {}
        super().remove()

    def on(self, host, command):
        if host not in self.keepers:
            return super().on(host, command)
        return ["nsenter", f"--target={self.keepers[host]}", "--net", "--uts", "--ipc", "--mount", *command]
