"""What meshrun.Client returns: frozen values, made from the messages of proto/meshrun/v1.

Times are aware datetimes in UTC, durations are timedeltas. Paths, arguments and names of variables are bytes on the wire; here
they are text as os.fsdecode makes it. A value of an enumeration that this version does not know is UNKNOWN.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import os
from typing import Any, Mapping, Optional, Type, TypeVar, Union

from .errors import JobFailedError

__all__ = ["Event", "Failure", "FailureCause", "Job", "JobSpec", "JobState", "LogLine", "Node", "NodeState", "Progress",
           "ProgressPoint", "Rank", "RankState"]

_Enum = TypeVar("_Enum", bound=enum.Enum)


class JobState(enum.Enum):
    """QUEUED -> ADMITTED -> RENDEZVOUS -> RUNNING -> SUCCEEDED, FAILED or CANCELLED (docs/architecture.md)."""

    UNKNOWN = "UNKNOWN"
    QUEUED = "QUEUED"
    ADMITTED = "ADMITTED"
    RENDEZVOUS = "RENDEZVOUS"
    RUNNING = "RUNNING"
    QUIESCING = "QUIESCING"
    WAITING = "WAITING"
    SUSPENDED = "SUSPENDED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def has_ended(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class RankState(enum.Enum):
    """LOST: the rank's node is lost, and nobody can say how it ended."""

    UNKNOWN = "UNKNOWN"
    ASSIGNED = "ASSIGNED"
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    LOST = "LOST"


class NodeState(enum.Enum):
    """SUSPECT: the connection is broken and the lease still runs. DRAINING, UNHEALTHY: nothing new is placed there."""

    UNKNOWN = "UNKNOWN"
    HEALTHY = "HEALTHY"
    SUSPECT = "SUSPECT"
    LOST = "LOST"
    DRAINING = "DRAINING"
    UNHEALTHY = "UNHEALTHY"


class FailureCause(enum.Enum):
    """Why a generation of a job failed."""

    UNKNOWN = "UNKNOWN"
    RANK_EXITED = "RANK_EXITED"
    RANK_SIGNALED = "RANK_SIGNALED"
    NODE_LOST = "NODE_LOST"
    BAD_COMMAND = "BAD_COMMAND"
    PREPARE_FAILED = "PREPARE_FAILED"
    QUEUE_TIMEOUT = "QUEUE_TIMEOUT"
    HUNG = "HUNG"
    NO_PROGRESS = "NO_PROGRESS"
    MOVED = "MOVED"
    TIME_LIMIT = "TIME_LIMIT"


@dataclasses.dataclass(frozen=True)
class Failure:
    """The first failure of the job's last generation that failed; what came after it is a consequence.

    message: one sentence. rank: None where no rank is to blame. exit_code: of the rank's process, None where a signal ended
    it, whose number is `signal`. last_lines: what it last wrote, at most 20 lines.
    """

    cause: FailureCause
    message: str
    rank: Optional[int]
    node: str
    exit_code: Optional[int]
    signal: Optional[int]
    last_lines: tuple[str, ...]
    generation: int


@dataclasses.dataclass(frozen=True)
class Progress:
    """What the lowest rank that reports said last. None: it did not report that. metrics: all its other numbers by name."""

    step: Optional[int]
    total_steps: Optional[int]
    loss: Optional[float]
    metrics: Mapping[str, float]
    note: str


@dataclasses.dataclass(frozen=True)
class ProgressPoint:
    """A point of a job's curve."""

    at: datetime.datetime
    step: int
    loss: Optional[float]
    metrics: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Rank:
    """A rank of the job's current or last generation. end: how its process ended, in words; empty while it runs."""

    rank: int
    local_rank: int
    node: str
    gpus: tuple[int, ...]
    state: RankState
    pid: int
    exit_code: Optional[int]
    signal: Optional[int]
    end: str


@dataclasses.dataclass(frozen=True)
class JobSpec:
    """What was asked for, with defaults filled in. The names are those of job.yaml and Client.submit.

    procs_per_node: a number, "gpu", "cpu", or "node" where each node says its own. env: names alone, the values are for the ranks. memory_bytes: per rank, 0
    reserves nothing. None: not set.
    """

    name: str
    command: tuple[str, ...]
    shipped_job: str
    working_dir: str
    env: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    procs_per_node: Union[int, str]
    gpus_per_proc: Optional[int]
    cpus_per_proc: int
    memory_bytes: int
    mesh: Mapping[str, int]
    max_restarts: int
    recovery: str
    replace_at_once: bool
    grow: str
    kill_grace: Optional[datetime.timedelta]
    hang_timeout: Optional[datetime.timedelta]
    queue_timeout: Optional[datetime.timedelta]
    time_limit: Optional[datetime.timedelta]
    priority: int
    constraints: tuple[str, ...]
    exclude_nodes: tuple[str, ...]
    hold: bool
    after: tuple[str, ...]
    account: str
    partition: str
    log_bytes: int
    private: bool
    virtual_local_rank: bool
    numa_binding: Optional[str]
    tensorboard: str


