"""Runs Python programs with the extension, as ranks: what the tests of the extension share."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "soak"), str(TESTS / "acceptance")]
import built
from built import Failed
from environments import Missing, end_group, free_port, scratch
from harness import Short, skip_soak


def start(command, environ):
    """A group of its own. Standard error has its own pipe: what torch warns of would stand amid a line that a rank prints."""
    return subprocess.Popen([str(word) for word in command], env=environ, text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def output_of(process, timeout):
    """What it wrote to standard output, and to standard error. One that does not end writes where its threads and its group's stand
    (PYTHONFAULTHANDLER), and Failed has it."""
    try:
        return process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as late:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGABRT)
        try:
            said = process.communicate(timeout=10)
        except subprocess.TimeoutExpired as error:
            said = [(text or b"").decode(errors="replace") for text in (error.stdout, error.stderr)]
        raise Failed(f"{last_words(process)} did not end within {timeout} s:\n{last_said(*said, 6000)}") from late


def last_words(process):
    return " ".join(process.args[-4:])


def last_said(output, errors, most):
    return f"{output[-most:]}\n{errors[-most:]}"


def worlds(*sizes):
    """Sizes of the worlds that a test runs with: all of them in the soak run, else the first two."""
    return sizes[:2] if skip_soak() else sizes


def written(file):
    """What others have written to it so far. They share its offset, which stays."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


class World:
    """Ranks that a rank_server forks, as subprocess.Popen has a process."""

    def __init__(self, server, *request):
        function, size, port, names = request
        self.server, self.returncode, self.args = server, None, [function, str(size), str(port), *names]
        self.said = [server.cleanup.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
        socket.send_fds(server.requests, [json.dumps(request).encode()], [file.fileno() for file in self.said])
        try:
            # The first world waits until torch is loaded.
            self.pid = server.answer(300)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"the server of the ranks began none within {late.timeout} s: {server.last_errors()}") from late

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.001)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            self.returncode = self.server.answer(timeout)
        return self.returncode

    def communicate(self, timeout):
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired as late:
            output, errors = map(written, self.said)
            raise subprocess.TimeoutExpired(self.args, timeout, output=output, stderr=errors) from late
        return [written(file).decode(errors="replace") for file in self.said]


class RankServer:
    """A process of rank_server.py. It loads torch and the module of the ranks once, and then forks one world after the other."""

    def __init__(self, python, module, environ):
        self.cleanup = contextlib.ExitStack()
        self.errors = self.cleanup.enter_context(tempfile.TemporaryFile())
        self.requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.cleanup.enter_context(self.requests)
        self.environ = dict(environ)
        with its:
            self.process = subprocess.Popen([str(python), str(TESTS / "python/rank_server.py"), module], env=environ, stdin=its,
                                            stdout=self.errors, stderr=self.errors, start_new_session=True)

    def answer(self, timeout):
        self.requests.settimeout(timeout)
        try:
            said = self.requests.recv(100)
        except TimeoutError as late:
            raise subprocess.TimeoutExpired(self.process.args, timeout) from late
        if not said:
            raise Failed(f"the server of the ranks ended: {self.last_errors()}")
        return json.loads(said)

    def last_errors(self):
        return written(self.errors).decode(errors="replace")[-3000:]

    def end(self):
        self.cleanup.close()
        end_group(self.process, 5)


class Runner:
    """Runs Python programs over the package below the directory `package`; `module` of tests/python has the ranks."""

    def __init__(self, python, directory, package, module):
        self.python = python
        self.module = module
        self.errors = ""
        self.environ = built.environ(package, TESTS / "python", MESHRUN_TEST_DIRECTORY=str(directory))
        self.server = None

    def run(self, command, timeout=300, **changes):
        """What it and its descendants write to standard output; self.errors has what they wrote to standard error. Raises Failed
        with the last of both where it does not end well."""
        return self.said_by(start(command, self.environ | changes), timeout)

    def world(self, function, size, *names, timeout=300):
        """As run, of ranks that call function(rank, size, port, names) of the module."""
        if self.server is None or self.server.environ != self.environ:
            self.close()
            self.server = RankServer(self.python, self.module, self.environ)
        return self.said_by(World(self.server, function, size, free_port(), [str(name) for name in names]), timeout)

    def said_by(self, process, timeout):
        try:
            output, self.errors = output_of(process, timeout)
        finally:
            end_group(process, 5)
        if process.returncode:
            raise Failed(f"{last_words(process)} exited {process.returncode}:\n{last_said(output, self.errors, 3000)}")
        return output

    def spawned(self, function, size, *names):
        said = self.world(function, size, *names)
        print("\n".join(line for line in said.splitlines() if line.startswith("  ")), flush=True)

    def close(self):
        if self.server is not None:
            self.server.end()

    def ends_early(self):
        """Two ranks run ends_early(rank, 2, port) and end by themselves."""
        port, name = free_port(), f"{self.module}.ends_early"
        ranks = [start([self.python, "-c", f"import {self.module}; {name}({rank}, 2, {port})"], self.environ) for rank in range(2)]
        try:
            said = [output_of(process, 120) for process in ranks]
        finally:
            for process in ranks:
                end_group(process, 1)
        if any(process.returncode for process in ranks):
            raise Failed(f"ends_early: {[process.returncode for process in ranks]}: {said}")
        print("  2 ranks: ends_early")


def with_extension(name, module, test, package=None):
    """Calls test(runner, directory, package) with the extension built, or given; ends the program with what is wrong. The last
    line is what the test returns, or that it passed."""
    try:
        with scratch() as (directory, _):
            package = built.package(package)
            runner = Runner(built.python(), directory, package, module)
            with contextlib.closing(runner):
                verdict = test(runner, directory, package)
    except (Failed, Missing, Short) as error:
        sys.exit(f"tests/python/{name}: {error}")
    print(verdict or f"{name}: passed")
