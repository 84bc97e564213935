"""Local users called ada and bob that only a cluster's workers know: each sees users, groups and sockets of ranks of its own."""

import os
import pathlib
import pwd
import random
import shlex
import subprocess

NAMES = ("ada", "bob")


def make(directory, mode):
    """Whatever the umask is."""
    directory.mkdir()
    directory.chmod(mode)


def why_not(before):
    """Why these commands cannot run in a mount namespace here; empty: they can."""
    if os.geteuid() != 0:
        return "only root makes a mount namespace"
    done = subprocess.run(["sh", "-c", 'exec unshare --mount sh -ec "$1"', "sh", before], capture_output=True, text=True)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""


class LocalUsers:
    """Below site.directory, which all users may then enter: files of users and groups, a home for each user, and the directory of the
    sockets that ranks see. Gone with the site. Raises OSError where the machine does not allow that."""

    def __init__(self, site):
        if os.geteuid() != 0:
            raise PermissionError("only root runs ranks of other users")
        taken = {entry.pw_uid for entry in pwd.getpwall()}
        # Several clusters run at once.
        first = random.randrange(20_000, 60_000)
        self.uids = dict(zip(NAMES, (uid for uid in range(first, 65000) if uid not in taken)))
        self.homes = {name: site.directory / "home" / name for name in NAMES}
        site.directory.chmod(0o755)
        make(site.directory / "home", 0o755)
        lines = {"passwd": [], "group": []}
        for name, uid in self.uids.items():
            make(self.homes[name], 0o700)
            os.chown(self.homes[name], uid, uid)
            lines["passwd"].append(f"{name}:x:{uid}:{uid}::{self.homes[name]}:/bin/sh")
            lines["group"].append(f"{name}:x:{uid}:")
        # The first line of a name counts.
        mounts = []
        for file, first in lines.items():
            path = site.directory / file
            path.write_text("\n".join([*first, pathlib.Path("/etc", file).read_text()]))
            path.chmod(0o644)
            mounts.append(f"mount --bind {path} /etc/{file}")
        sockets = site.directory / "sockets"
        make(sockets, 0o711)
        mounts.append(f"mkdir -p -m 711 /run/meshrun-ranks; mount --bind {sockets} /run/meshrun-ranks")
        # Commands of a shell for a mount namespace.
        self.before = "\n".join(mounts)
        wanted = " ".join(f"{name}={uid}" for name, uid in self.uids.items())
        tried = f'{self.before}\ntest "{" ".join(f"{name}=$(id -u {name})" for name in NAMES)}" = {shlex.quote(wanted)}'
        if reason := why_not(tried):
            raise PermissionError(f"no users of a mount namespace's own: {reason}")
