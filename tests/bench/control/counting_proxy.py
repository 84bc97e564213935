"""Stands between workers and their coordinator on Unix sockets, and counts what passes: bytes each way, and calls, which
are the HEADERS frames of HTTP/2 that a client sends."""

import os
import socket
import threading

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS = 1


class CountingProxy:
    """Listens on `path` and connects to the Unix socket `target`; both are paths. Thread-safe."""

    def __init__(self, path, target):
        self._target = target
        self._lock = threading.Lock()
        self._counts = {"calls": 0, "sent": 0, "received": 0}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def counts(self):
        """What has passed so far: calls, bytes sent to the coordinator, bytes received from it."""
        with self._lock:
            return dict(self._counts)

    def close(self):
        self._listener.close()

    def _add(self, **counts):
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            threading.Thread(target=self._pass_on, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, False), daemon=True).start()

    def _pass_on(self, source, sink, to_coordinator):
        frames = _Frames() if to_coordinator else None
        try:
            while data := source.recv(1 << 16):
                if to_coordinator:
                    self._add(sent=len(data), calls=frames.headers_in(data))
                else:
                    self._add(received=len(data))
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class _Frames:
    """Reads the frames of one direction, in pieces of any size."""

    def __init__(self):
        self._pending = b""
        self._skip = len(_PREFACE)

    def headers_in(self, data):
        count = 0
        self._pending += data
        while True:
            if self._skip:
                skipped = min(self._skip, len(self._pending))
                self._pending = self._pending[skipped:]
                self._skip -= skipped
            if self._skip or len(self._pending) < 9:
                return count
            count += self._pending[3] == _HEADERS
            self._skip = 9 + int.from_bytes(self._pending[:3], "big")
