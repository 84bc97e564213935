"""Forks the worlds of a test: each is a process of its own, and its ranks are forked from it. torch is loaded once for all of them.

rank_server.py MODULE has a socket as standard input. A request is a message of JSON, [function of MODULE, size, port, names], with two
descriptors for what the world writes to standard output and to standard error. The answers are the number of the world's process, which
leads a session, and, once it has ended, its exit code. The server ends when the socket is closed."""

import importlib
import json
import os
import socket
import sys

import torch.multiprocessing

# Bytes of a request.
MOST = 1 << 20


def serve(requests):
    """Returns in the server None at its end, and in each world what it has to call."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MOST, 2)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            requests.close()
            os.setsid()
            for number, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            return json.loads(message)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(json.dumps(pid).encode())
        requests.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def main():
    with socket.socket(fileno=os.dup(0)) as requests:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        module = importlib.import_module(sys.argv[1])
        # An optimizer and torch.compile load it, in each rank anew if it is not here.
        importlib.import_module("torch._dynamo")
        call = serve(requests)
    if call is not None:
        function, size, port, names = call
        torch.multiprocessing.start_processes(getattr(module, function), (size, port, names), nprocs=size, start_method="fork")


if __name__ == "__main__":
    main()
