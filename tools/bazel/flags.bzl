"""Flags that several rules share."""

LESS_OPTIMIZED = ["-O1"]

# Compiling tests takes longer than running them.
UNOPTIMIZED = [
    "-O0",
    "-U_FORTIFY_SOURCE",
]

# Code that waits for people, sockets, processes and LibTorch's operators: -O1 spares a tenth to a quarter of each
# compilation. What computes, core/, the coordinator's state machine, collectives and benchmarks are compiled with -O2.
_WAITING = [
    "agent",
    "client",
    "coordinator",
    "jobs",
    "parallel/bagua",
    "parallel/checkpoint",
    "parallel/elastic",
    "parallel/manager",
    "parallel/nn",
    "tests",
    "worker",
]
_COMPUTING = [
    "client/checkpoint",
    "coordinator/event_loop",
    "coordinator/state_machine",
    "coordinator/state_store",
    "parallel/nn/graph",
    "tests/bench",
    "tests/coordinator/simulation",
]

def _below(package, folders):
    for folder in folders:
        if (package + "/").startswith(folder + "/"):
            return True
    return False

def optimization(package):
    """The copts of a package that compiles with less than .bazelrc's -O2."""
    return LESS_OPTIMIZED if _below(package, _WAITING) and not _below(package, _COMPUTING) else []

def is_unoptimized(package):
    """Whether a package is compiled with UNOPTIMIZED unless a target says otherwise."""
    return _below(package, ["tests"]) and not _below(package, _COMPUTING)

_PRECOMPILED = "third_party/precompiled"
_WITHOUT_PCH = str(Label("//:without_pch"))

def _precompiled(torch, unoptimized):
    return "{}_{}optimized".format("libtorch" if torch else "grpc", "un" if unoptimized else "")

# -fpch-deps: Bazel compares the .d file's headers, and without this those of the precompiled header are not in it.
def precompiled_copts(torch, unoptimized):
    path = "{}/{}.h".format(_PRECOMPILED, _precompiled(torch, unoptimized))
    return select({
        _WITHOUT_PCH: [],
        "//conditions:default": ["-include", path, "-Winvalid-pch", "-Werror=invalid-pch", "-fpch-deps"],
    })

def precompiled_deps(torch, unoptimized):
    label = str(Label("//{}:{}".format(_PRECOMPILED, _precompiled(torch, unoptimized))))
    return select({
        _WITHOUT_PCH: [],
        "//conditions:default": [label],
    })
