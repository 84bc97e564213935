"""gRPC calls made of their bytes, for requests that take longer to read as JSON than the coordinator needs for them."""

import socket
import struct
import time

from harness import check
from many_users_items.rapid_reset import END_HEADERS, HEADERS, RST_STREAM, SETTINGS, connect, frame, literal

DATA, PING, GOAWAY, WINDOW_UPDATE = 0, 6, 7, 8
ACK = END_STREAM = 1
INITIAL_WINDOW_SIZE = 4
MOST_OF_A_FRAME = 16384
# The coordinator may have so many bytes under way.
WINDOW = 1 << 26


def varint(number):
    low = []
    while number > 127:
        low.append(number & 127 | 128)
        number >>= 7
    return bytes([*low, number])


def field(number, value):
    """One field of a protobuf message: an integer, or text, bytes or a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


class Connection:
    """Makes one call after another with the certificate of this name."""

    def __init__(self, cluster, name):
        host, port = cluster.site.env["MESHRUN_COORDINATOR"].rsplit(":", 1)
        self.socket = connect(host, int(port), cluster.certificates / name)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(60)
        self.stream = -1
        # Bytes that the coordinator takes now: of the connection, of a new stream, of this stream.
        self.room, self.room_of_streams, self.room_here = 65535, 65535, 65535
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
                            frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, WINDOW)) +
                            frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def call(self, method, message):
        """Calls a method, for example "StoreService/SetValues", and repeats the call while there is no room for it, as clients do.
        Returns the answer, or None; and the headers and trailers of the call, in which texts of errors are readable."""
        until = time.monotonic() + 60
        answer, said = self.call_once(method, message)
        while answer is None and b"; try again" in said:
            check(time.monotonic() < until, f"{method} is refused for 60 s: {said}")
            time.sleep(0.05)
            answer, said = self.call_once(method, message)
        return answer, said

    def call_once(self, method, message):
        self.stream += 2
        self.room_here = self.room_of_streams
        headers = b"".join(literal(name, value) for name, value in (
            (b":method", b"POST"), (b":scheme", b"https"), (b":path", f"/meshrun.v1.{method}".encode()), (b":authority", b"c"),
            (b"content-type", b"application/grpc"), (b"te", b"trailers")))
        self.socket.sendall(frame(HEADERS, END_HEADERS, self.stream, headers))
        rest = memoryview(b"\0" + struct.pack(">I", len(message)) + message)
        answer, said, ended = bytearray(), b"", False
        while not ended:
            size = min(len(rest), self.room, self.room_here, MOST_OF_A_FRAME)
            if size > 0:
                self.socket.sendall(frame(DATA, END_STREAM if size == len(rest) else 0, self.stream, bytes(rest[:size])))
                rest, self.room, self.room_here = rest[size:], self.room - size, self.room_here - size
                continue
            kind, flags, payload = self.take()
            if kind == DATA:
                answer += payload
            elif kind in (HEADERS, RST_STREAM):
                said += payload
            ended = kind == RST_STREAM or kind in (DATA, HEADERS) and flags & END_STREAM
        return bytes(answer[5:]) if answer else None, said

    def take(self):
        """Reads a frame. Returns its kind, flags and payload if it is one of this call."""
        head = self.read(9)
        kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0]
        payload = self.read(int.from_bytes(head[:3], "big"))
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == INITIAL_WINDOW_SIZE:
                    self.room_here += value - self.room_of_streams
                    self.room_of_streams = value
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and stream == 0:
            self.room += struct.unpack(">I", payload)[0]
        elif kind == WINDOW_UPDATE and stream == self.stream:
            self.room_here += struct.unpack(">I", payload)[0]
        elif kind == DATA and payload:
            self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(payload))))
        elif kind == GOAWAY:
            raise OSError(f"the coordinator ends the connection: {payload[8:].decode(errors='replace')}")
        return (kind, flags, payload) if stream == self.stream else (None, 0, b"")

    def read(self, size):
        parts = []
        while size:
            part = self.socket.recv(size)
            if not part:
                raise OSError("the coordinator has closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
