#!/usr/bin/env python3
"""The bundle made here runs on another release of Debian with LibTorch, no Python, and nothing else installed.

The system is a Debian 13 by debootstrap, entered by chroot in namespaces of its own; LibTorch, with its CUDA runtime from
PyPI's wheels, is the directory that tools/setup unpacked. Needs root."""

import json
import os
import pathlib
import re
import subprocess
import sys

ACCEPTANCE = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ACCEPTANCE), str(ACCEPTANCE.parent / "soak")]
from environments import CACHE, Missing, debian, last_line, need_root
from harness import ROOT, check, item, main, passed, skip_soak, skipped

RELEASE = "trixie"
CONFORMANCE = "//tests/parallel/collectives/conformance:conformance_test"
TREE = "/opt/meshrun"
LIBTORCH = "/opt/libtorch"
STEPS = 100
MAX_RMSE_M = 5


class Other:
    """The other system, with the bundle unpacked in it."""

    def __init__(self, site, archive):
        self.site = site
        self.root = site.directory / "root"
        self.root.mkdir()
        (self.root / LIBTORCH[1:]).mkdir(parents=True)
        for tar, place in ((debian(RELEASE), self.root), (archive, self.root / "opt")):
            subprocess.run(["tar", "-C", place, "--numeric-owner", "-xf", tar], check=True)
        version = (self.root / TREE[1:] / "share/meshrun/libtorch-version").read_text().strip()
        fetched = [pathlib.Path(os.environ["LIBTORCH_HOME"])] if "LIBTORCH_HOME" in os.environ else sorted(CACHE.glob(f"libtorch-{version}.*"))
        check(fetched and (fetched[-1] / "lib/libcudart.so.13").exists(),
              f"no LibTorch {version} with a CUDA runtime in {CACHE}: call tools/setup --libtorch")
        self.libtorch = fetched[-1]

    def run(self, script, timeout=600, **variables):
        """Runs a shell's words in it. Returns (exit code, stdout, stderr, seconds). What it mounts and starts ends with it."""
        enter = f"""
set -e
mount --make-rprivate /
mount -t proc proc '{self.root}/proc'
mount -t sysfs -o ro sysfs '{self.root}/sys'
mount -t tmpfs tmpfs '{self.root}/tmp'
mkdir -p '{self.root}/dev/shm'
mount -t tmpfs tmpfs '{self.root}/dev/shm'
mount --bind '{self.libtorch}' '{self.root}{LIBTORCH}'
mount -o remount,bind,ro '{self.root}{LIBTORCH}'
exec chroot '{self.root}' /usr/bin/env -i "${{@:2}}" sh -c "cd /tmp; $1"
"""
        settings = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LIBTORCH_HOME": LIBTORCH, **variables}
        return self.site.run(["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "bash", "-c", enter, "bash",
                              script, *(f"{name}={value}" for name, value in settings.items())], timeout=timeout)


def make(site):
    """The archive of a bundle, with the GPU tests where there is a toolkit."""
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda", "lib64/libcudart.so.13").exists()
    tests = ",".join([CONFORMANCE] + ["gpu"] * toolkit)
    done = subprocess.run([ROOT / "tools/bundle", "--out", site.directory / "meshrun", "--tests", tests], cwd=ROOT, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, timeout=3600)
    check(done.returncode == 0, f"tools/bundle exited {done.returncode}: {last_line(done.stderr or done.stdout)}")
    return site.directory / "meshrun.tar.xz"


