"""A Python exception that ends a rank, in the file that its launcher names (TORCHELASTIC_ERROR_FILE), with its traceback: the job's
report shows the first one."""

import json
import os
import sys
import time
import traceback

_previous = None


def install():
    """Once; the hook that was there is called after it. What a program writes into the file itself stays."""
    global _previous
    if _previous is None and os.environ.get("TORCHELASTIC_ERROR_FILE"):
        _previous = sys.excepthook
        sys.excepthook = _write


def _write(kind, error, trace):
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    try:
        if path and not os.path.exists(path) and issubclass(kind, Exception):
            text = "".join(traceback.format_exception_only(kind, error)).strip()
            said = {"message": {"message": text, "extraInfo": {
                "py_callstack": "".join(traceback.format_exception(kind, error, trace)), "timestamp": str(int(time.time()))}}}
            aside = f"{path}.{os.getpid()}"
            with open(aside, "w") as file:
                json.dump(said, file)
            os.replace(aside, path)
    except OSError as failure:
        print(f"meshrun: the error file {path} could not be written: {failure}", file=sys.stderr)
    _previous(kind, error, trace)
