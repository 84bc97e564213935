"""What tests need beside the repository's own build: Python environments, Debian packages, free ports, cleanup.

Standard library only. A virtual environment is made once from a requirements file with hashes, in the user's cache, and
used again while that file is unchanged.
"""

import atexit
import contextlib
import fcntl
import functools
import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "meshrun"
# The newest torch, for what compares with it by commands.
TORCH = ROOT / "tests/soak/torch-requirements.txt"
# What torch's DistributedDataParallel imports; beside TORCH, in PYTHONPATH.
DDP = ROOT / "tests/soak/ddp-requirements.txt"
KUBERNETES = ROOT / "tests/deploy/kubernetes-requirements.txt"
# The wheels in the requirements are those of Debian 12's Python.
PYTHON = "/usr/bin/python3"


class Missing(Exception):
    """Something that this machine lacks and the test cannot get; says what to do."""


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "(no output)"


def environment(requirements, install=True, wheels_only=True):
    """The bin/ directory of the virtual environment with these requirements. wheels_only: no package is built from its source.
    Raises Missing."""
    name = requirements.stem + "-" + hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    place = CACHE / "python" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    complete = place / "complete"
    with open(place.parent / (name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists():
            return place / "bin"
        if not install:
            raise Missing(f"no environment in {place}")
        shutil.rmtree(place, ignore_errors=True)
        print(f"installing {requirements.relative_to(ROOT)} into {place}", file=sys.stderr, flush=True)
        wheels = CACHE / "wheels"
        _call([PYTHON, "-m", "venv", "--without-pip", place])
        _call([PYTHON, "-m", "pip", "--python", place / "bin/python", "install", "--quiet", "--retries", "1", "--no-deps",
               "--no-cache-dir", *(["--only-binary", ":all:"] if wheels_only else []), "--require-hashes",
               *(["--find-links", wheels] if wheels.is_dir() else []), "-r", requirements])
        complete.touch()
    return place / "bin"


def libtorch():
    """The version of LibTorch that this tree is set up with."""
    default = re.search(r'LIBTORCH_VERSION = "(.*)"', (ROOT / "third_party/libtorch/version.bzl").read_text())[1]
    own = ROOT / "user.bazelrc"
    chosen = re.search(r"^build --repo_env=MESHRUN_LIBTORCH=(.*)$", own.read_text(), re.MULTILINE) if own.exists() else None
    return chosen[1] if chosen else default


def torch_of_this_tree():
    """The requirements with the torch of that version, which this tree's extension needs. Raises Missing."""
    for requirements in (TORCH, *sorted(TORCH.parent.glob("torch-*-requirements.txt"))):
        if f"torch=={libtorch()} " in requirements.read_text():
            return requirements
    raise Missing(f"tests/soak has no requirements for torch {libtorch()}")


def packages(requirements):
    """The directory of these packages, for PYTHONPATH. Raises Missing."""
    return next((environment(requirements).parent / "lib").glob("python3*/site-packages"))


def _call(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise Missing(f"{command[0]}: {error.strerror}: tools/setup installs it") from error
    if done.returncode:
        raise Missing(f"{' '.join(map(str, command[:3]))} ... failed: {last_line(done.stderr)}")


def need_packages(*names):
    """Installs these, or tests/soak/packages.txt, where something of them is missing. Raises Missing."""
    names = names or (ROOT / "tests/soak/packages.txt").read_text().split()
    listed = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *names],
                            capture_output=True, text=True)
    present = {line.split()[0] for line in listed.stdout.splitlines() if line.endswith(" installed")}
    missing = [name for name in names if name not in present]
    if not missing:
        return
    need_root(f"to install {' '.join(missing)}")
    print(f"installing {' '.join(missing)}", file=sys.stderr, flush=True)
    subprocess.run(["apt-get", "-qq", "update"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = subprocess.run(["apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing], capture_output=True,
                          text=True, env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"))
    if done.returncode:
        raise Missing(f"apt-get install {' '.join(missing)} failed: {last_line(done.stderr)}")


def debian(release, *also):
    """A minimal Debian, with these packages too, as a tar file in the user's cache, made once by debootstrap from the mirror
    that this machine's apt uses. Raises Missing."""
    tar = CACHE / f"images/{'-'.join(['debian', release, *also])}.tar"
    if tar.exists():
        return tar
    need_root("for debootstrap")
    need_packages("debootstrap")
    mirrors = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Component: main",
                              "Codename: bookworm"],
                             capture_output=True, text=True).stdout.split()
    if not mirrors:
        raise Missing("apt has no source of packages: a mirror of Debian is needed for debootstrap")
    tar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tar.parent) as directory:
        print(f"a minimal Debian {release} by debootstrap", file=sys.stderr, flush=True)
        _call(["debootstrap", "--variant=minbase", *([f"--include={','.join(also)}"] if also else []), release,
               f"{directory}/root", mirrors[0]])
        _call(["tar", "-C", f"{directory}/root", "--numeric-owner", "-cf", f"{directory}/tar", "."])
        os.replace(f"{directory}/tar", tar)
    return tar


@functools.cache
def made_once(name, make):
    """A directory that make(directory) fills. The suites of one tools/test share it, and the first that needs it makes it; else it is
    this program's, and goes with it."""
    shared = os.environ.get("MESHRUN_TEST_SHARED")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="mrt-", dir=shared))
    if not shared:
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        make(directory)
        return directory
    # A clone that is tested with another LibTorch makes its own.
    tree = hashlib.sha256(f"{ROOT} {libtorch()}".encode()).hexdigest()[:12]
    place = pathlib.Path(shared, f"{name}-{tree}")
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            make(directory)
            directory.rename(place)
        else:
            directory.rmdir()
    return place


def need_root(purpose):
    if os.geteuid():
        raise Missing(f"this needs root {purpose}")


def free_port():
    """A port that nobody listens on, below the range of outgoing connections."""
    ports = range(23100, 25000)
    # By chance: others look for one at the same time.
    for port in random.sample(ports, len(ports)):
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise Missing("no free port between 23100 and 25000")


@contextlib.contextmanager
def scratch():
    """A directory and a stack of what to undo; both go however the test ends, Ctrl-C and SIGTERM included."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    directory = pathlib.Path(tempfile.mkdtemp(prefix="mrt-"))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        yield directory, undo


def end_group(process, seconds=10):
    """Ends a process that leads a session, and all in its group."""
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
