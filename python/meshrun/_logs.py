"""Output of ranks as lines, over generations of a job: as client/cli/show_logs.cc."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable, Optional

from .results import LogLine, has_ended

if TYPE_CHECKING:
    from ._calls import Calls, Stream

_STREAMS = {1: "stdout", 2: "stderr"}
# Lines that a slow reader has not taken yet; then the coordinator waits.
_MOST_CHUNKS = 256


class _Lines:
    """Cuts the pieces of one generation's streams into lines."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._open: dict[tuple[int, int, int], bytes] = {}

    def _line(self, key: tuple[int, int, int], data: bytes, dropped: int = 0) -> LogLine:
        return LogLine(self._job_id, key[0], key[1], _STREAMS.get(key[2], "unknown"), data.decode(errors="backslashreplace"), dropped)

    def add(self, chunk: Any) -> Iterator[LogLine]:
        key = (chunk.generation, chunk.rank, chunk.stream)
        begun = self._open.pop(key, b"")
        if chunk.dropped:
            if begun:
                yield self._line(key, begun)
            begun = b""
            yield self._line(key, b"", chunk.dropped)
        *lines, rest = (begun + chunk.data).split(b"\n")
        if rest:
            self._open[key] = rest
        for line in lines:
            yield self._line(key, line)

    def finish(self) -> Iterator[LogLine]:
        for key, data in sorted(self._open.items()):
            yield self._line(key, data)
        self._open.clear()


class Reader:
    """Reads the output of a job. ranks, streams: empty means all. tail: only the last so many lines; None: all."""

    def __init__(self, calls: Calls, job_id: str, ranks: list[int], streams: list[Any], tail: Optional[int],
                 patience: float) -> None:
        self._calls, self._job_id, self._ranks, self._streams = calls, job_id, ranks, streams
        self._tail, self._patience = tail, patience

    def _stream(self, generation: int, follow: bool, started_there: bool = False, tail: Optional[int] = None) -> Stream:
        """Output of one generation: each byte once, each rank's stream in order, also over interruptions."""
        from .v1 import job_service_pb2

        known = generation
        following: dict[tuple[int, int], int] = {}  # rank, stream -> first byte not yet delivered

        def request() -> Any:
            asked = job_service_pb2.ReadLogsRequest(job_id=self._job_id, ranks=self._ranks, streams=self._streams, follow=follow,
                                                    generation=known, started_there=started_there)
            if following:
                for (rank, stream), offset in following.items():
                    asked.positions.add(rank=rank, stream=stream, offset=offset)
            elif tail is not None:
                asked.tail_lines = tail
            return asked

        def accept(chunk: Any) -> bool:
            nonlocal known
            known = chunk.generation
            key = (chunk.rank, chunk.stream)
            offset = following.setdefault(key, chunk.offset - chunk.dropped)
            end = chunk.offset + len(chunk.data)
            if end <= offset:
                return False
            # What was said before, where a stream has been resumed.
            chunk.dropped = min(chunk.dropped, chunk.offset - min(chunk.offset, offset))
            if chunk.offset < offset:
                chunk.data = chunk.data[offset - chunk.offset:]
                chunk.offset = offset
            following[key] = end
            return True

        return self._calls.stream("ReadLogs", request, accept, self._patience)

    def once(self, generation: int, follow: bool) -> Iterator[LogLine]:
        """One generation; 0: the current one. follow: until its processes have ended."""
        lines = _Lines(self._job_id)
        for chunk in self._stream(generation, follow, tail=self._tail):
            yield from lines.add(chunk)
        yield from lines.finish()

    def follow(self, watch: Callable[[], Stream]) -> Iterator[LogLine]:
        """Every generation from the current one on, until the job has ended. Processes of one may live on in the next: each
        generation is read on a thread of its own. watch: a stream of the job, whose answers are Job messages."""
        told: queue.Queue[Any] = queue.Queue(_MOST_CHUNKS)
        stopped = threading.Event()
        streams: list[Stream] = [watch()]

        def put(item: Any) -> None:
            while not stopped.is_set():
                try:
                    return told.put(item, timeout=0.1)
                except queue.Full:
                    continue

        def run(stream: Stream) -> None:
            try:
                for answer in stream:
                    put((stream, answer))
                put((stream, None))
            except BaseException as error:  # told to the thread that reads
                put((stream, error))

        def start(stream: Stream) -> None:
            threading.Thread(target=run, args=(stream,), name="meshrun-logs", daemon=True).start()

        lines, last, open_streams = _Lines(self._job_id), 0, 1
        start(streams[0])
        try:
            while open_streams:
                stream, item = told.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    open_streams -= 1
                elif stream is not streams[0]:
                    yield from lines.add(item)
                elif _has_run(item.job):
                    for generation in range(last + 1 if last else item.job.generation, item.job.generation + 1):
                        fresh = self._stream(generation, True, started_there=last > 0, tail=None if last else self._tail)
                        streams.append(fresh)
                        open_streams += 1
                        last = generation
                        start(fresh)
            yield from lines.finish()
        finally:
            stopped.set()
            for stream in streams:
                stream.cancel()


def _has_run(job: Any) -> bool:
    """Ranks of the current generation have been started: there is output to read."""
    from .v1 import job_pb2

    return job.generation > 0 and (job.state in (job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_QUIESCING) or
                                   (has_ended(job) and job.HasField("started_at")))
