"""Ranks and hosts are killed under ZeRO, FNO and ShardTensor parameters: the others go on in their processes from snapshots in
memory. And how long whole models take."""

import contextlib
import random
import re
import time

from clusters import Cluster, kill, now
from harness import Short, Site, binary, check, passed, skip_soak, slow, wait_until
from numbers_and_restarts_items.loop import await_success, env_flags, said
from parameters import relative_l2, same_bits

RANK = "//tests/acceptance/ranks:pieces_rank"
MODELS = ("zero", "fno", "shard")
PAIRS = ["--nodes", 2, "--nproc", 2]
EVERY = 4  # steps between snapshots
# Steps of a training that loses one rank and one host, and of one that loses so many ranks.
STEPS, LONG, KILLS = 80, 600, 5
# Milliseconds of sleep in a step: little more than its work, so that a kill falls anywhere.
PACE = 20
# Worlds of other sizes are apart by rounding alone, in double; a step that is missing or taken twice is far above this.
CLOSE = 1e-9
# Each rank reads its peers' memory, so it reads less from files than it then holds.
READ_SHARE = 0.5
# State of a whole model in MB (parameters and two moments), and the seconds that it may take on three ranks.
WHOLE_MB, WHOLE_SECONDS, WHOLE_RANKS = 900, 3.0, 3
QUICK_MB = 90
# Pairs of ranks that are killed, and at most so many seconds lie between the two: about what a process takes to start.
PAIR_KILLS, PAIR_APART = 15, 1.5
SNAPSHOTS = r"keeps snapshots every (\d+) steps in memory: at most ([\d.]+ \w+) on a rank"


def _wait(condition, seconds, what):
    """As wait_until, but rarely: the ranks need the processors, and their journals have the times."""
    return wait_until(lambda: condition() or time.sleep(0.1), seconds, what)


