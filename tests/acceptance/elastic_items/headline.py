"""What a killed host costs a training: with meshrun in process, and under torchrun beside it."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from environments import Missing, TORCH, environment, free_port
from harness import Short, alive, binary, check, meshrun, pid_of, running, skip_soak, wait_until

LEASE = 5.0
TOLD = LEASE + 0.5
TRAINS_AGAIN = 3.0
RMSE = 0.02
WORKERS = 4
# About three minutes on two cores: the blow comes in the middle.
STEPS = 1500
GEOID = ["--batch", 2048, "--hidden", 64, "--seed", 1, "--png", ""]


def processes_of(site, name):
    """The daemon, the supervisors and the ranks of a worker."""
    found = []
    state = str(site.directory / name) + "\0"
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            variables = (entry / "environ").read_bytes().decode(errors="replace")
            if (state in command or f"{site.directory / name}/" in command
                    or f"\0MESHRUN_NODE_NAME={name}\0" in "\0" + variables and str(site.directory) in variables):
                found.append(int(entry.name))
    return found


def submit(site, *arguments, nodes, flags=(), report, model=GEOID):
    """Returns the job's id."""
    code, out, err, _ = site.run([meshrun(), "submit", "--nodes", nodes, "--procs-per-node", 1, "--max-restarts", 5,
                                  *flags, "--job", "geoid", "--", *model, "--report", report, *arguments])
    check(code == 0, f"submit exited {code}: {out + err}")
    return re.search(r"geoid-\w+", out + err)[0]


def job(site, name):
    return json.loads(site.run([meshrun(), "describe", name, "-o", "json"])[1])["job"]


def step_of(site, name):
    return max((int(rank.get("progress", {}).get("step", 0)) for rank in job(site, name).get("ranks", [])), default=0)


def words(site, worker):
    """What the ranks of a worker have said on stderr."""
    return "\n".join(path.read_text(errors="replace") for path in (site.directory / worker / "logs").glob("*/*/*.stderr.log"))


def said(site, workers, pattern, seconds, what):
    """Waits until each worker's rank has said it. Returns the matches and the time then."""
    wait_until(lambda: all(re.search(pattern, words(site, worker)) for worker in workers), seconds, what)
    return [re.search(pattern, words(site, worker)) for worker in workers], time.monotonic()


def finished(site, name, seconds):
    wait_until(lambda: job(site, name)["state"] not in ("JOB_STATE_RUNNING", "JOB_STATE_RENDEZVOUS", "JOB_STATE_QUIESCING"),
               seconds, f"{name} ended")
    end = job(site, name)
    check(end["state"] == "JOB_STATE_SUCCEEDED", f"{name} is {end['state']}: {end.get('reason', '')}")
    return end


def rmse(report):
    return json.loads(pathlib.Path(report).read_text())["rmse_m"]


