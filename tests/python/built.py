"""The package meshrun with its extension, for tests that start Python with torch: built by Bazel, or given."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "soak"), str(TESTS / "acceptance")]
from environments import ROOT, environment, made_once, packages, torch_of_this_tree
from harness import bazel, cuda_flags

# What torch imports for objects, DistributedDataParallel and FSDP.
EXTRAS = TESTS / "python/beside-torch-requirements.txt"
# Flags of deploy/install for the library in one file.
FLAGS = ["--define=meshrun_debian=shared", "--noincompatible_remove_legacy_whole_archive"]
TARGETS = ["//parallel:libmeshrun.so", "//python/extension:_torch.so", "//python/extension:built_for_file"]


class Failed(Exception):
    """Says what does not build, or does not end well."""


def add_option(parser):
    parser.add_argument("--package", type=pathlib.Path, metavar="DIRECTORY", help="that holds a built package meshrun "
                        "(default: $MESHRUN_TEST_PACKAGE, else it is built)")


def package(given=None):
    """A directory for PYTHONPATH; built once. Raises Failed."""
    given = given or os.environ.get("MESHRUN_TEST_PACKAGE")
    if given:
        if not (pathlib.Path(given) / "meshrun/torch/_built_for.py").exists():
            raise Failed(f"{given} has no built package meshrun")
        return pathlib.Path(given).resolve()
    return made_once("package", build)


def build(directory):
    """The package in `directory`, as an installation has it. Raises Failed."""
    said = subprocess.run(bazel("build", "--noshow_progress", *cuda_flags(), *FLAGS, *TARGETS), cwd=ROOT, text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if said.returncode:
        raise Failed(f"the extension does not build: {' | '.join(said.stderr.splitlines()[-8:])}")
    asked = subprocess.run(bazel("info", *cuda_flags(), *FLAGS, "bazel-bin"), cwd=ROOT, capture_output=True, text=True,
                           check=True)
    binaries = pathlib.Path(asked.stdout.strip())
    package = directory / "meshrun"
    shutil.copytree(ROOT / "python/meshrun", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "_version.py").write_text('__version__ = "built here"\n')  # tools/wheel writes the number
    (package / "lib").mkdir()
    shutil.copy(binaries / "parallel/libmeshrun.so", package / "lib")
    shutil.copy(binaries / "python/extension/_torch.so", package)
    shutil.copy(binaries / "python/extension/_built_for.py", package / "torch")


def python():
    """Python with torch: $MESHRUN_TEST_PYTHON, else the environment's. Raises Missing."""
    return pathlib.Path(os.environ.get("MESHRUN_TEST_PYTHON") or environment(torch_of_this_tree()) / "python")


def torch_version(interpreter):
    """Without its build: "2.15.0"."""
    said = subprocess.run([str(interpreter), "-c", "import importlib.metadata as m; print(m.version('torch'))"], text=True,
                          capture_output=True, check=True)
    return said.stdout.strip().split("+")[0]


def environ(*places, requirements=(), **more):
    """The environment of such a process: without a launcher's variables and other people's settings of torch and meshrun. It
    buffers what it prints: a line of a rank is one write, also where several ranks have one pipe."""
    kept = {name: value for name, value in os.environ.items()
            if not re.match(r"RANK$|WORLD_SIZE$|MASTER_|(LOCAL|GROUP)_|(MESHRUN|TORCH|PYTORCH)|PYTHONUNBUFFERED$", name)}
    paths = [*places, *map(packages, (EXTRAS, *requirements))]
    return kept | {"PYTHONPATH": ":".join(map(str, paths)), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
                   "PYTHONFAULTHANDLER": "1"} | more
