"""Calls to a coordinator: the channel, deadlines, what is tried again, and errors as exceptions. As client/client.cc."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Optional

from . import _address
from ._leader import LeaderChoice
from .errors import DeadlineExceededError, Error, UnavailableError, error_of

_MAX_MESSAGE_BYTES = 64 << 20
# A stream that lasted so long ends an interruption, even if nothing came through it.
_SETTLED_SECONDS = 5.0
_PAUSE_SECONDS = 0.02
# A server sends this with the first answer of a stream.
_REACHED_KEY = "meshrun-reached"


def import_grpc() -> Any:
    """The module grpc; with protobuf's, it is imported by the first Client."""
    try:
        import google.protobuf
        import grpc
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"meshrun.Client needs grpcio and protobuf, and '{error.name}' is not installed: "
                                  "pip install 'grpcio>=1.51.1' 'protobuf>=4.21'", name=error.name) from None
    return grpc


class Calls:
    """The channel to the coordinator, of several to the one that leads. Thread-safe."""

    def __init__(self, address: str, tls: _address.TlsFiles, insecure_loopback: bool, timeout: float) -> None:
        self.address = address
        self._where = ", ".join(_address.split(address))
        self._choice = LeaderChoice(_address.split(address))
        self.timeout = timeout
        self._grpc = import_grpc()
        self._tls = tls
        self._insecure_loopback = insecure_loopback
        self._lock = threading.Lock()
        self._closed = False
        # The last one is for the next calls; those before end with their last call.
        self._channels: list[_Channel] = []
        self._stubs: dict[str, Any] = {}
        for one in self._choice.given:
            _address.check_security(one, self._tls, self._insecure_loopback)
        self._connected_to = ""
        # The cluster of the first answer, and the last address whose coordinator was of it.
        self._cluster_id, self._judged = "", ""
        self._connect()

    def _connect(self) -> None:
        from .v1 import cluster_service_pb2_grpc, job_service_pb2_grpc

        address = self._connected_to = self._choice.address
        _address.check_security(address, self._tls, self._insecure_loopback)
        # One of several may be on a host that is gone, and swallows what is sent.
        attempt = 1000 if self._choice.has_others() else 2000
        options = [("grpc.initial_reconnect_backoff_ms", 20), ("grpc.min_reconnect_backoff_ms", attempt),
                   ("grpc.max_reconnect_backoff_ms", 1000), ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1),
                   ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES)]
        unix = _address.unix_path(address) is not None
        if not unix:
            # A peer that has vanished silently is noticed within 10 s while a call waits for it.
            options += [("grpc.keepalive_time_ms", 5000), ("grpc.keepalive_timeout_ms", 5000),
                        ("grpc.http2.max_pings_without_data", 0)]
        target = _address.grpc_target(address)
        if self._tls and not unix:
            credentials = self._grpc.ssl_channel_credentials(*self._tls.read())
            channel = self._grpc.secure_channel(target, credentials, options)
        else:
            channel = self._grpc.insecure_channel(target, options)
        self._stubs = {"jobs": job_service_pb2_grpc.JobServiceStub(channel),
                       "cluster": cluster_service_pb2_grpc.ClusterServiceStub(channel)}
        self._channels.append(_Channel(channel, list(self._stubs.values())))

    def close(self) -> None:
        """Ends all calls: those under way and later ones raise ValueError."""
        with self._lock:
            self._closed = True
            channels = [one.channel for one in self._channels]
        for channel in channels:
            channel.close()

    def stub(self, service: str) -> Any:
        with self._lock:
            if self._closed:
                raise ValueError("this meshrun.Client is closed")
            return self._stubs[service]

    def begin(self, stub: Any, method: str, request: Any, timeout: Optional[float], wait_for_ready: bool = False) -> Any:
        """The answer of a call, or its stream of answers. wait_for_ready: wait for a connection until the timeout. Between
        hold(stub) and release(stub)."""
        try:
            return getattr(stub, method)(request, timeout=timeout, wait_for_ready=wait_for_ready)
        except ValueError:  # gRPC's own words for a channel that was closed meanwhile
            self.stub("jobs")
            raise

    def hold(self, service: str) -> Any:
        """stub(service), whose channel stays open until release() of it, though another one may replace it."""
        with self._lock:
            if self._closed:
                raise ValueError("this meshrun.Client is closed")
            self._channels[-1].calls += 1
            return self._stubs[service]

    def release(self, stub: Any) -> None:
        ended = []
        with self._lock:
            for one in self._channels:
                one.calls -= stub in one.stubs
            if not self._closed:
                ended = [one for one in self._channels[:-1] if one.calls == 0]
                self._channels = [one for one in self._channels if one not in ended]
        for one in ended:
            one.channel.close()

    def connects_anew(self, service: str, refused: Any) -> bool:
        """After UNAUTHENTICATED: a connection keeps the certificate that it began with, and another one may lie in the file by
        now. Calls that are refused together get one new connection; streams stay on theirs."""
        with self._lock:
            if self._closed or not self._tls:
                return False
            if self._stubs[service] is refused:
                self._connect()
            return True

    def meet(self, used: Any, timeout: float) -> None:
        """Before a call: where there are several coordinators, asks one that is another than before for its cluster. Raises
        grpc.RpcError: that call's, or an answer as a standby's where the cluster is not that of the first answer."""
        from .v1 import cluster_service_pb2

        with self._lock:
            at = self._connected_to
            if not self._choice.has_others() or self._judged == at or used not in self._stubs.values():
                return
            stub = self._stubs["cluster"]
        self.judge(at, self.begin(stub, "DescribeCluster", cluster_service_pb2.DescribeClusterRequest(max_events=1), timeout))

    def judge(self, at: str, answer: Any) -> None:
        """answer: DescribeCluster's, of the coordinator at this address. Raises as meet()."""
        with self._lock:
            if not self._cluster_id or not self._choice.has_others():  # any cluster is the right one
                self._cluster_id = answer.cluster_id
            if not answer.cluster_id or answer.cluster_id == self._cluster_id:
                self._judged = at
                return
        raise _other_cluster(self._grpc, f"the coordinator at {at} leads cluster {answer.cluster_id}, and this client began with "
                             f"cluster {self._cluster_id}: compare the --state of the coordinators")

    def address_of(self, stub: Any) -> str:
        """Where the stub's calls go; empty: another coordinator has taken its place."""
        with self._lock:
            return self._connected_to if stub in self._stubs.values() else ""

    def has_others(self) -> bool:
        """Whether there are several coordinators."""
        return self._choice.has_others()

    def turn(self, service: str, used: Any, error: Any) -> Optional[float]:
        """A call has ended so. Where there is another coordinator to turn to: seconds until that is due; the next stub leads
        there."""
        detail, code = self._detail(error), self._code(error)
        with self._lock:
            if self._closed or self._stubs[service] is not used:
                return 0.0 if self._choice.has_others() and code == "UNAVAILABLE" else None
            at = self._connected_to
            if detail is not None and (detail.standby or detail.leader):
                self._choice.on_standby(at, detail.leader)
            elif detail is not None or code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                self._choice.on_answer(at)
                return None
            elif code == "UNAVAILABLE" or self._choice.has_others():
                self._choice.on_unreached(at)
            if not self._choice.has_others():
                return None
            if self._choice.address != at:
                try:
                    self._connect()
                except Error:  # a leader, say, to which only TLS leads
                    self._choice.on_unreached(self._choice.address)
                    self._connect()
            return self._choice.wait()

    def unary(self, service: str, method: str, request: Any, retry: bool = True) -> Any:
        """One call with one answer, within the timeout. retry: try again as long where no coordinator is reached: one that restarts
        is soon back, and every call may safely be sent twice. Where there are several coordinators the call goes on to the one
        that leads, and has twice the time: until another leader is elected."""
        begun, anew, away = time.monotonic(), False, None
        while True:
            stub = self.hold(service)
            until = begun + self.timeout * (2 if self.has_others() else 1)
            try:
                # gRPC moves a connection forward only while a call waits for it.
                wait = away is not None and not self.has_others()
                left = max(min(until - time.monotonic(), self.timeout), 0.001)
                if method != "DescribeCluster":
                    self.meet(stub, left)
                at = self.address_of(stub)
                answer = self.begin(stub, method, request, left, wait_for_ready=wait)
                if method == "DescribeCluster" and at:
                    self.judge(at, answer)
                return answer
            except self._grpc.RpcError as error:
                failure, pause = self.explain(error), self.turn(service, stub, error)
            finally:
                self.release(stub)
            self.stub(service)  # raises where close() has ended the call
            if pause is not None and time.monotonic() + pause < until:
                # What a standby says is more than that another attempt was cut short.
                away = away if failure.code == "DEADLINE_EXCEEDED" else failure
                time.sleep(pause)
                continue
            if failure.code == "UNAUTHENTICATED" and not anew and self.connects_anew(service, stub):
                anew = True
                continue
            if away is not None and failure.code == "DEADLINE_EXCEEDED":
                raise away  # which says more
            if failure.code != "UNAVAILABLE" or not retry or time.monotonic() + _PAUSE_SECONDS >= until:
                raise failure
            away = failure
            time.sleep(_PAUSE_SECONDS)  # a coordinator that stops answers so, and ends soon

    def await_coordinator(self, seconds: float) -> None:
        """Waits until a coordinator answers, for so long at most."""
        from .v1 import cluster_service_pb2

        stub = self.hold("cluster")
        try:
            self.begin(stub, "DescribeCluster", cluster_service_pb2.DescribeClusterRequest(max_events=1), seconds, wait_for_ready=True)
        except self._grpc.RpcError:
            pass
        finally:
            self.release(stub)

    def stream(self, method: str, request: Callable[[], Any], accept: Callable[[Any], bool], patience: float,
               ended: Optional[Callable[[], bool]] = None, deadline: Optional[float] = None) -> Stream:
        """A call of JobService with a stream of answers, resumed over interruptions. See Stream."""
        return Stream(self, method, request, accept, patience, ended, deadline)

    def _code(self, error: Any) -> str:
        code = str(error.code().name) if error.code() is not None else "UNKNOWN"
        # A server that stops ends some calls as if their caller had cancelled them.
        return "UNAVAILABLE" if code == "CANCELLED" and self._detail(error) is None else code

    def explain(self, error: Any) -> Error:
        """The coordinator's own errors are passed on unchanged; those that gRPC made say what to try."""
        code, text = self._code(error), error.details() or ""
        detail = self._detail(error)
        if detail is not None and detail.standby:
            text = f"no coordinator that leads was found at {self._where}: {text}"
        elif detail is None:
            if code == "UNAVAILABLE":
                text = _no_coordinator(self._where, _short_reason(text))
            elif code == "DEADLINE_EXCEEDED":
                text = (f"the coordinator at {self._where} did not answer in time: see whether its host is up and the address is "
                        "right ('meshrun doctor' checks both)")
            elif code == "UNIMPLEMENTED":
                code = "UNAVAILABLE"
                text = (f"what answers at {self._where} does not know this call: it is not a meshrun coordinator, or one of "
                        "another version")
        return error_of(code, text)

    @staticmethod
    def _detail(error: Any) -> Any:
        """The ErrorDetail of an error that a meshrun server has made; None: gRPC has made it."""
        from .v1 import error_pb2

        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                try:
                    status = error_pb2.ErrorStatus.FromString(value)
                except Exception:  # of another program than a coordinator: DecodeError has no place of its own in all versions
                    return None
                detail = error_pb2.ErrorDetail()
                ours = any(part.Unpack(detail) and detail.origin for part in status.details)
                return detail if ours else None
        return None


