"""Where the coordinator is and what may be sent there: as core/rpc/default_address.h, client/coordinator_address.cc and
core/rpc/security.h say for the command."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import socket
import stat
import urllib.parse

from .errors import Error, FailedPreconditionError, InvalidArgumentError, NotFoundError, PermissionDeniedError

DEFAULT_PORT = 7480
_LONGEST_SOCKET_PATH = 107


@dataclasses.dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files. All three or none: TLS is always mutual."""

    cert: str = ""
    key: str = ""
    ca: str = ""

    def __bool__(self) -> bool:
        return bool(self.cert or self.key or self.ca)

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Contents of ca, key, cert."""
        return _pem("tls_ca", self.ca), _pem("tls_key", self.key), _pem("tls_cert", self.cert)


def _pem(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        kind: type[Error] = InvalidArgumentError
        if isinstance(error, FileNotFoundError):
            kind = NotFoundError
        elif isinstance(error, PermissionError):
            kind = PermissionDeniedError
        raise kind(f"{name}: {path}: {(error.strerror or str(error)).lower()}") from None
    if b"-----BEGIN" not in content:
        raise InvalidArgumentError(f"{name}: {path} is not a PEM file")
    return content


def private_directory_fault(path: str) -> str:
    """Why `path` is not a directory of this user alone; empty: it is. Raises OSError where it does not exist."""
    info = os.lstat(path)
    user = os.geteuid()
    if not stat.S_ISDIR(info.st_mode):
        return f"{path} is not a directory: remove it, or choose another"
    if info.st_uid != user:
        return (f"directory {path} belongs to user {info.st_uid}, and this process runs as user {user}: choose another "
                "directory")
    if info.st_mode & 0o077:
        return (f"directory {path} is open to other users (mode {stat.S_IMODE(info.st_mode):04o}): run 'chmod 700 {path}', or "
                "choose another directory")
    return ""


def _is_private(path: str) -> bool:
    try:
        return not private_directory_fault(path)
    except OSError:
        return False


def _absolute(name: str) -> str:
    value = os.environ.get(name, "")
    return value if value.startswith("/") else ""


def _start_ticks(pid: int) -> int:
    """When the process began, in ticks since boot; 0: there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def _dev_cluster() -> str:
    """Address of the cluster that 'meshrun dev up' has started; empty: none of its processes lives."""
    state = _absolute("XDG_STATE_HOME")
    home = _absolute("HOME")
    if not state and not home:
        return ""
    path = f"{state}/meshrun/dev" if state else f"{home}/.local/state/meshrun/dev"
    try:
        with open(f"{path}/endpoints.json", encoding="utf-8") as file:
            told = json.load(file)
        processes = [*filter(None, [told.get("coordinator")]), *told.get("workers", [])]
        lives = any(process["pid"] > 0 and process["start_ticks"] and _start_ticks(process["pid"]) == process["start_ticks"]
                    for process in processes)
        return str(told.get("address", "")) if lives else ""
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return ""


def _default() -> str:
    candidates = []
    for runtime in (_absolute("XDG_RUNTIME_DIR"), f"/run/user/{os.geteuid()}"):
        # Not another user's, as sudo may leave it in the environment.
        if runtime and _is_private(runtime):
            candidates.append(f"{runtime}/meshrun/coordinator.sock")
    state = _absolute("XDG_STATE_HOME")
    home = _absolute("HOME")
    host = socket.gethostname() or "localhost"
    if state or home:
        below = f"{state}/meshrun" if state else f"{home}/.local/state/meshrun"
        candidates.append(f"{below}/{host}/coordinator.sock")
    if not candidates:
        raise FailedPreconditionError("no directory for the coordinator's socket: set XDG_RUNTIME_DIR, XDG_STATE_HOME or HOME, "
                                      "or name an address")
    for path in candidates:
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                return f"unix:{path}"
        except OSError:
            continue
    return f"unix:{candidates[0]}"