class Training:
    """A job of pieces_rank, its ranks' journals, and what was killed there."""

    def __init__(self, cluster, name, flags, *words):
        self.cluster, self.name, self.blows = cluster, name, []
        cluster.journals.mkdir(exist_ok=True)
        self.hurry = cluster.site.directory / f"{name}.hurry"
        self.job = cluster.submit(["--max-restarts", 20, "--kill-grace", "1s", "--replace", "at-once", *flags, *env_flags()],
                                  [binary(RANK), "--name", name, "--journal", cluster.journals, "--hurry", self.hurry, *words])

    def journal(self, **wanted):
        return self.cluster.journal(run=self.name, **wanted)

    def places(self):
        """By generation, in their order, the places of its ranks by number, once they know where they go on."""
        found = {}
        for entry in self.journal(what="restored"):
            found.setdefault(entry["generation"], {})[entry["rank"]] = entry
        return dict(sorted(found.items()))

    def newest(self):
        """How many generations there were, the number of the last one and its places; these are empty until all ranks are there."""
        places = self.places()
        last = max(places, default=0)
        ranks = places.get(last, {})
        return len(places), last, ranks if ranks and len(ranks) == ranks[min(ranks)]["world"] else {}

    def steps(self, generation):
        """By rank, when it ended which step there."""
        found = {}
        for entry in self.journal(what="step", generation=generation):
            found.setdefault(entry["rank"], {})[entry["step"]] = entry["at"]
        return found

    def fail(self, error):
        view = self.cluster.job(self.job)
        raise Short(f"{error}; {self.name} is {view['state']} in generation {view.get('generation')}: {view.get('reason', '')}; "
                    f"it said: {said(self.cluster, self.job, 'stderr')[-600:]}")

    def await_steps(self, after_blows, more, seconds=60):
        """Until, after so many blows, all ranks have done so many steps since they went on."""

        def done():
            generations, last, places = self.newest()
            steps = self.steps(last)
            return generations > after_blows and places and len(steps) == len(places) and min(map(len, steps.values())) >= more
        try:
            _wait(done, seconds, f"{self.name}: {more} steps after {after_blows} blows")
        except Short as error:
            self.fail(error)

    def note(self, what, victims, at):
        self.blows.append((what, {entry["pid"] for entry in victims}, at))

    def kill_rank(self, dice):
        *_, places = self.newest()
        victim = places[dice.choice(sorted(places))]
        time.sleep(dice.uniform(0, EVERY * PACE / 1000))
        at = now()
        kill(victim["pid"])
        self.note("rank", [victim], at)

    def ranks_on(self, node):
        return [entry for entry in self.newest()[2].values() if entry["node"] == node]

    def end(self, steps):
        """Lets it come to its end. Returns the figures of its blows."""
        if self.blows:
            self.await_steps(len(self.blows), 1)
        self.hurry.touch()
        await_success(self.cluster, self.job, f"{self.name} after {[what for what, *_ in self.blows]}")
        places = self.places()
        numbers = list(places)
        check(len(numbers) == len(self.blows) + 1, f"{self.name}: generations {numbers} after {len(self.blows)} blows")
        ended = self.journal(what="end", generation=numbers[-1])
        check(sorted(entry["rank"] for entry in ended) == sorted(places[numbers[-1]]) and {entry["steps"] for entry in ended} == {steps},
              f"{self.name}: its end is {ended}")
        found = {}
        for i, (what, victims, at) in enumerate(self.blows):
            cost = self._cost(f"{self.name}: a {what} killed in generation {numbers[i]}", numbers[i], numbers[i + 1], places, victims, at)
            found.setdefault(what, []).append(cost)
        return [self._figure(what, *zip(*costs)) for what, costs in found.items()]

    @staticmethod
    def _figure(what, again, seconds, ranks):
        how_many = what if len(again) == 1 else f"{len(again)} {what}s"
        most = f"{again[0]}" if len(again) == 1 else f"at most {max(again)}"
        return f"{how_many}: {most} steps again, {max(seconds):.1f} s from the kill to the next step, on {ranks[-1]} ranks"

    def _cost(self, blow, number, following, places, victims, at):
        """(steps taken again, seconds from the kill until all ranks have done a step, how many these are)"""
        before, after = places[number], places[following]
        survivors = {rank: entry["pid"] for rank, entry in before.items() if entry["pid"] not in victims}
        pids = {rank: entry["pid"] for rank, entry in after.items()}
        if len(after) == len(before):
            check({rank: pids[rank] for rank in survivors} == survivors and not victims & set(pids.values()),
                  f"{blow}: the survivors were {survivors}, and then the ranks {pids}")
        else:
            check(sorted(pids.values()) == sorted(survivors.values()), f"{blow}: the survivors were {survivors}, and then the ranks {pids}")
        done = max(max(steps) for steps in self.steps(number).values())
        went_on = {entry["done"] for entry in after.values()}
        check(len(went_on) == 1, f"{blow}: the ranks went on after {went_on}")
        again = done - went_on.pop()
        check(0 <= again <= EVERY, f"{blow}: step {done} was done, and {again} steps were taken again (target {EVERY})")
        self._check_memory(blow, following, after)
        return again, max(min(steps.values()) for steps in self.steps(following).values()) - at, len(after)

    def _check_memory(self, blow, generation, places):
        """All went on from snapshots, and read no file of any size."""
        lines = [entry["text"] for entry in self.journal(what="said", generation=generation)]
        told = [line for line in lines if "goes on after step" in line]
        check(len(told) == len(places) and all("as in the snapshots" in line for line in told), f"{blow}: the ranks said {told or lines}")
        for rank, entry in places.items():
            check(entry["read"] <= READ_SHARE * entry["holds"],
                  f"{blow}: rank {rank} read {entry['read']} bytes before it went on with {entry['holds']}")
        left = list(self.cluster.site.directory.rglob("step-*"))
        check(not left, f"{blow}: there are checkpoints: {left}")

    def memory(self):
        """What the snapshots cost, as rank 0 has said once in each process."""
        words = said(self.cluster, self.job, "stderr")
        found = re.findall(SNAPSHOTS, words)
        check(found, f"{self.name}: nothing was said of the snapshots' memory: {words[:400]}")
        check({int(every) for every, _ in found} == {EVERY}, f"{self.name}: it says snapshots {found}, which are every {EVERY} steps")
        return found[0][1]