def _other_cluster(grpc: Any, text: str) -> Exception:
    """A grpc.RpcError, as if a standby that names no leader had answered: the call did nothing, and the next address is due."""
    from google.protobuf import any_pb2

    from .v1 import error_pb2

    packed = any_pb2.Any()
    packed.Pack(error_pb2.ErrorDetail(origin=error_pb2.ERROR_ORIGIN_COORDINATOR, standby=True))
    said = error_pb2.ErrorStatus(code=grpc.StatusCode.UNAVAILABLE.value[0], message=text, details=[packed])

    class OtherCluster(grpc.RpcError):
        def code(self) -> Any:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return text

        def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
            return (("grpc-status-details-bin", said.SerializeToString()),)

    return OtherCluster(text)


class _Channel:
    """calls: how many are under way over it."""

    def __init__(self, channel: Any, stubs: list[Any]) -> None:
        self.channel, self.stubs, self.calls = channel, stubs, 0


def _no_coordinator(where: str, reason: str) -> str:
    another = "or name another with MESHRUN_COORDINATOR or Client(address)"
    low = reason.lower().replace("_", " ")
    if "certificate verify failed" in low or "hostname verification" in low:
        return (f"what runs at {where} showed a certificate that is not trusted ({reason}): 'meshrun doctor' looks at the "
                f"certificates, {another}")
    if "alpn" in low:
        return f"what runs at {where} speaks no gRPC ({reason}): is it the HTTP port? Name the address of the coordinator's --listen"
    start = "start one with 'meshrun dev up'" if where.startswith("unix:") else "start meshrun-coordinator there"
    return f"no coordinator is running at {where} ({reason}): {start}, {another}"


