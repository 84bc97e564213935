"""Flags that several rules share."""

LESS_OPTIMIZED = ["-O1"]

# Compiling these tests takes longer than running them.
UNOPTIMIZED = [
    "-O0",
    "-U_FORTIFY_SOURCE",
]

# Code that waits for people, sockets and processes, and tests of it: -O1 spares a tenth to a quarter of each compilation.
# What computes, core/, the coordinator's state machine and benchmarks are compiled with -O2.
_WAITING = ["agent", "client", "coordinator", "jobs", "tests", "worker"]
_COMPUTING = ["coordinator/event_loop", "coordinator/state_machine", "coordinator/state_store", "tests/bench"]

def optimization(package):
    """The copts of a package that compiles with less than .bazelrc's -O2."""
    for computing in _COMPUTING:
        if (package + "/").startswith(computing + "/"):
            return []
    for waiting in _WAITING:
        if (package + "/").startswith(waiting + "/"):
            return LESS_OPTIMIZED
    return []
