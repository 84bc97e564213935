"""On a signal of the worker the frames of all threads go to a file, which `meshrun stack` and the report of a hang show.

faulthandler writes them from the signal handler itself: it needs neither the interpreter's lock nor a thread that runs.
"""

from __future__ import annotations

import faulthandler
import os

SIGNAL = 44  # as worker/dumps/python_frames.h: a real-time signal, which nothing else uses


def register(path: str) -> None:
    """Frames are appended to `path` from now on. A file that cannot be opened, or a system without signals, is no error of the script."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        faulthandler.register(SIGNAL, file=descriptor, all_threads=True, chain=False)
    except (AttributeError, OSError, RuntimeError, ValueError):
        os.close(descriptor)
