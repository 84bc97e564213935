"""Disks that are small, or full."""

import os
import subprocess

from harness import NotHere


def small_disk(site, name, size):
    if os.geteuid() != 0:
        raise NotHere("only root mounts a small tmpfs")
    place = site.directory / name
    place.mkdir(mode=0o700)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", place], capture_output=True, text=True)
    if done.returncode:
        raise NotHere(f"mount: {done.stderr.strip()}")
    site.cleanup.callback(subprocess.run, ["umount", "-l", place])
    return place


def fill(place):
    path = place / "filling"
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            return path
