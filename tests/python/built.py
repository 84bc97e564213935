"""The package meshrun with its extension, for tests that start Python with torch: built as tests/python/torch_backend does, or
given."""

import importlib.machinery
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "soak"), str(TESTS / "acceptance")]
from environments import TORCH, environment, packages

# What torch imports for objects, DistributedDataParallel and FSDP.
EXTRAS = TESTS / "python/beside-torch-requirements.txt"


class Failed(Exception):
    """Says what does not build, or does not end well."""


def add_option(parser):
    parser.add_argument("--package", type=pathlib.Path, metavar="DIRECTORY", help="that holds a built package meshrun "
                        "(default: $MESHRUN_TEST_PACKAGE, else it is built)")


def package(directory, given=None):
    """A directory for PYTHONPATH; `directory` is made where it has to be built. Raises Failed."""
    given = given or os.environ.get("MESHRUN_TEST_PACKAGE")
    if given:
        if not (pathlib.Path(given) / "meshrun/torch/_built_for.py").exists():
            raise Failed(f"{given} has no built package meshrun")
        return pathlib.Path(given).resolve()
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader("torch_backend", str(TESTS / "python/torch_backend"))
    torch_backend = importlib.util.module_from_spec(importlib.util.spec_from_loader("torch_backend", loader))
    loader.exec_module(torch_backend)
    directory.mkdir()
    try:
        torch_backend.build(directory)
    except torch_backend.Failed as error:
        raise Failed(str(error)) from error
    return directory


def python():
    """Python with torch: $MESHRUN_TEST_PYTHON, else the environment's. Raises Missing."""
    return pathlib.Path(os.environ.get("MESHRUN_TEST_PYTHON") or environment(TORCH) / "python")


def torch_version(interpreter):
    """Without its build: "2.15.0"."""
    said = subprocess.run([str(interpreter), "-c", "import importlib.metadata as m; print(m.version('torch'))"], text=True,
                          capture_output=True, check=True)
    return said.stdout.strip().split("+")[0]


def environ(*places, requirements=(), **more):
    """The environment of such a process: without a launcher's variables and other people's settings of torch and meshrun."""
    kept = {name: value for name, value in os.environ.items()
            if not re.match(r"RANK$|WORLD_SIZE$|MASTER_|(LOCAL|GROUP)_|(MESHRUN|TORCH|PYTORCH)", name)}
    paths = [*places, *map(packages, (EXTRAS, *requirements))]
    return kept | {"PYTHONPATH": ":".join(map(str, paths)), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | more
