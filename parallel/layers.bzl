"""Who may see a folder of parallel/: the folders that stand right of it in

    base <- kernels <- comm <- manager <- collectives <- {fft <- shard <- nn <- checkpoint, bagua}; elastic and c_api use all
    but bagua and each other

tests/house checks the same order in the sources.
"""

_USERS = {
    "base": ["kernels", "comm", "manager", "collectives", "fft", "shard", "nn", "bagua", "checkpoint", "elastic", "c_api"],
    "kernels": ["comm", "manager", "collectives", "fft", "shard", "nn", "bagua", "checkpoint", "elastic", "c_api"],
    "comm": ["manager", "collectives", "fft", "shard", "nn", "bagua", "checkpoint", "elastic", "c_api"],
    "manager": ["collectives", "fft", "shard", "nn", "bagua", "checkpoint", "elastic", "c_api"],
    "collectives": ["fft", "shard", "nn", "bagua", "checkpoint", "elastic", "c_api"],
    "fft": ["shard", "nn", "checkpoint", "elastic", "c_api"],
    "shard": ["nn", "checkpoint", "elastic", "c_api"],
    "nn": ["checkpoint", "elastic", "c_api"],
    "bagua": [],
    "checkpoint": ["elastic", "c_api"],
    "elastic": [],
    "c_api": [],
}

def visible_above(folder):
    """The default visibility of the packages in parallel/<folder>: itself, the folders above it, jobs, python, tests, and //parallel for everybody else."""
    return ["//jobs:__subpackages__", "//python:__subpackages__", "//tests:__subpackages__"] + [
        "//parallel/%s:__subpackages__" % user
        for user in [folder] + _USERS[folder]
    ] + ["//parallel:__pkg__"]
