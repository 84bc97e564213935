"""A cluster with TLS whose daemons serve metrics, and a Prometheus (Debian's) that scrapes them."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request

from harness import ROOT, NotHere, binary, check, get, make_certificates, wait_until

sys.path.append(str(ROOT / "tests/etcd"))
from members import free_ports

MONITORING = ROOT / "deploy/monitoring"


def tool(name):
    found = shutil.which(name)
    if not found:
        raise NotHere(f"{name} is not installed (Debian: prometheus)")
    return found


class Monitored:
    """The coordinator; workers come with add(). ports: those of the HTTP servers, by the daemon's name."""

    def __init__(self, site, coordinator_env=None, flags=()):
        self.site = site
        self.certificates = site.directory / "certificates"
        make_certificates(self.certificates)
        self.issue("prometheus", "--role", "read", "--user", "prometheus")
        self.ports = {}
        self.ports["coordinator"], port = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.coordinator, _ = site.daemon(
            [binary("//coordinator:meshrun-coordinator"), "--listen", self.address, "--http", f"127.0.0.1:{self.ports['coordinator']}",
             "--state-dir", site.directory / "coordinator", *self.tls("coordinator"), *flags], coordinator_env)
        site.env.update(MESHRUN_COORDINATOR=self.address, MESHRUN_TLS_CERT=str(self.certificates / "client/tls.crt"),
                        MESHRUN_TLS_KEY=str(self.certificates / "client/tls.key"), MESHRUN_TLS_CA=str(self.certificates / "client/ca.crt"))
        self.workers = {}

    def issue(self, name, *words):
        done = subprocess.run([binary("//client:meshrun"), "ca", "issue", *map(str, words), "--ca", self.certificates / "ca", "--out",
                               self.certificates / name], capture_output=True, text=True)
        check(done.returncode == 0, f"meshrun ca issue {words}: {done.stderr}")

    def tls(self, name):
        files = self.certificates / name
        return ["--tls-cert", files / "tls.crt", "--tls-key", files / "tls.key", "--tls-ca", files / "ca.crt"]

    def add(self, name, *flags, days=365, state=None, env=None):
        self.issue(name, "--role", "worker", "--node", name, "--host", "127.0.0.1", "--days", days)
        [self.ports[name]] = free_ports(1)
        self.workers[name], _ = self.site.daemon(
            [binary("//worker:meshrun-worker"), "--coordinator", self.address, "--name", name, "--state-dir",
             state or self.site.directory / name, "--http", f"127.0.0.1:{self.ports[name]}", *self.tls(name), *flags], env)

    def ask(self, *words):
        code, out, err, _ = self.site.run([binary("//client:meshrun"), *words])
        check(code == 0, f"meshrun {words} exited {code}: {err}")
        return out

    def submit(self, flags, *command):
        said = self.ask("submit", "-o", "json", "--working-dir", self.site.directory, *flags, "--", *command)
        return json.loads(said)["jobId"]

    def get(self, name, path, certificate="prometheus"):
        """(status, body) of a daemon's HTTP server; status 0: the TLS handshake is refused."""
        files = self.certificates / (certificate or "prometheus")
        return get(f"https://127.0.0.1:{self.ports[name]}{path}", files, shows=bool(certificate))

    def value(self, name, series):
        """Of the first series that this expression matches; None: there is none."""
        found = re.search(rf"^{series} (\S+)$", self.get(name, "/metrics")[1], re.M)
        return float(found[1]) if found else None


class Prometheus:
    """With the tree's own configuration, rules and alerts, in which times are short: windows and `for:` of minutes are seconds."""

    def __init__(self, cluster):
        site = cluster.site
        files = site.directory / "prometheus"
        files.mkdir()
        config = (MONITORING / "prometheus.yml").read_text().replace("/etc/prometheus/meshrun", str(cluster.certificates / "prometheus"))
        config = config.replace("15s", "500ms")
        config = config.replace("head.example.org:7481", f"127.0.0.1:{cluster.ports['coordinator']}")
        workers = ", ".join(f'"127.0.0.1:{port}"' for name, port in cluster.ports.items() if name != "coordinator")
        config = re.sub(r'\["gpu1.*"\]', f"[{workers}]", config)
        check("example.org:" not in config, "the configuration has other targets than it had")
        (files / "prometheus.yml").write_text(config)
        (files / "rules.yml").write_text(shorter((MONITORING / "rules.yml").read_text()))
        (files / "alerts.yml").write_text(shorter((MONITORING / "alerts.yml").read_text()))
        done = subprocess.run([tool("promtool"), "check", "config", files / "prometheus.yml"], capture_output=True, text=True)
        check(done.returncode == 0, f"promtool check config: {done.stdout} {done.stderr}")
        [self.port] = free_ports(1)
        log = open(files / "log", "w")
        site.start([tool("prometheus"), f"--config.file={files}/prometheus.yml", f"--storage.tsdb.path={files}/data",
                    f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)
        wait_until(self.is_ready, 20, "Prometheus is ready")

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read()

    def is_ready(self):
        try:
            return self.get("/-/ready") is not None
        except OSError:
            return False

    def targets(self):
        """Whether the last scrape was good, by job and port."""
        found = json.loads(self.get("/api/v1/targets"))["data"]["activeTargets"]
        return {(one["labels"]["job"], int(one["labels"]["instance"].rpartition(":")[2])): one["health"] == "up" for one in found}

    def firing(self):
        found = json.loads(self.get("/api/v1/alerts"))["data"]["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}


def shorter(rules):
    rules = re.sub(r"for: \d+m", "for: 0s", rules)
    # That nothing was placed for a while is seen soon; what has happened stays to be seen.
    rules = re.sub(r"\[15m:15s\]", "[6s:1s]", rules).replace("generations_total[15m]", "generations_total[6s]")
    return re.sub(r"\[\d+[mh]\]", "[90s]", rules)
