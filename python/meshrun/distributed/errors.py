"""What DistributedManager, its groups, meshes and configurations raise. Each says both sides' values in one sentence.

Each has the type that PyTorch's or Python's own error has there, and the one that PhysicsNeMo raises in its place. Ranks
that did not meet and backends that are not here are torch.distributed.DistError.
"""


class UninitializedError(RuntimeError, Warning):
    """The manager was asked before initialize() or setup(), or after cleanup()."""


class UndefinedGroupError(RuntimeError):
    """No process group or mesh of that name was created; the sentence lists those that were."""


class GroupError(ValueError, AssertionError):
    """A group cannot be formed as asked: its size does not divide the parent's, or its name is taken."""


class MeshError(ValueError, RuntimeError):
    """A mesh cannot be formed as asked: its shape does not fit the world, or a name repeats or is taken."""


class LaunchEnvironmentError(ValueError, RuntimeError):
    """The launcher's environment is half set, malformed or contradicts itself."""