class Trainings:
    """One of each model, at the same time on one cluster, on two ranks of each of two hosts unless `flags` says other for a model."""

    def __init__(self, cluster, label, results, flags=lambda model: PAIRS, steps=STEPS):
        self.cluster, self.steps = cluster, steps
        self.results = {model: results / f"{model}-{label}.safetensors" for model in MODELS}
        self.by_model = {model: Training(cluster, f"{model}-{label}", flags(model), "--model", model, "--steps", steps, "--snapshot-every",
                                         EVERY, "--pace-ms", PACE, "--result", self.results[model]) for model in MODELS}

    def end(self):
        """By model, the figures of its blows."""
        return {model: training.end(self.steps) for model, training in self.by_model.items()}

    def kill_ranks(self, dice):
        """One of each training, after its next snapshot."""
        for training in dice.sample(list(self.by_model.values()), len(MODELS)):
            training.await_steps(len(training.blows), EVERY + 1)
            training.kill_rank(dice)

    def kill_host(self, node):
        """With all that runs there, in the middle of whatever step. Other ranks hear of it when its lease has ended."""
        for training in self.by_model.values():
            training.await_steps(len(training.blows), EVERY + 1)
        hit = {training: training.ranks_on(node) for training in self.by_model.values()}
        check(all(hit.values()), f"a training has no rank on {node}")
        at = self.cluster.power_off(node)
        for training, victims in hit.items():
            training.note("host", victims, at)

    def compared(self, undisturbed, shrunk=()):
        """Figures at their ends. shrunk: models whose world became smaller, which are compared up to rounding."""
        figures = []
        for model, blows in self.end().items():
            training, files = self.by_model[model], [undisturbed.results[model], self.results[model]]
            if model in shrunk:
                apart, name = relative_l2(*files)
                check(apart <= CLOSE, f"{training.name}: {name} is {apart:.1e} from the undisturbed run in relative L2 (target {CLOSE})")
                same = f"relative L2 {apart:.1e} from undisturbed"
            else:
                check(same_bits(files), f"{training.name}: not the undisturbed bits: relative L2 {relative_l2(*files)}")
                same = "the undisturbed bits"
            figures.append(f"{model} {'; '.join(blows)}; {same}, {training.memory()} on a rank")
        return figures


