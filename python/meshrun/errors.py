"""What a call of meshrun.Client raises. str(error) is one sentence for people: the coordinator's own where it answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .results import Job

__all__ = ["DeadlineExceededError", "Error", "FailedPreconditionError", "InvalidArgumentError", "JobFailedError", "NotFoundError",
           "PermissionDeniedError", "UnavailableError"]


class Error(Exception):
    """Base of all of them; also what has no class of its own here.

    code: name of the gRPC code, for example "NOT_FOUND"; docs/errors.md explains them.
    """

    code: str = "UNKNOWN"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code


class InvalidArgumentError(Error, ValueError):
    """A field of a job or an argument is wrong. The sentence says which one and what to write."""

    code = "INVALID_ARGUMENT"


class NotFoundError(Error, LookupError):
    """There is no such job, node or shipped job."""

    code = "NOT_FOUND"


class FailedPreconditionError(Error):
    """It cannot be done in the present state: logs of a job that has not started, a job that no cluster of these nodes runs."""

    code = "FAILED_PRECONDITION"


class PermissionDeniedError(Error):
    """The certificate does not allow the call, or another user could have made the coordinator's socket."""

    code = "PERMISSION_DENIED"


class UnavailableError(Error, ConnectionError):
    """No coordinator answers, or it cannot write its state. The same call may work later."""

    code = "UNAVAILABLE"


class DeadlineExceededError(Error, TimeoutError):
    """The coordinator did not answer in time, or the job had not ended by then."""

    code = "DEADLINE_EXCEEDED"


class JobFailedError(Error):
    """A job that Client.wait(check=True) waited for has FAILED or was CANCELLED. `job`: as it ended."""

    code = "ABORTED"

    def __init__(self, message: str, job: Job) -> None:
        super().__init__(message)
        self.job = job


_BY_CODE: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (InvalidArgumentError, NotFoundError, FailedPreconditionError, PermissionDeniedError, UnavailableError,
                 DeadlineExceededError)
}
_BY_CODE["UNAUTHENTICATED"] = PermissionDeniedError


def error_of(code: str, message: str) -> Error:
    """The exception for a gRPC code."""
    return _BY_CODE.get(code, Error)(message, code)
