"""Who may see a folder of parallel/: the folders that stand right of it in

    base <- kernels <- comm <- manager <- collectives <- {fft <- shard <- nn <- checkpoint, bagua}; elastic uses all but bagua

tests/house checks the same order in the sources.
"""

_USERS = {
    "base": ["kernels", "comm", "manager", "collectives", "fft", "shard", "nn", "bagua", "checkpoint", "elastic"],
    "kernels": ["comm", "manager", "collectives", "fft", "shard", "nn", "bagua", "checkpoint", "elastic"],
    "comm": ["manager", "collectives", "fft", "shard", "nn", "bagua", "checkpoint", "elastic"],
    "manager": ["collectives", "fft", "shard", "nn", "bagua", "checkpoint", "elastic"],
    "collectives": ["fft", "shard", "nn", "bagua", "checkpoint", "elastic"],
    "fft": ["shard", "nn", "checkpoint", "elastic"],
    "shard": ["nn", "checkpoint", "elastic"],
    "nn": ["checkpoint", "elastic"],
    "bagua": [],
    "checkpoint": ["elastic"],
    "elastic": [],
}

def visible_above(folder):
    """The default visibility of the packages in parallel/<folder>: itself, the folders above it, jobs, python, tests, and //parallel for everybody else."""
    return ["//jobs:__subpackages__", "//python:__subpackages__", "//tests:__subpackages__"] + [
        "//parallel/%s:__subpackages__" % user
        for user in [folder] + _USERS[folder]
    ] + ["//parallel:__pkg__"]