def resolve(address: str | None) -> str:
    """The addresses to connect to, with commas: those named, $MESHRUN_COORDINATOR, the running dev cluster, this user's socket."""
    named = address or os.environ.get("MESHRUN_COORDINATOR") or _dev_cluster() or _default()
    return ",".join(normalize(one) for one in split(named))


def split(text: str) -> list[str]:
    """Addresses of a list with commas, each once. "unix:PATH" may hold commas: such addresses are separated by ",unix:"."""
    if text.startswith("unix:"):
        return list(dict.fromkeys("unix:" + path for path in text[len("unix:"):].split(",unix:")))
    return list(dict.fromkeys(text.split(",")))


def normalize(text: str) -> str:
    """ "host" -> "host:7480". Raises InvalidArgumentError where the text cannot be an address."""
    if text.startswith("unix:"):
        return text
    if ";" in text:
        raise InvalidArgumentError(f"'{text}' is not the address of a coordinator: write several with commas, for example "
                                   f"head1:{DEFAULT_PORT},head2:{DEFAULT_PORT}")
    wrong = InvalidArgumentError(f"'{text}' is not the address of a coordinator: write unix:PATH or HOST:PORT, for example "
                                 f"head:{DEFAULT_PORT}")
    if not text or "//" in text or " " in text:
        raise wrong
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon:
        return f"{text}:{DEFAULT_PORT}"
    if not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
        raise wrong
    return text


def unix_path(address: str) -> str | None:
    """PATH of "unix:PATH" or "unix:///PATH"."""
    if not address.startswith("unix:"):
        return None
    path = address[len("unix:"):]
    return path[2:] if path.startswith("///") else path


def grpc_target(address: str) -> str:
    """The address as gRPC wants it, which reads "unix:PATH" as a URI."""
    path = unix_path(address)
    return address if path is None else "unix:" + urllib.parse.quote(path, safe="/-._~")


def _is_local(address: str) -> bool:
    host = address[1:].split("]")[0] if address.startswith("[") else address.rpartition(":")[0]
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_security(address: str, tls: TlsFiles, insecure_loopback: bool) -> None:
    """Plaintext goes to a Unix socket of this user alone, or with insecure_loopback (tests) to loopback."""
    if tls and not (tls.cert and tls.key and tls.ca):
        missing = [name for name, path in (("tls_cert", tls.cert), ("tls_key", tls.key), ("tls_ca", tls.ca)) if not path]
        raise InvalidArgumentError("TLS is mutual and needs all of tls_cert, tls_key and tls_ca (or MESHRUN_TLS_CERT, "
                                   f"MESHRUN_TLS_KEY and MESHRUN_TLS_CA); missing: {', '.join(missing)}")
    path = unix_path(address)
    if path is not None:
        _check_socket_directory(path)
        return
    if tls:
        return
    if not _is_local(address):
        raise InvalidArgumentError(f"{address} is reached over the network, and plaintext is refused there: pass tls_cert, tls_key "
                                   "and tls_ca, or use a Unix socket (unix:PATH) on this host")
    if not insecure_loopback:
        raise InvalidArgumentError(f"plaintext is refused on {address}, where every user of this host can connect: use a Unix "
                                   "socket (unix:PATH), or pass tls_cert, tls_key and tls_ca")


def _check_socket_directory(path: str) -> None:
    """Nothing is sent to a socket that another user could have made."""
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        raise InvalidArgumentError(f"the path of the socket {path} has {len(os.fsencode(path))} bytes, and the system allows "
                                   f"{_LONGEST_SOCKET_PATH}: use a shorter directory")
    directory = os.path.dirname(path) or "."
    try:
        info = os.lstat(directory)
        roots = stat.S_ISDIR(info.st_mode) and info.st_uid == 0 and not info.st_mode & 0o022
        if os.geteuid() != 0 and roots:
            return
        fault = private_directory_fault(directory)
    except FileNotFoundError:
        return  # no coordinator runs there: the call says so
    except OSError as error:
        raise PermissionDeniedError(f"{directory}: {(error.strerror or str(error)).lower()}") from None
    if fault:
        raise PermissionDeniedError(fault)
