"""A cluster of several users: an operator, ada and bob, and hosts that can be ill in ways of their own."""

import json
import tempfile
import threading
import time

from clusters import SecureCluster
from harness import NotHere, Short, binary, check, lenient, meshrun
from many_users_items.local_users import LocalUsers, why_not


class SharedCluster(SecureCluster):
    """The operator is who `ask` asks as. Ranks of ada and of bob run as local users of these names, where this machine allows that: else,
    or without separate_users, as the user of the daemon."""

    def __init__(self, site, coordinator_within=(), coordinator_flags=(), separate_users=True):
        self.coordinator_within = coordinator_within
        self.users, self.why_one_user = None, "all ranks run as one user"
        if separate_users:
            try:
                self.users = LocalUsers(site)
            except OSError as error:
                self.why_one_user = str(error)
        super().__init__(site, 0, coordinator_flags=coordinator_flags)
        for user in ("ada", "bob"):
            self.issue(user, "--role", "submit", "--user", user)

    def add(self, name, *flags, before="", state=None, env=None):
        """before: commands of a shell that run before the daemon, in a mount namespace of its own."""
        self.issue(name, "--role", "worker", "--node", name)
        return self.start(name, *flags, before=before, state=state, env=env)

    def start(self, name, *flags, before="", state=None, env=None):
        """As `add`, with the certificate that it has."""
        if self.users:
            before = f"{self.users.before}\n{before}"
            flags = ["--run-as-submitter", *flags]
        elif before and (reason := why_not("mount -t tmpfs tmpfs /mnt")):
            raise NotHere(reason)
        within = ["unshare", "--mount", "sh", "-ec", f'{before}\nexec "$@"', "sh"] if before else []
        return super().add(name, flags, env=env, state=state, within=within)

    def home(self, user):
        """A directory where the user's ranks may write; of a user whom no host knows, one that all may read."""
        return self.users.homes.get(user, self.site.directory) if self.users else self.site.directory

    def run(self, user, *words, timeout=60):
        """(exit code, stdout, stderr, seconds) of a command of this user's."""
        return self.site.run([meshrun(), *words], timeout=timeout, env=self.env_of(user))

    def submit(self, user, flags, *command):
        code, out, err, _ = self.run(user, "submit", "-o", "json", "--working-dir", self.home(user), *flags, "--", *command)
        check(code == 0, f"{user}'s submit exited {code}: {err.strip()[-300:]}")
        return json.loads(out)["jobId"]

    def calls(self, user, requests, at_once=1):
        """Makes these calls of the user's, each (method, request), and nothing that a command does besides. Returns what came of each."""
        with tempfile.NamedTemporaryFile("w", dir=self.site.directory, prefix="calls-") as file:
            file.writelines(f"{method} {json.dumps(request)}\n" for method, request in requests)
            file.flush()
            code, out, err, _ = self.site.run(
                ["sh", "-c", 'exec "$@" <"$0"', file.name, binary("//tests/coordinator/hostile:call"), "--coordinator",
                 self.site.env["MESHRUN_COORDINATOR"], "--at-once", at_once, *self.tls(user)], timeout=120)
        check(code == 0, f"calls of {user}: {err.strip()[-300:]}")
        return [json.loads(line) for line in out.splitlines()]

    def node(self, name):
        return self.node_states().get(name, {})

    def succeeds(self, jobs, seconds=60):
        """Waits for all of them; checks that each succeeded, and without a restart."""
        for job_id in jobs:
            code, _, err, _ = self.run("client", "wait", job_id, timeout=seconds)
            if code != 0:
                raise Short(f"{job_id} ended with {code}: {self.job(job_id).get('reason')} {err.strip()[-200:]}")
            restarts = self.job(job_id).get("restarts", 0)
            check(restarts == 0, f"{job_id}: {restarts} restarts")


class Others:
    """Submits one job of ada's after another while it is entered: each must be taken within a second, or a lenient one."""

    PAUSE = 0.05

    def __init__(self, cluster):
        self.cluster, self.seconds, self.error = cluster, [], None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.submit, daemon=True)

    def submit(self):
        try:
            while not self.seconds or not self.over.wait(self.PAUSE):
                began = time.monotonic()
                self.cluster.submit("ada", ["--hold"], "true")
                self.seconds.append(time.monotonic() - began)
        except Exception as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        self.thread.join()
        if kind is None and self.error is not None:
            raise self.error
        if kind is None:
            check(max(self.seconds) < lenient(1), f"a submit of ada's took {max(self.seconds):.2f} s meanwhile")

    def __str__(self):
        return f"{len(self.seconds)} submits of ada's meanwhile within {max(self.seconds):.2f} s"
