"""meshrun for Python: the programs (`meshrun`, its daemons) and a client of a coordinator.

    import meshrun

    with meshrun.Client() as client:
        job = client.submit(command=["python3", "train.py"], nodes=2, procs_per_node=4)
        job = client.wait(job.id, check=True)

`import meshrun` itself loads nothing else: a name is looked up in its module on first use, and grpcio is imported by the
first `Client`. In a rank it lets the worker ask where the script stands (_stacks.py). docs/python.md shows more.
"""

from __future__ import annotations

import os as _os

from ._version import __version__

if _os.environ.get("MESHRUN_STACK_FILE"):
    from . import _stacks

    _stacks.register(_os.environ["MESHRUN_STACK_FILE"])

# Type checkers take it for true; typing itself is not imported.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from ._pictures import show_picture as show_picture
    from ._report import report as report
    from .client import Client as Client
    from .errors import (
        DeadlineExceededError as DeadlineExceededError,
        Error as Error,
        FailedPreconditionError as FailedPreconditionError,
        InvalidArgumentError as InvalidArgumentError,
        JobFailedError as JobFailedError,
        NotFoundError as NotFoundError,
        PermissionDeniedError as PermissionDeniedError,
        UnavailableError as UnavailableError,
    )
    from .results import (
        Event as Event,
        Failure as Failure,
        FailureCause as FailureCause,
        Job as Job,
        JobSpec as JobSpec,
        JobState as JobState,
        LogLine as LogLine,
        Node as Node,
        NodeState as NodeState,
        Progress as Progress,
        ProgressPoint as ProgressPoint,
        Rank as Rank,
        RankState as RankState,
    )

_MODULE_OF = {
    "Client": "client", "report": "_report", "show_picture": "_pictures",
    **dict.fromkeys(("DeadlineExceededError", "Error", "FailedPreconditionError", "InvalidArgumentError", "JobFailedError",
                     "NotFoundError", "PermissionDeniedError", "UnavailableError"), "errors"),
    **dict.fromkeys(("Event", "Failure", "FailureCause", "Job", "JobSpec", "JobState", "LogLine", "Node", "NodeState",
                     "Progress", "ProgressPoint", "Rank", "RankState"), "results"),
}

__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'meshrun' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
