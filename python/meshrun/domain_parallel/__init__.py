"""One global tensor on many ranks, for PyTorch, under PhysicsNeMo's names:
`from meshrun.domain_parallel import ShardTensor` in place of `from physicsnemo.domain_parallel import ShardTensor`.

    from meshrun.distributed import DistributedManager
    from meshrun.domain_parallel import ShardTensor
    from torch.distributed.tensor import Shard

    DistributedManager.initialize()
    mesh = DistributedManager().initialize_mesh((-1,), ("domain",))
    x = ShardTensor.from_local(part, mesh, [Shard(2)])      # parts may be uneven, and empty
    loss = model(x).square().mean()                         # an unchanged torch.nn.Module
    loss.backward()

docs/shard_tensor.md lists what each operator moves between ranks. Names are looked up on first use.
"""

from meshrun._lazy import names

_MODULE_OF = {
    **dict.fromkeys(("MissingShardRuleError", "ShardTensorError"), "errors"),
    "ShardTensor": "_tensor",
    "ShardTensorSpec": "_spec",
    **dict.fromkeys(("ShardedCollate", "ShardedSampler", "sharded", "slab"), "data"),
    "TensorPromotionMode": "_promotion",
    "distribute_module": "_module",
    "scatter_tensor": "_scatter",
    "sync_module_over_mesh": "_sync",
}

__all__ = sorted(_MODULE_OF)
__getattr__, __dir__ = names(__name__, _MODULE_OF)
