"""Item 2: a real Prometheus scrapes both daemons over TLS; promtool checks metrics, rules and alerts; each alert fires when its cause
is provoked."""

import os
import re
import signal
import subprocess
import time

from disks import small_disk
from harness import NotHere, binary, check, passed, wait_until
from operations_items.monitored import MONITORING, Monitored, Prometheus, tool

# Steps, and the time for which this rank has waited for others; the second rank computes, the first one waits.
SLOW = """import json, os, socket, time
say = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
rank = int(os.environ["RANK"])
for step in range(600):
    time.sleep(0.2)
    said = dict(step=step + 1, loss=1.0, samples=64 * (step + 1), data_seconds=0.01 * step, collective_bytes=4096 * step,
                waited_seconds=(0.19 if rank else 0.01) * (step + 1))
    say.sendto(json.dumps(said).encode(), os.environ["MESHRUN_REPORT"])
"""
# Five steps, and then none.
HANGS = """import json, os, socket, time
say = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for step in range(5):
    say.sendto(json.dumps(dict(step=step + 1)).encode(), os.environ["MESHRUN_REPORT"])
    time.sleep(0.1)
time.sleep(600)
"""
# For `promtool test rules`: the numbers of an etcd that is nearly full, because only etcd has a quota; of a coordinator that
# leads beside another one, which is no fault in the minute of a takeover; and of jobs that report seldom: 40 % of the time in
# collectives and 2 samples a second with a report every 5 minutes, and steps of 10 minutes one after the other.
BY_NUMBERS = """rule_files: [{alerts}, {rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'meshrun_store_bytes{{instance="a"}}', values: '900x20'}}
      - {{series: 'meshrun_store_quota_bytes{{instance="a"}}', values: '1000x20'}}
      - {{series: 'meshrun_coordinator_leader', values: '1x20'}}
    alert_rule_test:
      - eval_time: 10m
        alertname: MeshrunStoreNearlyFull
        exp_alerts:
          - exp_labels: {{severity: page, instance: a}}
            exp_annotations:
              summary: The durable state has 90% of its quota.
              runbook_url: docs/monitoring.md#meshrunstorenearlyfull
      - eval_time: 10m
        alertname: MeshrunSeveralLeaders
        exp_alerts: []
  - interval: 15s
    input_series:
      - {{series: 'meshrun_coordinator_leader{{instance="a"}}', values: '1x30'}}
      - {{series: 'meshrun_coordinator_leader{{instance="b"}}', values: '0x2 1x2 0x8 1x20'}}
    alert_rule_test:
      - eval_time: 2m
        alertname: MeshrunSeveralLeaders
        exp_alerts: []
      - eval_time: 6m
        alertname: MeshrunSeveralLeaders
        exp_alerts:
          - exp_labels: {{severity: page}}
            exp_annotations:
              summary: "2 coordinators lead: one of them has begun a cluster of its own."
              runbook_url: docs/monitoring.md#meshrunseveralleaders
  - interval: 15s
    input_series:
      - {{series: 'meshrun_rank_collective_wait_seconds_total{{rank="0"}}', values: '{waited}'}}
      - {{series: 'meshrun_rank_data_wait_seconds_total{{rank="0"}}', values: '{waited}'}}
      - {{series: 'meshrun_rank_samples_total{{rank="0"}}', values: '{samples}'}}
      - {{series: 'meshrun_stepping_rank_seconds_total', values: '{stepping}'}}
      - {{series: 'meshrun_held_rank_seconds_total', values: '0+120x720'}}
    promql_expr_test:
{within}
"""


def by_numbers():
    """The file for `promtool test rules`."""
    def rises(by, samples, times):
        return " ".join(f"{by * i}x{samples - 1}" for i in range(times))

    # In each minute of an hour, with the error of an edge of the window.
    within = ""
    for rule, least, most in (("meshrun:rank_collective_wait:ratio15m", 0.25, 0.45), ("meshrun:rank_data_wait:ratio15m", 0.25, 0.45),
                              ("meshrun:rank_samples:rate15m", 1.3, 2.2), ("meshrun:effective_training_time:ratio1h", 0.8, 1.1)):
        labels = '{rank="0"}' if "rank_" in rule else "{}"
        for expr in (f"min_over_time({rule}[1h]) > bool {least}", f"max_over_time({rule}[1h]) < bool {most}"):
            within += f"      - {{expr: '{expr}', eval_time: 150m, exp_samples: [{{labels: '{labels}', value: 1}}]}}\n"
    return BY_NUMBERS.format(alerts=MONITORING / "alerts.yml", rules=MONITORING / "rules.yml", waited=rises(120, 20, 36),
                             samples=rises(600, 20, 36), stepping=rises(4800, 40, 18), within=within)


