"""What ShardTensor raises. A caller's mistake has the same sentence on all ranks that called alike.

Operators raise the same from within PyTorch, which makes a plain ValueError and NotImplementedError of them.
"""


class ShardTensorError(ValueError, RuntimeError):
    """A wrong call. PhysicsNeMo and PyTorch raise a RuntimeError for some of these and a ValueError for others."""


class MissingShardRuleError(NotImplementedError):
    """An operator has no rule for a sharded tensor, and MESHRUN_SHARD_STRICT=1 forbids gathering it."""