def kill_a_host(site):
    """The figures of one blow."""
    site.coordinator()
    for worker in range(WORKERS):
        site.worker(f"n{worker + 1}", "--slots", 1, "--cores", 1)
    quiet = site.directory / "quiet.json"
    finished(site, submit(site, "--steps", STEPS, nodes=WORKERS, report=quiet), 900)

    report = site.directory / "report.json"
    name = submit(site, "--steps", STEPS, nodes=f"{WORKERS - 1}:{WORKERS}", flags=["--grow", "never"], report=report)
    wait_until(lambda: step_of(site, name) >= STEPS // 4, 300, "a quarter of the steps done")
    places = {rank["assignment"]["rank"]: rank["nodeName"] for rank in job(site, name)["ranks"]}
    victim = f"n{WORKERS}"
    survivors = [f"n{worker + 1}" for worker in range(WORKERS - 1)]
    check(set(places.values()) == {victim, *survivors}, f"not one rank on each worker: {places}")
    kept = {worker: [pid for pid in processes_of(site, worker)] for worker in survivors}
    hit = processes_of(site, victim)
    check(len(hit) >= 3, f"{victim} is not a daemon, a supervisor and a rank: {hit}")
    blow = time.monotonic()
    for pid in hit:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, told = said(site, survivors, r"leaves generation 1: .*", TOLD + 10, "the survivors hear of the loss")
    matches, again = said(site, survivors, r"generation 2, rank \d of 3: has done step (\d+)", 30, "the survivors train")
    rests = [re.search(r"goes on after step (\d+), .*; had done (\d+)", words(site, worker)) for worker in survivors]
    lost = max(int(rest[1]) for rest in rests) - min(int(rest[2]) for rest in rests)
    check(all(int(rest[2]) <= int(rest[1]) for rest in rests), "a rank went back behind its own memory")
    check(lost <= 1, f"{lost} steps are lost in process")
    for worker, pids in kept.items():
        check(all(running(pid) for pid in pids), f"a process of {worker} did not live on")
    check(told - blow <= TOLD, f"told after {told - blow:.2f} s, not within {TOLD} s")
    end = finished(site, name, 900)
    check(again - told <= TRAINS_AGAIN, f"trained again {again - told:.2f} s after being told, not within {TRAINS_AGAIN} s")
    error = abs(rmse(report) / rmse(quiet) - 1)
    check(error <= RMSE, f"RMSE {rmse(report):.3f} m, undisturbed {rmse(quiet):.3f} m: {100 * error:.2f} % apart")
    return (f"told after {told - blow:.2f} s, training {again - told:.2f} s later in the same processes, "
            f"{max(lost, 0)} steps lost, RMSE {rmse(report):.2f} m ({100 * error:.2f} % from undisturbed), "
            f"{end.get('restarts', 0)} restarts")


# How long torchrun's survivors may take to train again.
TORCHRUN_PATIENCE = 60


# Each rank says when it has done a step, by the clock that all processes share. Elastic as torchrun can: every worker is started anew.
SCRIPT = """
import os, pathlib, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
for step in range(100000):
    model(torch.randn(32, 64)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    with open(pathlib.Path({directory!r}) / f"steps.{{os.environ['GROUP_RANK']}}.{{os.getpid()}}", "a") as out:
        out.write(f"{{time.monotonic()}}\\n")
    time.sleep(0.02)
"""


def end_workers(script):
    for entry in alive(script):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid_of(entry), signal.SIGKILL)


def torchrun_beside(site):
    """Seconds from the same blow to the next step of any worker, or why there is none."""
    try:
        python = environment(TORCH, install=not skip_soak())
    except Missing as error:
        return f"torchrun not measured: {error}"
    script = site.script("train.py", SCRIPT.format(directory=str(site.directory)))
    # An agent that is killed leaves its worker behind: called after their own ends.
    site.cleanup.callback(end_workers, script)
    port = free_port()
    agents = [site.start([python / "torchrun", f"--nnodes={WORKERS - 1}:{WORKERS}", "--nproc-per-node=1", "--max-restarts=3",
                          "--local-addr=127.0.0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=blow", script],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(WORKERS)]
    files = lambda: list(site.directory.glob("steps.*"))
    try:
        wait_until(lambda: len({path.name.split(".")[1] for path in files()}) == WORKERS, 120, "torchrun's workers train")
    except Short:
        return f"torchrun: its {WORKERS} workers do not train within 120 s"
    blow = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(agents[-1].pid, signal.SIGKILL)
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == agents[-1].pid:
                os.kill(int(entry.name), signal.SIGKILL)
    before = set(files())

    def next_step():
        fresh = [float(path.read_text().split()[-1]) for path in files() if path not in before and path.stat().st_size]
        return min(fresh) if fresh else None

    try:
        wait_until(next_step, TORCHRUN_PATIENCE, "torchrun's survivors train again")
    except Short:
        return f"torchrun: its survivors do not train again within {TORCHRUN_PATIENCE} s"
    return f"torchrun: its workers, started anew, train {next_step() - blow:.1f} s after the blow"
