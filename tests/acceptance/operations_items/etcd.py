"""Item 1: coordinators with standbys on etcd. geoid trains while leaders are killed, stopped and cut off, while members of etcd
are killed, and while etcd has no majority."""

import json
import random
import subprocess
import time

from clusters import longest_gap, now
from elastic_items.report import Report
from elastic_items.scenarios_control import numbers
from harness import binary, check, meshrun, not_applicable, skip_soak, wait_until
from standbys import Failed, Standbys, unreachable

GEOID = ["--batch", 512, "--hidden", 32, "--seed", 1, "--no-evaluation", "--png", ""]
# A new leader within it, as a client sees it.
FAILOVER = 5.0
# A worker's session with the new leader.
SESSION = 1.0
# How long the training is to last, about, and what is measured before.
SECONDS, TRIAL = 31, 60


def run(site):
    try:
        return Faults(site).run()
    except Failed as error:
        if "there is no etcd here" in str(error):
            return not_applicable(str(error))
        raise


class Faults:
    def __init__(self, site):
        self.site, self.report = site, Report()
        self.cluster = Standbys(site, 2)
        self.seen = {}

    def run(self):
        cluster, report = self.cluster, self.report
        talker = cluster.submit_journal(["--name", "talker", "--max-restarts", 1], "--print", "--step-ms", 50, "--commit-every", 20)
        cluster.wait_stepping(1, 1, 20, talker)
        followed = self.site.directory / "followed"
        with open(followed, "w") as out:
            self.site.start([meshrun(), "logs", "-f", talker, "--stream", "stdout"], stdout=out, stderr=subprocess.DEVNULL)
        rate = self.train(TRIAL)
        steps = max(TRIAL + 1, int(rate * SECONDS))
        geoid = self.begin(steps)
        for name, fault in (("kill -9", self.killed), ("SIGSTOP", self.stopped), ("partition", self.cut_off)):
            report.say(f"{name}: {fault()}")
        report.say(self.member_killed())
        report.say(self.without_majority(geoid))
        if not skip_soak():
            chance = random.Random(41)
            times = [self.failover(chance.choice((self.kill, self.stop, self.cut))) for _ in range(20)]
            report.say(f"20 more at random: a leader within {max(times):.2f} s")
        self.ended(geoid, steps)
        self.nothing_lost(talker, followed)
        return report.verdict()

    # --- the training ---

    def begin(self, steps):
        """A geoid of two ranks on two nodes, whose ranks keep a trace of each step."""
        self.traces, self.told = self.site.directory / f"traces-{steps}", self.site.directory / f"report-{steps}.json"
        job = self.cluster.submit(["--name", "geoid", "--nodes", 2, "--max-restarts", 2, "--env", f"MESHRUN_TRACE_DIR={self.traces}",
                                   "--env", f"MESHRUN_TRACE_STEPS=1-{steps}"],
                                  [binary("//jobs/geoid:geoid"), *GEOID, "--steps", steps, "--report", self.told])
        # The trial may have ended before anybody looks.
        if steps > TRIAL:
            self.cluster.wait_state(job, "RUNNING", 30)
        return job

    def ended(self, job, steps):
        """In its first generation, with each step of each rank once."""
        self.cluster.wait_state(job, "SUCCEEDED", 600, generation=1)
        view = self.cluster.job(job)
        check(not int(view.get("restarts", 0)), f"{job} was started again")
        longest = 0.0
        for rank in range(2):
            events = [event for file in self.traces.glob(f"*-rank-{rank}-*.json") for event in json.loads(file.read_text())]
            begins = sorted(event["ts"] for event in events if event.get("name") == "forward")
            check(len(begins) == steps, f"rank {rank} has {len(begins)} steps of {steps}")
            longest = max(longest, max(b - a for a, b in zip(begins, begins[1:])) / 1e6)
        if steps > TRIAL:
            self.report.say(f"geoid: {steps} steps of each of 2 ranks, each once, in generation 1, the longest {longest:.2f} s")
        return json.loads(self.told.read_text())["steps_per_second"]

    def train(self, steps):
        return self.ended(self.begin(steps), steps)

    # --- faults of the leader ---

    def leader(self):
        """(name, term), once one leads: a lease may just have ended."""
        found = []
        wait_until(lambda: found.append(self.cluster.leader()) or found[-1], 30, "a coordinator leads")
        return found[-1]

    def failover(self, fault):
        """Seconds until another one leads. `fault` begins it, and returns what ends it."""
        name, term = self.leader()
        self.remember()
        began = time.monotonic()
        mend = fault(name)
        elected, sessions, (leader, _) = self.cluster.await_takeover(term, began)
        check(leader != name or fault == self.kill, f"{name} leads again")
        mend()
        wait_until(lambda: self.cluster.is_standby(name), 20, f"{name} is a standby after it was the leader")
        # One that has been away may still say for a moment what it was.
        said = self.cluster.told_prometheus
        wait_until(lambda: said() == [leader], 10, f"{leader} leads, and tells Prometheus so alone")
        self.session = sessions
        return elected

    def said(self, seconds):
        self.report.over += [] if seconds <= FAILOVER else [f"a leader after {seconds:.2f} s, not {FAILOVER:g}"]
        self.report.over += [] if self.session <= SESSION else [f"sessions after {self.session:.2f} s, not {SESSION:g}"]
        return f"a new leader after {seconds:.2f} s, all sessions {self.session:.2f} s later"

    def kill(self, name):
        self.cluster.kill(name)
        return lambda: self.cluster.start(name)

    def stop(self, name):
        self.cluster.stop(name)
        return lambda: self.cluster.go_on(name)

    def cut(self, name):
        self.cluster.cut_off(name)
        return lambda: self.cluster.heal(name)

    def killed(self):
        return self.said(self.failover(self.kill))

    def stopped(self):
        """Who knows the old leader alone, which stands still, waits for it; the submit is done once, by the new one."""
        late = []

        def stop(name):
            mend = self.stop(name)
            late.append(self.site.start(
                [meshrun(), "submit", "-o", "json", "--name", "late", "--request-id", "sent-while-stopped", "--timeout", "30s",
                 "--coordinator", f"{self.cluster.doors[name].address},127.0.0.1:1", "--", "true"], stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            return mend
        seconds = self.failover(stop)
        out, err = late[0].communicate(timeout=60)
        check(late[0].returncode == 0, f"a submit to the leader that stood still: {err.strip()[-300:]}")
        jobs = json.loads(self.cluster.ask("ps", "--all", "-o", "json")).get("jobs", [])
        named = [job["jobId"] for job in jobs if job["jobId"].startswith("late-")]
        check(named == [json.loads(out)["jobId"]], f"one submit made the jobs {named}")
        return f"{self.said(seconds)}; a submit that waited at the old one is one job"

    def cut_off(self):
        return self.said(self.failover(self.cut))

    # --- faults of etcd ---

    def member_killed(self):
        leader, member = self.leader(), self.cluster.etcd.leader()
        self.cluster.etcd.kill(member)
        began = time.monotonic()
        seconds, stays = [], True
        while stays and time.monotonic() - began < 3:
            seconds.append(self.site.run([meshrun(), "submit", "--", "true"])[3])
            stays = self.cluster.leader() == leader
        # etcd's next leader is there within 1 to 2 s, or a second later where votes are split: then our lease of 3 s may be over.
        self.report.over += [] if stays else [f"the loss of a member of etcd changed the leader, {leader}"]
        self.cluster.etcd.start(member)
        self.cluster.etcd.wait_serving()
        wait_until(self.cluster.leader, 30, "a coordinator leads")
        return f"kill -9 of etcd's leader: term {leader[1]} {'goes on' if stays else 'ended'}, the slowest submit took {max(seconds):.2f} s"

    def without_majority(self, geoid):
        cluster, etcd = self.cluster, self.cluster.etcd
        _, term = self.leader()
        self.remember()
        gone = etcd.majority()
        for member in gone:
            etcd.kill(member)
        waiting = self.site.start([meshrun(), "submit", "--timeout", "120s", "-o", "json", "--", "true"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
        began = now()
        wait_until(lambda: all(cluster.is_standby(name) for name in cluster.doors), 20, "without a majority nobody leads")
        # A standby says it once its own turn at etcd has failed.
        for patience in ("1s", "3s", "3s", "3s"):
            reason, seconds = unreachable(cluster, "submit", "--timeout", patience, "--", "true", timeout=30)
            if "etcd" in reason:
                break
        check("no coordinator" in reason and "etcd" in reason, f"a submit without a majority says: {reason}")
        wait_until(lambda: now() - began > 4.5, 20, "time passes")
        for member in gone:
            etcd.start(member)
        etcd.wait_serving()
        elected, _, _ = cluster.await_takeover(term, time.monotonic())
        _, err = waiting.communicate(timeout=60)
        check(waiting.returncode == 0, f"a submit that waited for the majority: {err.strip()[-300:]}")
        view = cluster.job(geoid)
        check(int(view["generation"]) == 1, f"geoid is in generation {view['generation']}: {view.get('reason')}")
        return (f"no majority for {now() - began - elected:.1f} s: a submit is refused after {seconds:.1f} s ('{reason[:200]}'), a patient one "
                f"waits and is done, a leader {elected:.2f} s after the majority")

    # --- what must still be there ---

    def remember(self):
        for event in self.cluster.events():
            self.seen[event["sequence"]] = event

    def nothing_lost(self, talker, followed):
        cluster = self.cluster
        self.remember()
        events = cluster.events()
        present = {event["sequence"]: event for event in events}
        check(len(present) == len(events), "an event is there twice")
        check(all(present.get(sequence) == event for sequence, event in self.seen.items()), "an event that was shown is gone")
        check(not [event for event in events if event["kind"] == "NodeLost"], "a node was called lost")
        view = cluster.job(talker)
        check(int(view["generation"]) == 1 and not int(view.get("restarts", 0)), f"the talker is in generation {view['generation']}")
        newest = max(entry["step"] for entry in cluster.journal(what="step"))
        wait_until(lambda: newest in numbers(followed.read_text()), 30, f"the follower shows line {newest}")
        lines = numbers(followed.read_text())
        check(lines == list(range(1, lines[-1] + 1)), f"the follower shows {len(lines)} lines of {lines[-1]}")
        commits = cluster.lineage()
        self.report.say(f"{len(events)} events, {len(lines)} log lines and {len(commits)} commits of the other job, each once; "
                        f"its longest step {longest_gap(cluster.journal(what='step')):.1f} s, while commits waited")
