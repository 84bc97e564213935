"""The programs of the wheel as console scripts: each replaces this process, so that signals and exit codes are its own."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

_PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", "bin")


def program(name: str) -> str:
    """Path of a program of this wheel: "meshrun", "meshrun-coordinator", "meshrun-worker" or "meshrun-probe"."""
    return os.path.join(_PROGRAMS, name)


def _replace_by(name: str) -> NoReturn:
    path = program(name)
    try:
        os.execv(path, [path, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"meshrun: {path} cannot be run: {error.strerror}: install the wheel again, and look whether its file system "
                 "is mounted noexec")


def meshrun() -> NoReturn:
    _replace_by("meshrun")


def coordinator() -> NoReturn:
    _replace_by("meshrun-coordinator")


def worker() -> NoReturn:
    _replace_by("meshrun-worker")


def probe() -> NoReturn:
    _replace_by("meshrun-probe")