@dataclasses.dataclass(frozen=True)
class Job:
    """A job as it was when the coordinator answered.

    reason: why it is in this state, in one sentence; may be empty. too_big: why the present nodes could never run it; only
    Client.submit sets it. array_id, array_index: where it is one of an array's jobs. ranks: in rank order; only Client.job, watch and wait set them. mesh: with -1 resolved.
    """

    id: str
    state: JobState
    reason: str
    spec: JobSpec
    generation: int
    world_size: int
    restarts: int
    submitted_at: Optional[datetime.datetime]
    started_at: Optional[datetime.datetime]
    finished_at: Optional[datetime.datetime]
    submitter: str
    ranks: tuple[Rank, ...]
    failure: Optional[Failure]
    progress: Optional[Progress]
    mesh: Mapping[str, int]
    too_big: str = ""
    array_id: str = ""
    array_index: Optional[int] = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def has_ended(self) -> bool:
        return self.state.has_ended

    def check(self) -> Job:
        """This job. Raises JobFailedError where it has FAILED or was CANCELLED, with the sentence that says why."""
        if self.state in (JobState.FAILED, JobState.CANCELLED):
            why = self.failure.message if self.failure and self.state is JobState.FAILED else self.reason
            raise JobFailedError(f"{self.id} {'failed' if self.state is JobState.FAILED else 'was cancelled'}"
                                 f"{': ' if why else ''}{why}", self)
        return self


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened, as `meshrun events` shows it. kind: for example "NodeLost". Empty ids: it concerns none.
    cause: sequence of the event that led to it, None where none did. actor: who asked for it; may be empty."""

    sequence: int
    at: Optional[datetime.datetime]
    kind: str
    message: str
    job_id: str
    node_id: str
    cause: Optional[int]
    actor: str = ""


@dataclasses.dataclass(frozen=True)
class Node:
    """A host with a worker daemon. gpus: models, by index. Memory in bytes. problems: what its checks have found.

    certificate_ends_at: None without TLS.
    """

    id: str
    name: str
    addresses: tuple[str, ...]
    state: NodeState
    slots: int
    slots_used: int
    cores: int
    memory_bytes: int
    memory_used_bytes: int
    gpus: tuple[str, ...]
    gpus_used: tuple[int, ...]
    version: str
    labels: Mapping[str, str]
    drained: bool
    drained_because: str
    shipped_jobs: tuple[str, ...]
    problems: tuple[str, ...]
    certificate_ends_at: Optional[datetime.datetime]


@dataclasses.dataclass(frozen=True)
class LogLine:
    """A line of a rank's output, without its newline. stream: "stdout" or "stderr".

    text: bytes that are not UTF-8 are shown as \\xNN. dropped: so many bytes were no longer kept before what follows; such an
    entry has no text.
    """

    job_id: str
    generation: int
    rank: int
    stream: str
    text: str
    dropped: int = 0


def _named(kind: Type[_Enum], wire: Any, number: int) -> _Enum:
    """A value of an enumeration from the name it has on the wire: JOB_STATE_RUNNING is JobState.RUNNING."""
    value = wire.DESCRIPTOR.values_by_number.get(number)
    prefix = wire.DESCRIPTOR.values_by_number[0].name[: -len("UNSPECIFIED")]
    name = value.name[len(prefix):] if value is not None else "UNKNOWN"
    return kind.__members__.get(name, kind.__members__["UNKNOWN"])


def has_ended(message: Any) -> bool:
    """Whether a meshrun.v1.Job has ended."""
    from .v1 import job_pb2 as wire

    return _named(JobState, wire.JobState, message.state).has_ended


def _time(message: Any, field: str) -> Optional[datetime.datetime]:
    if not message.HasField(field):
        return None
    stamp = getattr(message, field)
    return datetime.datetime.fromtimestamp(stamp.seconds, datetime.timezone.utc) + datetime.timedelta(
        microseconds=stamp.nanos // 1000)


def _duration(message: Any, field: str) -> Optional[datetime.timedelta]:
    if not message.HasField(field):
        return None
    value = getattr(message, field)
    return datetime.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)


def _optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def _exit(message: Any) -> tuple[Optional[int], Optional[int]]:
    """Exit code and signal, one of them None; both None without an exit."""
    if not message.HasField("exit"):
        return None, None
    return (None, message.exit.signal) if message.exit.signal else (message.exit.exit_code, None)


def _mesh(axes: Any) -> dict[str, int]:
    return {axis.name: axis.size for axis in axes}


def _spec_of(message: Any) -> JobSpec:
    procs = message.procs_per_node
    kind = procs.WhichOneof("kind")
    return JobSpec(
        name=message.name,
        command=tuple(os.fsdecode(word) for word in message.command),
        shipped_job=message.shipped_job,
        working_dir=os.fsdecode(message.working_dir),
        env=tuple(os.fsdecode(entry.name) for entry in message.env),
        min_nodes=message.min_nodes,
        max_nodes=message.max_nodes,
        procs_per_node=kind if kind in ("gpu", "cpu", "node") else procs.count,
        gpus_per_proc=_optional(message, "gpus_per_proc"),
        cpus_per_proc=message.cpus_per_proc,
        memory_bytes=message.memory_bytes,
        mesh=_mesh(message.mesh),
        max_restarts=message.max_restarts,
        recovery="respawn" if message.recovery == 1 else "auto",
        replace_at_once=message.replace_at_once,
        grow={2: "at-once", 3: "never"}.get(message.growth, "checkpoint"),
        kill_grace=_duration(message, "kill_grace"),
        hang_timeout=_duration(message, "hang_timeout"),
        queue_timeout=_duration(message, "queue_timeout"),
        time_limit=_duration(message, "time_limit"),
        priority=message.priority,
        constraints=tuple(message.constraints),
        exclude_nodes=tuple(message.exclude_nodes),
        hold=message.hold,
        after=tuple(message.after),
        account=message.account,
        partition=message.partition,
        log_bytes=message.log_bytes,
        private=message.private,
        virtual_local_rank=message.virtual_local_rank,
        numa_binding={1: "node", 2: "socket", 3: "exclusive", 4: "core-complex"}.get(message.numa_binding),
        tensorboard=os.fsdecode(message.tensorboard),
    )


def _rank_of(message: Any, wire: Any) -> Rank:
    exit_code, signal = _exit(message)
    place = message.assignment
    return Rank(rank=place.rank, local_rank=place.local_rank, node=message.node_name, gpus=tuple(place.gpus),
                state=_named(RankState, wire.RankState, message.state), pid=message.pid, exit_code=exit_code, signal=signal,
                end=message.end)


def _failure_of(message: Any, wire: Any) -> Failure:
    exit_code, signal = _exit(message)
    return Failure(cause=_named(FailureCause, wire.FailureCause, message.cause), message=message.message,
                   rank=message.rank if message.rank >= 0 else None, node=message.node_name, exit_code=exit_code, signal=signal,
                   last_lines=tuple(message.exit.last_lines), generation=message.generation)


def _progress_of(message: Any) -> Progress:
    return Progress(step=_optional(message, "step"), total_steps=_optional(message, "total_steps"),
                    loss=_optional(message, "loss"), metrics=dict(message.metrics), note=message.note)


def job_of(message: Any, too_big: str = "") -> Job:
    """From meshrun.v1.Job."""
    from .v1 import job_pb2 as wire

    return Job(
        id=message.job_id,
        state=_named(JobState, wire.JobState, message.state),
        reason=message.reason,
        spec=_spec_of(message.spec),
        generation=message.generation,
        world_size=message.world_size,
        restarts=message.restarts,
        submitted_at=_time(message, "submitted_at"),
        started_at=_time(message, "started_at"),
        finished_at=_time(message, "finished_at"),
        submitter=message.submitter,
        ranks=tuple(_rank_of(rank, wire) for rank in message.ranks),
        failure=_failure_of(message.failure, wire) if message.HasField("failure") else None,
        progress=_progress_of(message.progress) if message.HasField("progress") else None,
        mesh=_mesh(message.mesh),
        too_big=too_big,
        array_id=message.array_id,
        array_index=message.array_index if message.array_id else None,
    )


def node_of(message: Any) -> Node:
    """From meshrun.v1.Node."""
    from .v1 import cluster_service_pb2 as wire

    has = message.resources
    return Node(id=message.node_id, name=message.name, addresses=tuple(message.addresses),
                state=_named(NodeState, wire.NodeState, message.state), slots=has.slots, slots_used=message.slots_used,
                cores=has.cores, memory_bytes=has.memory_bytes, memory_used_bytes=message.memory_used_bytes,
                gpus=tuple(gpu.model for gpu in has.gpus), gpus_used=tuple(message.gpus_used), version=message.version,
                labels=dict(message.labels), drained=message.drained, drained_because=message.drained_because,
                shipped_jobs=tuple(message.shipped_jobs), problems=tuple(message.problems),
                certificate_ends_at=_time(message, "certificate_ends_at"))


def event_of(message: Any) -> Event:
    """From meshrun.v1.ClusterEvent."""
    return Event(sequence=message.sequence, at=_time(message, "at"), kind=message.kind, message=message.message,
                 job_id=message.job_id, node_id=message.node_id, cause=message.cause or None, actor=message.actor)


def point_of(message: Any) -> ProgressPoint:
    """From meshrun.v1.ProgressPoint."""
    at = _time(message, "at") or datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
    return ProgressPoint(at=at, step=message.step, loss=_optional(message, "loss"), metrics=dict(message.metrics))
