"""Process groups, meshes, collectives, parallel mappings and distributed transforms for PyTorch, under PhysicsNeMo's names:
`from meshrun.distributed import DistributedManager` in place of `from physicsnemo.distributed import DistributedManager`.

Submodules: manager, config, utils, autograd, mappings, fft, fused, afno, errors. Names are looked up in them on first use.
"""

from meshrun._lazy import names

_MODULE_OF = {
    **dict.fromkeys(("DistributedManager", "PhysicsNeMoUndefinedGroupError",
                     "PhysicsNeMoUninitializedDistributedManagerWarning"), "manager"),
    **dict.fromkeys(("GroupError", "LaunchEnvironmentError", "MeshError", "UndefinedGroupError", "UninitializedError"), "errors"),
    **dict.fromkeys(("ProcessGroupConfig", "ProcessGroupNode"), "config"),
    **dict.fromkeys(("all_gather_v", "gather_v", "indexed_all_to_all_v", "scatter_v", "tie"), "autograd"),
    **dict.fromkeys(("copy_to_parallel_region", "gather_from_parallel_region", "reduce_from_parallel_region",
                     "scatter_to_parallel_region"), "mappings"),
    **dict.fromkeys(("compute_split_shapes", "distributed_transpose", "fused_all_reduce", "mark_module_as_shared",
                     "pad_helper", "reduce_loss", "truncate_helper", "unmark_module_as_shared"), "utils"),
    **dict.fromkeys(("DistributedIRFFT2", "DistributedRFFT2"), "fft"),
}

__all__ = sorted(_MODULE_OF)
__getattr__, __dir__ = names(__name__, _MODULE_OF)