def promtool(*words, text=None):
    done = subprocess.run([tool("promtool"), *map(str, words)], input=text, capture_output=True, text=True)
    check(done.returncode == 0, f"promtool {' '.join(map(str, words))}: {done.stdout} {done.stderr}")
    check("error" not in done.stderr.lower(), f"promtool {words}: {done.stderr}")


def check_files():
    promtool("check", "rules", MONITORING / "rules.yml", MONITORING / "alerts.yml")
    text = (MONITORING / "alerts.yml").read_text()
    alerts = dict(re.findall(r"- alert: (\w+)\n(?:(?!- alert:)[\s\S])*?runbook_url: (\S+)", text))
    check(len(alerts) == text.count("- alert: "), "an alert without a runbook")
    page = (MONITORING.parent.parent / "docs/monitoring.md").read_text()
    runbooks = set(re.findall(r"^### (Meshrun\w+)$", page, re.M))
    check(set(alerts) == runbooks, f"alerts and runbooks differ: {set(alerts) ^ runbooks}")
    for name, runbook in alerts.items():
        check(runbook == f"docs/monitoring.md#{name.lower()}", f"{name} names another runbook")
    return set(alerts)


def access(cluster):
    for name in cluster.ports:
        for path in ("/metrics", "/healthz"):
            check(cluster.get(name, path)[0] == 200, f"{name}{path} is refused to a reader")
        check(cluster.get(name, "/metrics", "n1")[0] == 403, f"{name}'s metrics are open to a worker's certificate")
        check(cluster.get(name, "/healthz", "n1")[0] == 200, f"{name}'s health is refused to a worker")
        check(cluster.get(name, "/metrics", None)[0] == 0, f"{name} lets in whoever shows no certificate")
        check(cluster.get(name, "/none")[0] == 404, f"{name} has something at /none")
        promtool("check", "metrics", text=cluster.get(name, "/metrics")[1])


def ranks_of(cluster):
    """What is told of two ranks that report. Their places are the lowest that are free, and the job beside them may have one."""
    def place_of(rank, text):
        """The rank's place: that of the job which counts samples."""
        found = re.search(rf'^meshrun_rank_samples_total{{place="(\d+)",user="[^"]+",rank="{rank}"}} ', text, re.M)
        return found and found[1]

    def told():
        text = cluster.get("n1", "/metrics")[1]
        places = [place_of(rank, text) for rank in "01"]
        return None not in places and places[0] != places[1] and all(
            re.search(rf'^meshrun_rank_{what}{{place="{place}",user="[^"]+",rank="{rank}"}} ', text, re.M)
            for rank, place in zip("01", places) for what in
            ("step", "step_seconds", "collective_wait_seconds_total", "data_wait_seconds_total", "collective_bytes_total", "loss"))
    wait_until(told, 15, lambda: "both ranks have metrics, which are: " + ", ".join(
        re.findall(r"^meshrun_rank_\S+", cluster.get("n1", "/metrics")[1], re.M)))
    place = place_of(0, cluster.get("n1", "/metrics")[1])
    # Another program may have held up one of the last steps.
    wait_until(lambda: 0.15 < cluster.value("n1", f'meshrun_rank_step_seconds{{place="{place}",.*}}') < 0.6, 15,
               "a step of 0.2 s is told as such")
    check("job=" not in cluster.get("n1", "/metrics")[1], "a rank's metrics name its job without --metrics-job-label")


