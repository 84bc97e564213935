"""Random kills during saves: what was announced loads, bit for bit, and nothing half-done is listed."""

import random
import re
import time

from clusters import Cluster, kill
from harness import alive, binary, check, passed, pid_of, skip_soak, wait_until

HOSTS = 2
RANKS = 2  # on each host
ROUNDS = {"sync": [], "async": ["async"], "sync and elastic": ["elastic"], "async and elastic": ["async", "elastic"]}


def _announced(directory):
    try:
        return [int(line) for line in (directory / "announced").read_text().split()]
    except FileNotFoundError:
        return []


def _kill_one(cluster, directory, dice):
    """A rank, a host with all that runs there, or the coordinator. Returns which."""
    what = dice.choice(["rank", "rank", "rank", "host", "coordinator"])
    if what == "coordinator":
        cluster.kill_coordinator()
        time.sleep(dice.uniform(0, 0.3))
        cluster.start_coordinator()
    elif what == "host":
        name = f"n{dice.randrange(HOSTS) + 1}"
        cluster.power_off(name)
        cluster.nodes[name].proxy.cut()
        cluster.nodes[name].proxy.heal()
        cluster.add(name)
    else:
        ranks = alive(f"saving_rank {directory} ")
        if not ranks:
            return None
        kill(pid_of(dice.choice(ranks)))
    return what


def _round(site, cluster, name, words, kills, dice):
    directory = site.directory / name.replace(" ", "-")
    directory.mkdir()
    job = cluster.submit(["--nodes", HOSTS, "--nproc", RANKS, "--max-restarts", 10000, "--kill-grace", "1s"],
                         [binary("//tests/acceptance/ranks:saving_rank"), directory, 10**6, *words])
    wait_until(lambda: _announced(directory), 60, f"{name}: a checkpoint is announced")
    done = []
    for _ in range(kills):
        before = len(_announced(directory))
        time.sleep(dice.uniform(0.05, 0.5))  # chooses the statement
        what = _kill_one(cluster, directory, dice)
        if what:
            done.append(what)
        wait_until(lambda: len(_announced(directory)) > before + 1, 90, f"{name}: checkpoints are written again after {done}")
    newest = max(_announced(directory))
    described = cluster.describe(job)
    cluster.ask("cancel", job)
    cluster.wait_state(job, "CANCELLED", 30)
    # Now: a job that runs removes old ones at any moment.
    listed = sorted(path.name for path in (directory / "run").glob("step-*"))
    check(all((directory / "run" / step / "manifest.json").exists() for step in listed), f"{name}: not whole: {listed}")
    check("WRONG" not in str(described), f"{name}: {described}")
    said = cluster.ask("logs", job)
    wrong = re.findall(r"WRONG: .*", said)
    check(not wrong, f"{name}: {wrong[:1]}")
    verified = cluster.submit(["--nodes", 1, "--nproc", 3],
                              [binary("//tests/acceptance/ranks:saving_rank"), directory, 1, "verify"])
    cluster.wait_state(verified, "SUCCEEDED", 60)
    loaded = int(re.findall(r"^.*?(\d+)$", cluster.ask("logs", verified, "--ranks", "0", "--stream", "stdout"), re.M)[-1])
    check(loaded >= newest, f"{name}: step {loaded} is loaded, and {newest} was announced")
    return f"{name}: {len(done)} kills ({', '.join(f'{done.count(each)} {each}' for each in sorted(set(done)))}), step {loaded}"


def run(site):
    kills = 5 if skip_soak() else 50
    dice = random.Random(38)
    # A host that goes away this often would take no more jobs.
    cluster = Cluster(site, HOSTS, ["--quarantine-after", 0])
    said = [_round(site, cluster, name, words, kills, dice) for name, words in ROUNDS.items()]
    return passed("; ".join(said), left_out="200 kills" if skip_soak() else "")
