"""Progress of a rank: one datagram to the worker daemon, which the command and the pages show."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Optional

_socket: Optional[socket.socket] = None


def report(*, step: Optional[int] = None, total_steps: Optional[int] = None, loss: Any = None, **values: Any) -> None:
    """Tells meshrun how far this rank is: `meshrun.report(step=12, total_steps=100, loss=0.3)`.

    step and total_steps are integers, loss and all further values are numbers, for example a tensor of one element. It
    never waits and never raises for the receiver's sake: a report that finds no room is dropped. Outside meshrun it does
    nothing. Raises TypeError for what is not a number, and ValueError for a negative step.

    With every step the daemon knows that the rank is alive: `meshrun run --hang-timeout` counts from the last one.
    """
    said: dict[str, float] = {}
    for name, value in {"step": step, "total_steps": total_steps}.items():
        if value is None:
            continue
        number = int(value)
        if number != value:
            raise TypeError(f"{name} is {value!r}, and must be an integer")
        if number < 0:
            raise ValueError(f"{name} is {number}, and must not be negative")
        said[name] = number
    for name, value in {"loss": loss, **values}.items():
        if value is None:
            continue
        try:
            detach = getattr(value, "detach", None)  # torch warns where a tensor that needs gradients becomes a number
            said[name] = float(detach() if callable(detach) else value)  # NaN too, as Python's json writes it
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name} is {value!r}, and must be a number") from error
    address = os.environ.get("MESHRUN_REPORT")
    if address:
        _send(address, json.dumps(said).encode())


def _send(address: str, message: bytes) -> None:
    global _socket
    if _socket is None:
        _socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        _socket.setblocking(False)
    try:
        _socket.sendto(message, address)
    except OSError:  # full, or the daemon is starting anew
        pass
