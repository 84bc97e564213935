"""Item 1: certificates that end while jobs run."""

import datetime
import os
import secrets
import shutil
import subprocess
import time

from harness import NotHere, check, wait_until
from many_users_items.faults import fault
from many_users_items.shared_cluster import SharedCluster

CONFIG = """[ca]
default_ca = d
[d]
database = {0}/index.txt
serial = {0}/serial
new_certs_dir = {0}
default_md = default
policy = p
x509_extensions = x
[p]
commonName = supplied
[x]
subjectAltName = URI:urn:meshrun:role:worker,URI:urn:meshrun:node:{1}
extendedKeyUsage = clientAuth
"""


def shorten(cluster, name, seconds):
    """The node's certificate ends so soon: `ca issue` counts in days."""
    if shutil.which("openssl") is None:
        raise NotHere("there is no openssl")
    cluster.issue(name, "--role", "worker", "--node", name)
    own, authority = cluster.certificates / name, cluster.certificates / "ca"
    work = cluster.site.directory / f"short-{name}"
    work.mkdir()
    (work / "index.txt").touch()
    (work / "serial").write_text(f"{secrets.randbelow(2**60):016x}\n")
    (work / "config").write_text(CONFIG.format(work, name))
    now = datetime.datetime.now(datetime.timezone.utc)
    date = lambda at: at.strftime("%Y%m%d%H%M%SZ")
    for words in (["req", "-new", "-key", own / "tls.key", "-subj", f"/CN={name}", "-out", work / "csr"],
                  ["ca", "-config", work / "config", "-batch", "-notext", "-in", work / "csr", "-out", work / "crt",
                   "-cert", authority / "ca.crt", "-keyfile", authority / "ca.key",
                   "-startdate", date(now - datetime.timedelta(hours=1)), "-enddate", date(now + datetime.timedelta(seconds=seconds))]):
        done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"openssl {words[0]}: {done.stderr[-500:]}")
    os.replace(work / "crt", own / "tls.crt")


@fault("the certificate of a host ends while jobs run there")
def ended_at_night(site):
    cluster = SharedCluster(site, coordinator_flags=["--certificate-grace", "1h"])
    lasts = 6
    shorten(cluster, "n1", lasts)
    began = time.monotonic()
    cluster.start("n1")
    job = cluster.submit("ada", ["--nproc-per-node", 2], "sleep", 600)
    wait_until(lambda: cluster.job(job)["state"] == "JOB_STATE_RUNNING", 20, "the job runs")
    told = lambda: [event["message"] for event in cluster.events(kind="CertificateEnding")]
    wait_until(lambda: any("ends in" in text for text in told()), 20, "the end is told before")
    wait_until(lambda: any("ended" in text and "its open session ends" in text for text in told()), 30, "the end is told")
    late = time.monotonic() - began - lasts
    shown = cluster.run("client", "describe", "n1")[1]
    check("certificate" in shown and "ended" in shown and "meshrun ca renew" in shown, shown)
    table = cluster.run("client", "nodes")[1]
    check("HEALTHY" in table and "ended" in table, table)
    cluster.succeeds([cluster.submit("bob", [], "true")])
    cluster.ask("ca", "renew", "--ca", cluster.certificates / "ca", cluster.certificates / "n1")
    renewed = time.monotonic()
    wait_until(lambda: "in 36" in cluster.run("client", "nodes")[1], 30, "the renewed certificate is in use")
    took = time.monotonic() - renewed
    check(cluster.job(job)["state"] == "JOB_STATE_RUNNING" and cluster.job(job).get("restarts", 0) == 0, "the job did not go on")
    check(not cluster.events(kind="NodeSuspect"), "the node was away")
    cluster.run("ada", "cancel", "--now", job)
    return f"told {late:.0f} s after it, jobs go on and start; a renewed one is in use after {took:.0f} s"