def _short_reason(text: str) -> str:
    """ "...: Failed to connect to remote host: Connection refused" -> "connection refused"."""
    reason = text.rpartition(": ")[2]
    return reason[:1].lower() + reason[1:] if reason[1:2].islower() else reason


class Stream:
    """Iterates over the answers that `accept` takes for news, until the coordinator ends the stream.

    ended: where given, whether all has been told: an earlier end is an interruption, and a later error is none.
    While the coordinator is away it tries again, for `patience` seconds after the last news. request: makes the request of each
    attempt, so that it can begin where the last one broke. deadline: of time.monotonic(); a DeadlineExceededError then.
    cancel() ends the iteration from any thread.
    """

    def __init__(self, calls: Calls, method: str, request: Callable[[], Any], accept: Callable[[Any], bool],
                 patience: float, ended: Optional[Callable[[], bool]], deadline: Optional[float]) -> None:
        self._calls, self._method, self._request, self._accept = calls, method, request, accept
        self._patience, self._ended, self._deadline = patience, ended, deadline
        self._stopped = threading.Event()
        self._call: Any = None

    def cancel(self) -> None:
        self._stopped.set()
        call = self._call
        if call is not None:
            call.cancel()

    def __iter__(self) -> Iterator[Any]:
        backoff, away_since, refused = 0.02, None, None
        while not self._stopped.is_set():
            stub, begun, news, reached = self._calls.hold("jobs"), time.monotonic(), False, False
            turn: Optional[float] = None
            left = None if self._deadline is None else max(self._deadline - begun, 0.0)
            call = None
            try:
                self._calls.meet(stub, self._calls.timeout if left is None else min(left, self._calls.timeout))
                call = self._call = self._calls.begin(stub, self._method, self._request(), left)
                if self._stopped.is_set():
                    call.cancel()
                for answer in call:
                    reached = True
                    if self._accept(answer):
                        news = True
                        yield answer
                failure: Error = UnavailableError("the coordinator closed the stream")
                if self._ended is None or self._ended():
                    return
            except self._calls._grpc.RpcError as error:
                if self._stopped.is_set() or (self._ended is not None and self._ended()):
                    return
                self._calls.stub("jobs")  # raises where close() has ended the call
                failure, turn = self._calls.explain(error), self._calls.turn("jobs", stub, error)
                metadata = (call.initial_metadata() if call is not None else None) or ()
                reached = reached or any(key == _REACHED_KEY for key, _ in metadata)
            finally:
                if call is not None:
                    call.cancel()
                self._calls.release(stub)
            now = time.monotonic()
            if self._deadline is not None and now >= self._deadline:
                raise DeadlineExceededError("the job has not ended")
            alive = news or (reached and now - begun >= _SETTLED_SECONDS)
            if alive:
                refused = None
            if failure.code == "UNAUTHENTICATED" and refused is None and self._calls.connects_anew("jobs", stub):
                refused = failure
                continue
            if not isinstance(failure, (UnavailableError, DeadlineExceededError)):
                raise failure
            if alive or away_since is None:
                away_since, backoff = now, 0.02
            if now - away_since >= self._patience:
                raise refused or failure
            pause = backoff if turn is None else max(turn, _PAUSE_SECONDS)
            if self._deadline is not None:
                pause = min(pause, self._deadline - now)
            if reached or turn is not None:
                self._stopped.wait(pause)
            else:
                self._calls.await_coordinator(pause)
            backoff = min(backoff * 2, 1.0)