def run(site):
    not_here = {"MeshrunStoreNearlyFull", "MeshrunSeveralLeaders"}
    driver = site.directory / "driver"
    driver.mkdir()
    (driver / "libnvidia-ml.so.1").symlink_to(binary("//tests/acceptance/ranks:libtest_gpus.so"))
    gpu = site.directory / "gpu"
    gpu.write_text("temperature 50\nbusy 80\nused_mib 100\n")
    hang = site.directory / "hang"
    disk_env = {"LD_PRELOAD": binary("//tests/worker:libhanging_files.so"), "MESHRUN_HANG_BELOW": str(site.directory / "coordinator"),
                "MESHRUN_HANG_WHILE": str(hang), "MESHRUN_HANG_ONLY": "sync"}
    cluster = Monitored(site, disk_env, ["--lease", "3s", "--heartbeat", "500ms"])
    cluster.add("n1", "--slots", 4, "--limits", "none",
                env={"LD_LIBRARY_PATH": str(driver), "CUDA_VISIBLE_DEVICES": "0", "MESHRUN_TEST_GPU_STATE": str(gpu)})
    cluster.add("n2", "--slots", 4, days=1)
    try:
        place = small_disk(site, "small", "8m")
        # Nearly full from the start: the worker looks once a minute.
        (place / "filling").write_bytes(bytes(7 * 1024 * 1024 + 512 * 1024))
        cluster.add("n3", "--slots", 1, "--health-interval", 0, state=place / "state")
    except NotHere:
        not_here.add("MeshrunLogDiskFull")
    # It takes 5 s until it scrapes for the first time; meanwhile other things are looked at.
    prometheus = Prometheus(cluster)
    names = check_files()
    test = site.script("by_numbers.yml", by_numbers(), mode=0o644)
    promtool("test", "rules", test)
    access(cluster)
    wait_until(lambda: len(prometheus.targets()) == len(cluster.ports) and all(prometheus.targets().values()), 20, "all are scraped")
    # Before the first scrape nobody led.
    begun = {"MeshrunCertificateEnding", "MeshrunLogDiskFull"}
    wait_until(lambda: not prometheus.firing() - begun, 10, lambda: f"no other alert fires where all is well: {prometheus.firing()}")
    took = {}

    def fires(name, cause=None, seconds=30):
        if cause is not None:
            cause()
        took[name] = wait_until(lambda: name in prometheus.firing(), seconds, lambda: f"{name} fires; firing: {prometheus.firing()}")

    def slow_commits():
        for _ in range(3):
            hang.touch()
            submit = site.start([binary("//client:meshrun"), "submit", "--hold", "--", "true"], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
            time.sleep(1.5)
            hang.unlink()
            submit.wait(timeout=30)

    slow = site.script("slow.py", SLOW, mode=0o644)
    hangs = site.script("hangs.py", HANGS, mode=0o644)
    # n2 has a certificate that ends tomorrow.
    fires("MeshrunCertificateEnding")
    # What takes long to be seen is begun before the rest; n2 is soon lost.
    cluster.submit(["--nodes", 50], "true")
    cluster.submit(["--nproc", 2, "--exclude", "n2"], "python3", slow)
    cluster.submit(["--hang-timeout", "2s", "--exclude", "n2"], "python3", hangs)
    ranks_of(cluster)
    # It falls off the bus: its error is told under the labels that it had before.
    gpu.write_text("lost 1\n")
    wait_until(lambda: cluster.value("n1", "meshrun_gpu_temperature_celsius{.*}") is None, 20, "the lost GPU tells nothing")
    gpu.write_text("lost 1\nxid 79\n")
    fires("MeshrunGpuError")
    check(cluster.value("n1", 'meshrun_gpu_last_xid{gpu="0",uuid="GPU-6d[^"]*"}') == 79, "no Xid 79")
    gpu.write_text("temperature 95\nbusy 80\nused_mib 100\nxid 79\n")
    os.killpg(cluster.workers["n2"].pid, signal.SIGKILL)
    fires("MeshrunCommitsSlow", slow_commits)
    fires("MeshrunNodeLost")
    fires("MeshrunGpuHot")
    fires("MeshrunJobHangs")
    fires("MeshrunStraggler")
    if "MeshrunLogDiskFull" not in not_here:
        fires("MeshrunLogDiskFull")

    def full_disk():
        hang.touch()
        site.start([binary("//client:meshrun"), "submit", "--hold", "--", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    fires("MeshrunCoordinatorReadOnly", full_disk)
    hang.unlink()
    fires("MeshrunQueueStuck")
    wait_until(lambda: cluster.value("coordinator", "meshrun_coordinator_read_only") == 0, 20, "the state can be written again")

    def stop_coordinator():
        cluster.coordinator.kill()
        cluster.coordinator.wait()

    fires("MeshrunCoordinatorDown", stop_coordinator)
    fires("MeshrunNoLeader")
    check(set(took) == names - not_here, f"not provoked: {names - set(took) - not_here}")
    slowest = max(took, key=took.get)
    return passed(f"{len(took)} alerts fired, {slowest} last, after {took[slowest]:.0f} s; by numbers alone: {', '.join(sorted(not_here))}")
