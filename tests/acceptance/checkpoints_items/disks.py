"""Disks that are slow, short, broken and full: each is said, nothing times out, and nothing is lost."""

import os
import time

from checkpoints_items.speed import Side
from harness import binary, check, passed, skip_soak

MEGABYTES = 8


class Disk:
    """What the shim does to files below a directory."""

    def __init__(self, site, name):
        self.directory = site.directory / name
        self.directory.mkdir()
        self.words = site.directory / f"{name}.words"
        self.env = dict(os.environ, LD_PRELOAD=str(binary("//tests/acceptance/ranks:libdisk_shim.so")),
                        MESHRUN_SHIM_BELOW=str(self.directory), MESHRUN_SHIM_FILE=str(self.words))

    def does(self, words):
        self.words.write_text(words)


def _steps(directory):
    return sorted(int(path.name[5:]) for path in (directory / "run").glob("step-*"))


def run(site):
    sync, timeout = (1.2, 1) if skip_soak() else (8, 2)
    disk = Disk(site, "disk")
    # A collective may take 2 s, and each flush takes longer.
    side = Side(site, [binary("//tests/acceptance/ranks:checkpoint_rank"), disk.directory / "run", MEGABYTES],
                dict(disk.env, MESHRUN_TIMEOUT_SECONDS=str(timeout)), said=site.directory / "said")
    said = []
    disk.does(f"sync={sync}")
    took = max(each["call"] for each in side.do("save"))
    check(took > 3 * sync, f"a save with flushes of {sync} s took {took:.1f} s")
    words = (site.directory / "said").read_text()
    check("writes step 1 for 1" in words or took < 10, f"a save of {took:.0f} s says nothing of it: {words[-300:]}")
    said.append(f"flushes of {sync} s: a save of {took:.0f} s under a collective's timeout of {timeout} s")
    disk.does("short")
    side.do("save")
    disk.does("")
    side.do("load")
    check(_steps(disk.directory) == [1, 2], f"short writes: {_steps(disk.directory)}")
    said.append("short writes: whole")
    for fault, text in (("eio", "Input/output error"), ("eio-sync", "Input/output error"), ("enospc", "No space left on device")):
        disk.does(fault)
        before = time.monotonic()
        raised = [each.get("raised", "") for each in side.do("save")]
        check(all(text in each for each in raised) and len(set(raised)) == 1, f"{fault}: {raised}")
        check(time.monotonic() - before < 20, f"{fault} is said after {time.monotonic() - before:.0f} s")
        raised = [each.get("raised", "") for each in side.do("async")]
        check(all(text in each for each in raised), f"{fault} in the background: {raised}")
        disk.does("")
        check(not any(each.get("raised") for each in side.do("load")), f"{fault}: the former checkpoint does not load")
        left = [path.name for path in (disk.directory / "run").iterdir() if not path.name.startswith("step-")]
        check(not left, f"{fault} leaves {left}")
        said.append(f"{fault}: one error on all ranks, '{raised[0][:60]}...'")
    check(_steps(disk.directory) == [1, 2], f"a refused save has changed what was there: {_steps(disk.directory)}")
    side.do("save")
    side.do("load")
    side.end()
    return passed("; ".join(said), left_out="flushes of 8 s" if skip_soak() else "")