def look_at_the_system(other):
    """Its glibc; checks that it is as bare as it should be, and which libraries a job of two ranks loads there."""
    code, out, err, _ = other.run(". /etc/os-release; echo $VERSION_CODENAME; getconf GNU_LIBC_VERSION; "
                                  "command -v python3 python gcc patchelf")
    lines = out.splitlines()
    check(code != 0 and len(lines) == 2 and lines[0] == RELEASE, f"the other system is not a bare {RELEASE}: {lines} {err}")
    code, out, err, _ = other.run(
        f"LD_DEBUG=libs LD_DEBUG_OUTPUT=/tmp/loads {TREE}/bin/meshrun run --procs-per-node 2 --job geoid -- --steps 1 "
        "--no-evaluation && echo LOADS && sed -n 's/.*calling init: //p' /tmp/loads.*")
    check(code == 0, f"geoid in one step: exit code {code}: {last_line(err or out)}")
    loaded = {os.path.normpath(path) for path in out.split("LOADS\n")[1].split()}
    check(f"{TREE}/lib/meshrun/ucx/libuct_cma.so.0" in loaded, f"UCX does not find its transports: {sorted(loaded)}")
    # The programs that use LibTorch take the newer of the two.
    ours = {path.name for path in (other.root / TREE[1:] / "lib/meshrun").glob("*.so*")}
    strangers = [path for path in loaded if path.split("/")[-1] in ours and not path.startswith(f"{TREE}/lib/meshrun/")]
    check(not strangers, f"libraries of the system took the place of ours: {strangers}")
    return lines[1]


def train(other):
    """`meshrun run --job geoid` on 2 ranks, through the wrapper and without it."""
    rmse = {}
    for way, command in (("wrapped", f"{TREE}/env meshrun"), ("plain", f"{TREE}/bin/meshrun")):
        code, out, err, _ = other.run(f"{command} run --procs-per-node 2 --job geoid -- --steps {STEPS} --report /tmp/report.json "
                                      "&& echo REPORT && cat /tmp/report.json")
        check(code == 0, f"geoid ({way}): exit code {code}: {last_line(err or out)}")
        report = json.loads(out.split("REPORT\n")[-1])
        check(report["world_size"] == 2 and report["rmse_m"] < MAX_RMSE_M, f"geoid ({way}): {report}")
        check("UCX  ERROR" not in out + err, f"geoid ({way}): {re.findall('.*UCX  ERROR.*', out + err)}")
        rmse[way] = report["rmse_m"]
    return rmse["wrapped"]


def conform(other):
    part = "closed forms" if skip_soak() else "conformance"
    code, out, err, seconds = other.run(
        f"{TREE}/env meshrun run --procs-per-node 2 --max-restarts 0 -- {TREE}/{CONFORMANCE[2:].replace(':', '/')}", timeout=1800,
        MESHRUN_TEST_RANK_FUNCTION=part)
    check(code == 0, f"{part} on 2 ranks: exit code {code}: {last_line(err or out)}")
    return f"{part} on 2 ranks in {seconds:.0f} s"


def run(site):
    """(verdict, figures) of an item."""
    try:
        need_root("to enter another system")
        archive = make(site)
        other = Other(site, archive)
    except Missing as reason:
        return skipped(str(reason))
    glibc = look_at_the_system(other)
    code, out, err, _ = other.run(f"{TREE}/bin/meshrun doctor")
    check(code == 0 and "geoid" in out, f"doctor: exit code {code}: {out}{err}")
    code, out, err, _ = other.run(f"{TREE}/gpu-check")
    check((code, out.strip()) == (77, "gpu-check: no GPU"), f"gpu-check without a GPU: exit code {code}: {out}{err}")
    code, out, err, _ = other.run(f"{TREE}/env true", LIBTORCH_HOME="")
    check(code == 1 and "python3 finds no torch" in err, f"without LibTorch: exit code {code}: {out}{err}")
    rmse = train(other)
    conformance = conform(other)
    return passed(f"Debian {RELEASE}, {glibc}, no Python: geoid on 2 ranks to {rmse:.2f} m in {STEPS} steps, {conformance}, doctor "
                  f"ok, gpu-check says no GPU and exits 77; the archive has {archive.stat().st_size / 2**20:.1f} MiB",
                  left_out="all of the conformance suite" if skip_soak() else "")


if __name__ == "__main__":
    item(6, "a bundle on another Debian")(run)
    sys.exit(main(__doc__))
