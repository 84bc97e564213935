"""What ShardTensor raises. A caller's mistake has the same sentence on all ranks that called alike.

Operators raise the same from within PyTorch, which makes a plain ValueError and NotImplementedError of them.
"""


class ShardTensorError(ValueError, RuntimeError):
    """A wrong call. PhysicsNeMo and PyTorch raise a RuntimeError for some of these and a ValueError for others."""


def memory_is_elsewhere(name, instead):
    """The error of the method `name` of a sharded tensor, which needs the memory of the whole one. `instead`: what to call of a
    plain one: ".numpy()"."""
    return ShardTensorError(f"{name}() needs the memory of the whole tensor, and this ShardTensor has a part of it here: call "
                            f"full_tensor(){instead}, or to_local(){instead} for this rank's part")


class MissingShardRuleError(NotImplementedError):
    """An operator has no rule for a sharded tensor, and MESHRUN_SHARD_STRICT=1 forbids gathering it."""
