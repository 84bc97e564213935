"""A fault-injecting proxy between two Unix sockets, or two TCP ports of this host: it holds, delays and loses as a network does.

What is lost on a network comes later, by TCP's repetition, and the end of a connection is lost like everything else: so
held bytes are delivered when the hold ends, and neither side learns of the other's end meanwhile.
"""

import queue
import random
import shutil
import socket
import threading
import time

# Beyond so many pieces nothing more is read: the sender's own buffers fill up, as TCP's window does.
MOST_QUEUED = 256
# TCP's first retransmission, which doubles with each further loss.
RETRANSMIT = 0.2


class Proxy:
    """Directions: "up" from the one who connects, "down" to it."""

    def __init__(self, site, name, target):
        """target: unix:PATH or PATH, or 127.0.0.1:PORT; `address` is of the same kind."""
        directory = site.directory / f"proxy-{name}"
        if str(target).startswith("127.0.0.1:"):
            self.target = ("127.0.0.1", int(str(target).rpartition(":")[2]))
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self.target = str(target).removeprefix("unix:")
            directory.mkdir(mode=0o700)
            self.address = f"unix:{directory}/s"
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(f"{directory}/s")
            self._listener.listen(64)
        self.delay, self.loss = {"up": 0.0, "down": 0.0}, 0.0
        # Once this has come from the one who connects, nothing goes down any more.
        self.hold_down_at = None
        self._held = set()
        self._chance = random.Random(name)
        self._ended = False
        self._pairs = []
        threading.Thread(target=self._accept, daemon=True).start()

        def end():
            self._ended = True
            self._listener.close()
            self.cut()
            shutil.rmtree(directory, ignore_errors=True)

        site.cleanup.callback(end)

    def hold(self, *directions):
        self._held = set(directions or ("up", "down"))

    def heal(self):
        self._held = set()

    def cut(self):
        """Breaks all connections, as a reset does."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def _accept(self):
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(self._listener.family)
            try:
                far.connect(self.target)
            except OSError:
                near.close()
                far.close()
                continue
            self._pairs.append((near, far))
            for direction, source, sink in (("up", near, far), ("down", far, near)):
                pieces = queue.Queue(MOST_QUEUED)
                threading.Thread(target=self._read, args=(direction, source, pieces), daemon=True).start()
                threading.Thread(target=self._write, args=(direction, sink, pieces), daemon=True).start()

    def _read(self, direction, source, pieces):
        data = b"x"
        while data:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            # Once: another thread may take it back meanwhile.
            last = self.hold_down_at
            if direction == "up" and last and last in data:
                self.hold("down")
            late = self.delay[direction]
            while self.loss and self._chance.random() < self.loss:
                late += max(late, RETRANSMIT)
            pieces.put((time.monotonic() + late, data))

    def _write(self, direction, sink, pieces):
        data = b"x"
        while data:
            due, data = pieces.get()
            time.sleep(max(0.0, due - time.monotonic()))
            while direction in self._held and not self._ended:
                time.sleep(0.005)
            try:
                if data:
                    sink.sendall(data)
                else:
                    sink.shutdown(socket.SHUT_WR)
            except OSError:
                # The other side is gone: its source ends.
                data = b""
