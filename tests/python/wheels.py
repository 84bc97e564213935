"""Builds the wheel once in a run, and installs it as a user would, without network."""

import atexit
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "tools"), str(TESTS / "acceptance"), str(TESTS / "soak")]
from environments import PYTHON
from harness import ROOT, check


def scratch():
    directory = pathlib.Path(tempfile.mkdtemp(prefix="mrt-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def build(directory, **env):
    """tools/wheel; returns the path of the wheel and what it said."""
    done = subprocess.run([ROOT / "tools/wheel", "--out", directory], env={**os.environ, **env}, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=3600)
    check(done.returncode == 0, f"tools/wheel exited {done.returncode}: {done.stderr[-600:]}")
    made = list(directory.glob("*"))
    check(len(made) == 1 and made[0].suffix == ".whl", f"tools/wheel made {[path.name for path in made]}")
    return made[0], done.stdout


@functools.cache
def wheel():
    return build(scratch())[0]


def python_environment(directory):
    """A fresh virtual environment with nothing in it, without pip; returns its directory."""
    call([PYTHON, "-m", "venv", "--without-pip", directory])
    return directory


def pip(environment, *arguments):
    return call([PYTHON, "-m", "pip", "--disable-pip-version-check", "--python", environment / "bin/python", *arguments])


def install(environment):
    pip(environment, "install", "--no-index", "--no-deps", "--no-cache-dir", "--quiet", wheel())


def packages(environment):
    return next((environment / "lib").glob("python3*/site-packages"))


def call(command):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    check(done.returncode == 0, f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr[-600:]}")
    return done.stdout
