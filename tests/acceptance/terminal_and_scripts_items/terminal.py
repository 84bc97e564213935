"""A pseudo-terminal with a program on it, and what a person would see there."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

from harness import check

CONTROL = re.compile(r"\x1b\[([?0-9;]*)([@-~])")


class Screen:
    """Rows of a terminal: carriage return, newline, backspace, wrapping, cursor up, erasing. What scrolls away stays."""

    def __init__(self, columns):
        self.columns, self.rows, self.row, self.column, self.wraps, self.rest = columns, [[]], 0, 0, True, ""

    def write(self, text):
        text, at = self.rest + text, 0
        self.rest = ""
        while at < len(text):
            if text[at] == "\x1b":
                found = CONTROL.match(text, at)
                if not found:
                    self.rest = text[at:]
                    return
                self.control(found[2], found[1])
                at = found.end()
                continue
            self.put(text[at])
            at += 1

    def control(self, final, parameters):
        if final == "A":
            self.row = max(0, self.row - int(parameters or 1))
        elif final in "KJ":
            del self.rows[self.row][self.column:]
            if final == "J":
                del self.rows[self.row + 1:]
        elif parameters == "?7":
            self.wraps = final == "h"

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.next_row()
        elif character == "\b":
            self.column = max(0, self.column - 1)
        elif character >= " ":
            if self.column >= self.columns:
                if self.wraps:
                    self.next_row()
                    self.column = 0
                else:
                    self.column = self.columns - 1
            row = self.rows[self.row]
            row.extend(" " * (self.column + 1 - len(row)))
            row[self.column] = character
            self.column += 1

    def next_row(self):
        self.row += 1
        while len(self.rows) <= self.row:
            self.rows.append([])

    def lines(self):
        lines = ["".join(row).rstrip() for row in self.rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines


class Terminal:
    """command runs on it; streams that are given (stdout=, stderr=) are elsewhere."""

    def __init__(self, site, command, columns=80, rows=24, env=None, **streams):
        self.screen = Screen(columns)
        self.bytes = b""
        # Each state of the screen that differs from the one before, with its time.
        self.states = []
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        site.cleanup.callback(os.close, self.master)

        def own_terminal():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        streams = {"stdout": slave, "stderr": slave, **streams}
        self.process = subprocess.Popen([str(word) for word in command], cwd=site.directory, stdin=slave, start_new_session=True,
                                        preexec_fn=own_terminal, env=dict(site.env, TERM="xterm", **(env or {})), **streams)
        os.close(slave)
        site.cleanup.callback(self.end)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def read(self, deadline):
        """False at the end."""
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self.master], [], [], left)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.bytes += data
        self.screen.write(self.decoder.decode(data))
        lines = self.screen.lines()
        if not self.states or self.states[-1][1] != lines:
            self.states.append((time.monotonic(), lines))
        return bool(data)

    def text(self):
        return "\n".join(self.screen.lines()) + "\n"

    def wait_for(self, what, seconds=60):
        deadline = time.monotonic() + seconds
        while what not in self.text():
            check(self.read(deadline), f"the terminal does not show {what!r} but ends as {self.text()[-600:]!r}")

    def type(self, text):
        os.write(self.master, text.encode())

    def finish(self, seconds=60):
        deadline = time.monotonic() + seconds
        while self.read(deadline):
            pass
        return self.process.wait(timeout=max(1.0, deadline - time.monotonic()))
