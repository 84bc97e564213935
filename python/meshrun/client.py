"""The client of a coordinator. See Client."""

from __future__ import annotations

import os
import time
import types
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Optional, Type

from . import _address, _calls, _job_fields, _logs, results
from .errors import DeadlineExceededError, InvalidArgumentError, UnavailableError, error_of
from .results import Event, Job, LogLine, Node, ProgressPoint

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._calls import Stream
    from ._job_fields import JobFields

_NOT_A_FIELD = ("must_fit", "request_id")
# A coordinator gives pages of this size.
_PAGE = 200


class Client:
    """A connection to a coordinator.

        with meshrun.Client() as client:
            job = client.submit(command=["python3", "train.py"], nodes=2, procs_per_node=4)
            for line in client.logs(job.id, follow=True):
                print(line.rank, line.text)
            client.wait(job.id, check=True)

    Thread-safe. After a fork, make another one in the child. Times are in seconds. Errors are those of meshrun.errors: the
    coordinator's sentence, or what to do where none answers. A job is named by its id, or by a beginning of it that no other
    job has.
    """

    def __init__(self, address: Optional[str] = None, *, tls_cert: Optional[str] = None, tls_key: Optional[str] = None,
                 tls_ca: Optional[str] = None, timeout: float = 5.0, patience: float = 60.0,
                 insecure_loopback: bool = False) -> None:
        """Finds the coordinator as the command does, and asks whether it answers.

        address: unix:PATH, or with TLS HOST:PORT or HOST; of several coordinators all, with commas; else $MESHRUN_COORDINATOR,
            the running dev cluster, this user's socket.
        tls_cert, tls_key, tls_ca: PEM files, all three or none; else $MESHRUN_TLS_CERT, $MESHRUN_TLS_KEY and $MESHRUN_TLS_CA.
        timeout: for each answer; a call goes on trying as long where a coordinator that did answer is away.
        patience: how long wait, watch and logs go on trying while the coordinator is away.
        insecure_loopback: for tests: plaintext on 127.0.0.1.

        Raises InvalidArgumentError (address, files), PermissionDeniedError (another user could have made the socket),
        UnavailableError or DeadlineExceededError (no coordinator answers), ModuleNotFoundError (grpcio is missing).
        """
        self._patience = _job_fields.seconds_of("patience", patience)
        timeout = _job_fields.seconds_of("timeout", timeout)
        if not timeout:
            raise InvalidArgumentError("timeout: write a time above 0, for example 5.0")
        _calls.import_grpc()
        tls = _address.TlsFiles(*(given if given is not None else os.environ.get(name, "") for given, name in (
            (tls_cert, "MESHRUN_TLS_CERT"), (tls_key, "MESHRUN_TLS_KEY"), (tls_ca, "MESHRUN_TLS_CA"))))
        self._calls = _calls.Calls(_address.resolve(address), tls, insecure_loopback, timeout)
        try:
            self._ask_cluster("DescribeCluster", retry=False, max_events=1)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where the coordinator is: unix:PATH or HOST:PORT; of several coordinators all, with commas."""
        return self._calls.address

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[types.TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"meshrun.Client({self.address!r})"

    def close(self) -> None:
        """Closes the connection. Jobs go on; calls under way, and iterators of watch and logs, raise ValueError."""
        self._calls.close()

    def submit(self, *, must_fit: bool = False, request_id: Optional[str] = None, **fields: Unpack[JobFields]) -> Job:
        """Submits a job, and returns it as it was accepted; it may have to wait in the queue.

        The keywords are the keys of job.yaml: command, nodes, procs_per_node, mesh, env, memory, time_limit and so on
        (docs/python.md), with the same forms and defaults: memory="4G", nodes="1:4", time_limit="1h30m". Times may also be
        numbers of seconds or timedeltas. The working directory is this process's unless named; nothing of its environment is
        sent. A command whose program is a .py file that cannot be executed is run by python3.

        must_fit: refuse a job that the present nodes could never run, which otherwise waits for others (Job.too_big says why).
        request_id: that of an earlier call which got no answer: it never makes two jobs.

        Raises TypeError (no such keyword), InvalidArgumentError (which keyword is wrong, and what to write), NotFoundError (no
        worker offers this shipped job), FailedPreconditionError (must_fit), UnavailableError.
        """
        from .v1 import job_service_pb2

        _job_fields.check_known("submit()", fields, [*_job_fields.SETTERS, *_NOT_A_FIELD])
        request = job_service_pb2.SubmitJobRequest(request_id=request_id or uuid.uuid4().hex, must_fit=must_fit)
        _job_fields.fill(request.spec, fields)
        try:
            answer = self._calls.unary("jobs", "SubmitJob", request)
        except (UnavailableError, DeadlineExceededError) as error:
            raise error_of(error.code, f"{error}; the job may have been accepted: submit it again with "
                                       f"request_id='{request.request_id}', which never makes two of it") from None
        return results.job_of(answer.job, answer.too_big)

    def job(self, job_id: str) -> Job:
        """The job as it is, with its ranks. Raises NotFoundError."""
        return results.job_of(self._get(job_id).job)

    def events(self, job_id: str) -> list[Event]:
        """What happened to the job, oldest first, as `meshrun describe` shows it. Raises NotFoundError."""
        return [results.event_of(event) for event in self._get(job_id, max_ranks=1).events]

    def curve(self, job_id: str) -> list[ProgressPoint]:
        """The job's progress over time, oldest first; not kept over restarts of the coordinator. Raises NotFoundError."""
        return [results.point_of(point) for point in self._get(job_id, max_ranks=1).curve]

    def jobs(self, *, active_only: bool = False, limit: int = 1000, array_id: str = "") -> list[Job]:
        """Jobs without their ranks, newest first, at most `limit`. active_only: those that have not ended. array_id: those of
        this array, which submit(array=...) has made: Job.array_id."""
        from .v1 import job_service_pb2

        found: list[Job] = []
        request = job_service_pb2.ListJobsRequest(active_only=active_only, array_id=array_id)
        while len(found) < limit:
            request.page_size = min(limit - len(found), _PAGE)
            answer = self._calls.unary("jobs", "ListJobs", request)
            found += [results.job_of(job) for job in answer.jobs]
            request.page_token = answer.next_page_token
            if not request.page_token:
                break
        return found

    def nodes(self) -> list[Node]:
        """The hosts with a worker daemon, in natural order of their names."""
        from .v1 import cluster_service_pb2

        found: list[Node] = []
        request = cluster_service_pb2.ListNodesRequest(page_size=_PAGE)
        while True:
            answer = self._calls.unary("cluster", "ListNodes", request)
            found += [results.node_of(node) for node in answer.nodes]
            request.page_token = answer.next_page_token
            if not request.page_token:
                return found

    def watch(self, job_id: str, *, timeout: Optional[float] = None) -> Iterator[Job]:
        """The job as it is, then its changes until it has ended: states, generations, ranks and reports (Job.progress). Changes
        that a slow reader misses are folded into one; the last state is always delivered. Goes on over restarts of the
        coordinator.

        timeout: for the whole iteration; None: without limit. Raises NotFoundError, DeadlineExceededError, and UnavailableError
        where the coordinator stays away for longer than the client's patience.
        """
        for answer in self._watch(job_id, timeout):
            yield results.job_of(answer.job)

    def wait(self, job_id: str, *, timeout: Optional[float] = None, check: bool = False) -> Job:
        """Returns the job when it has ended, whatever became of it. Goes on over restarts of the coordinator.

        timeout: None: without limit. check: raise JobFailedError, with the sentence that says why, unless it has SUCCEEDED.
        Raises as watch.
        """
        job = None
        try:
            for job in self.watch(job_id, timeout=timeout):
                if job.has_ended:
                    break
        except DeadlineExceededError:
            if job is None or timeout is None:
                raise
            raise DeadlineExceededError(f"{job.id} is {job.state.value} after {timeout:g} s") from None
        assert job is not None and job.has_ended, "a watch ends with the job"
        return job.check() if check else job

    def logs(self, job_id: str, *, follow: bool = False, ranks: Optional[Sequence[int]] = None, stream: Optional[str] = None,
             tail: Optional[int] = None, generation: int = 0) -> Iterator[LogLine]:
        """Lines that ranks wrote, each rank's stream in order; ranks interleave as they write.

        follow: go on until the job has ended, over generations; without it: what there is. ranks: only these. stream: "stdout" or
        "stderr" alone. tail: begin with the last so many lines of each stream. generation: an earlier one; 0: the current one.

        Raises NotFoundError (job, or a rank that it does not have), FailedPreconditionError (it has not started and follow is
        false), UnavailableError (a worker that holds some of the files is away; what was delivered stays valid).
        """
        streams = {None: [], "stdout": [1], "stderr": [2]}
        if stream not in streams:
            raise InvalidArgumentError(f"stream: {stream!r}: write 'stdout' or 'stderr'")
        wanted = [] if ranks is None else list(ranks)
        if ranks is not None and not wanted:
            raise InvalidArgumentError("ranks is empty: name some, or leave it away for all")
        reader = _logs.Reader(self._calls, self.job(job_id).id, wanted, streams[stream], tail,
                              self._patience if follow else 0.0)
        if follow and not generation:
            return reader.follow(lambda: self._watch(job_id, None))
        return reader.once(generation, follow)

    def cancel(self, job_id: str, *, now: bool = False, reason: str = "by meshrun.Client") -> Job:
        """Asks for the end of the job: its ranks get SIGTERM, and SIGKILL after its kill_grace. Returns at once; wait() tells when
        nothing of it runs any more. A job that has ended is not an error.

        now: SIGKILL at once. reason: said in the job's description. Raises NotFoundError, PermissionDeniedError.
        """
        from .v1 import job_service_pb2

        request = job_service_pb2.CancelJobRequest(job_id=self._get(job_id, max_ranks=1).job.job_id, now=now, reason=reason)
        return results.job_of(self._calls.unary("jobs", "CancelJob", request).job)

    def _get(self, job_id: str, max_ranks: int = 0) -> Any:
        """The whole job: all pages of its ranks, unless max_ranks are enough."""
        from .v1 import job_service_pb2

        while True:
            request = job_service_pb2.GetJobRequest(job_id=job_id, max_ranks=max_ranks)
            answer = self._calls.unary("jobs", "GetJob", request)
            while answer.next_rank and not max_ranks:
                request.first_rank = answer.next_rank
                page = self._calls.unary("jobs", "GetJob", request)
                if page.job.generation != answer.job.generation:
                    break
                answer.job.ranks.extend(page.job.ranks)
                answer.next_rank = page.next_rank
            if max_ranks or not answer.next_rank:
                return answer

    def _watch(self, job_id: str, timeout: Optional[float]) -> Stream:
        from .v1 import job_service_pb2

        last: list[Any] = [None]

        def accept(answer: Any) -> bool:
            # A new stream begins with the job as it is, which may be what the last one ended with.
            if answer.job == last[0]:
                return False
            last[0] = answer.job
            return True

        return self._calls.stream("WatchJob", lambda: job_service_pb2.WatchJobRequest(job_id=job_id), accept,
                                  self._patience, lambda: last[0] is not None and results.has_ended(last[0]),
                                  None if timeout is None else time.monotonic() + _job_fields.seconds_of("timeout", timeout))

    def _ask_cluster(self, method: str, retry: bool = True, **fields: Any) -> Any:
        from .v1 import cluster_service_pb2

        return self._calls.unary("cluster", method, getattr(cluster_service_pb2, f"{method}Request")(**fields), retry)