class Whole:
    """A training of a whole model on one host, one of whose ranks is killed."""

    STEPS, PACE = 8, 300

    def __init__(self, cluster, megabytes):
        self.training = Training(cluster, "whole", ["--nodes", 1, "--nproc", WHOLE_RANKS], "--model", "whole",
                                 "--megabytes", megabytes // 3, "--steps", self.STEPS, "--pace-ms", self.PACE)

    def kill(self):
        self.training.await_steps(0, 2, 120)
        *_, self.places = self.training.newest()
        kill(self.places[WHOLE_RANKS - 1]["pid"])

    def end(self):
        """(figure, seconds): from the first survivor's word that it leaves the world to the last rank's that it goes on."""
        training = self.training
        training.await_steps(1, 1, 120)
        training.hurry.touch()
        await_success(training.cluster, training.job, "the whole model")
        after = training.places().get(2, {})
        check([rank for rank in sorted(after) if after[rank]["pid"] == self.places[rank]["pid"]] == list(range(WHOLE_RANKS - 1)),
              f"the whole model: the processes were {self.places}, and then {after}")
        lines = training.journal(what="said")
        told = min(entry["at"] for entry in lines if entry["text"].startswith("leaves generation 1"))
        goes_on = [entry["at"] for entry in lines if re.match(r"generation 2, .*goes on after step", entry["text"])]
        check(len(goes_on) == WHOLE_RANKS, f"the whole model: {len(goes_on)} ranks went on")
        apart = max(entry["apart"] for entry in training.journal(what="end", generation=2))
        check(apart <= 1e-6, f"the whole model: an element is {apart:.1e} from what {self.STEPS} steps make of it (target 1e-6)")
        seconds = max(goes_on) - told
        step = max(min(each.values()) for each in training.steps(2).values()) - told
        gigabytes = min(entry["holds"] for entry in after.values()) / 1e9
        return (f"whole: {gigabytes:.2f} GB of state on {WHOLE_RANKS} ranks {seconds:.2f} s after the telling, their next step "
                f"done after {step:.2f} s"), seconds


class Pair:
    """A training of a whole model on one host, two of whose four ranks are killed so many seconds apart: the second may still be in the
    first's world, on its way to the next one, or there, where the first one's successor has just begun."""

    STEPS, PACE, RANKS = 60, 50, 4

    def __init__(self, cluster, apart):
        self.apart = apart
        self.training = Training(cluster, f"pair-{apart:.2f}", ["--nodes", 1, "--nproc", self.RANKS], "--model", "whole",
                                 "--megabytes", 3, "--steps", self.STEPS, "--pace-ms", self.PACE)

    def kill(self):
        self.training.await_steps(0, 2, 120)
        *_, self.places = self.training.newest()
        self.victims = [self.places[rank]["pid"] for rank in (1, 2)]
        self.done = min(map(len, self.training.steps(1).values()))
        kill(self.victims[0])
        time.sleep(self.apart)
        kill(self.victims[1])

    def end(self):
        """The restarts that were charged."""
        training = self.training

        def goes_on():
            _, last, places = training.newest()
            return not {place["pid"] for place in places.values()} & set(self.victims) and len(training.steps(last)) == self.RANKS
        try:
            _wait(goes_on, 60, f"{training.name} goes on")
        except Short as error:
            training.fail(error)
        training.hurry.touch()
        await_success(training.cluster, training.job, training.name)
        _, last, places = training.newest()
        lives = [rank for rank in sorted(places) if places[rank]["pid"] == self.places[rank]["pid"]]
        check(lives == [0, 3], f"{training.name}: the processes were {self.places}, and then {places}")
        after = {place["done"] for place in places.values()}
        check(len(after) == 1 and min(after) >= self.done, f"{training.name}: {self.done} steps were done, and the ranks went on after {after}")
        apart = max(entry["apart"] for entry in training.journal(what="end", generation=last))
        check(apart <= 1e-6, f"{training.name}: an element is {apart:.1e} from what {self.STEPS} steps make of it (target 1e-6)")
        return int(training.cluster.job(training.job).get("restartsCharged", 0))


def _kill_pairs(cluster, gaps):
    """The figure of one training after the other."""
    charged = []
    for apart in gaps:
        pair = Pair(cluster, apart)
        pair.kill()
        charged.append(pair.end())
    return (f"two of 4 ranks killed, {min(gaps):g} to {max(gaps):.2g} s apart: {len(charged)} times the other two kept their processes and "
            f"the model, {sum(charged)} restarts charged")


def _cluster(site, hosts):
    """Room for all trainings on each host; none is put aside for what is killed there."""
    cluster = Cluster(site, coordinator_flags=["--quarantine-after", 0])
    cluster.worker_flags = ["--slots", 12]
    for number in range(hosts):
        cluster.add(f"n{number + 1}")
    return cluster


def _add_spare(cluster, name):
    cluster.add(name)
    _wait(lambda: cluster.node_states().get(name, {}).get("state") == "NODE_STATE_HEALTHY", 10, f"{name} has joined")


def _undisturbed(cluster, results, steps):
    trainings = Trainings(cluster, "undisturbed", results, steps=steps)
    for training in trainings.by_model.values():
        training.hurry.touch()
    return trainings


def _quick(site):
    """A killed rank and a killed host of each; the FNO has no spare, and shrinks."""
    dice = random.Random(6)
    cluster = _cluster(site, 2)
    large = Whole(cluster, QUICK_MB)
    undisturbed = _undisturbed(cluster, site.directory, STEPS)
    large.kill()
    undisturbed.end()
    figure, _ = large.end()
    pairs = _kill_pairs(cluster, [0.0])
    shrinking = ["--nodes", "1:2", "--nproc", 2, "--grow", "never", "--exclude", "n3"]
    trainings = Trainings(cluster, "killed", site.directory, lambda model: shrinking if model == "fno" else PAIRS)
    trainings.kill_ranks(dice)
    _add_spare(cluster, "n3")
    trainings.kill_host("n2")
    return passed("; ".join([*trainings.compared(undisturbed, shrunk=["fno"]), figure, pairs]),
                  left_out=f"{KILLS} killed ranks and each loss of a host under each model, 0.9 GB of a whole model, {PAIR_KILLS} pairs")


def _soak(site):
    dice, results, figures = random.Random(), site.directory, []

    @contextlib.contextmanager
    def own_cluster(hosts):
        with contextlib.ExitStack() as cleanup:
            yield _cluster(Site(cleanup), hosts)

    def loses_host(label, hosts, flags, spare=None):
        with own_cluster(hosts) as cluster:
            trainings = Trainings(cluster, label, results, lambda model: flags, LONG)
            if spare:
                _add_spare(cluster, spare)
            trainings.kill_host(f"n{dice.randrange(hosts) + 1}")
            figures.extend(trainings.compared(undisturbed, shrunk=() if spare else MODELS))

    with own_cluster(2) as cluster:
        undisturbed = _undisturbed(cluster, results, LONG)
        undisturbed.end()
        trainings = Trainings(cluster, "ranks", results, steps=LONG)
        for _ in range(KILLS):
            trainings.kill_ranks(dice)
        figures += trainings.compared(undisturbed)
    loses_host("spare", 2, PAIRS, spare="n3")
    loses_host("half", 2, ["--nodes", "1:2", "--nproc", 2, "--grow", "never"])
    loses_host("three", 4, ["--nodes", "3:4", "--nproc", 1, "--grow", "never"])
    with own_cluster(1) as cluster:
        large = Whole(cluster, WHOLE_MB)
        large.kill()
        figure, seconds = large.end()
        pairs = _kill_pairs(cluster, [0.0, *(dice.uniform(0, PAIR_APART) for _ in range(PAIR_KILLS - 1))])
    text = "; ".join([*figures, figure, pairs])
    return passed(text) if seconds <= WHOLE_SECONDS else slow(text, f"{WHOLE_SECONDS:g} s for {WHOLE_MB / 1000:g} GB")


def run(site):
    """(verdict, figures)"""
    return _quick(site) if skip_soak() else _soak(site)
