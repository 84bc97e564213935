"""distribute_module: an ordinary module whose inputs are ShardTensors."""

import inspect

from torch.distributed.tensor import DTensor

from meshrun.domain_parallel import _meshes
from meshrun.domain_parallel.errors import ShardTensorError
from meshrun.torch import _extension


def distribute_module(module, device_mesh=None, partition_fn=None, input_fn=None, output_fn=None):
    """Collective over the mesh: the module trains on ShardTensors that are cut over its axes. Returns the module.

    Parameters and buffers become those of the mesh's first rank, and stay plain and whole. Within a backward pass each rank has a
    summand of their gradients; when the pass ends the summands are added over the whole mesh, in buckets, once. So a mesh of
    ("dp", "domain") needs no DistributedDataParallel: losses are of the global batch. Without distribute_module() plain parameters get
    the same gradients, one message for each.

    Args: `device_mesh`: None: that of the enclosing `with mesh:`, else the manager's. `partition_fn(name, submodule, mesh)` may put
    ShardTensors or DTensors in place of parameters; it runs first, for every submodule. `input_fn(submodule, inputs, mesh)` and
    `output_fn(submodule, outputs, mesh)` change what the module takes and gives.

    Raises ShardTensorError on all ranks: modules that differ between ranks, parameters that are shared already or have a
    post-accumulate hook.
    """
    mesh = _meshes.native(device_mesh)
    device_mesh = device_mesh if device_mesh is not None else _meshes.device_mesh(mesh)
    for hook, name in ((input_fn, "input_fn"), (output_fn, "output_fn")):
        if hook is not None and len(inspect.signature(hook).parameters) != 3:
            raise ShardTensorError(f"{name} takes three arguments, (module, values, device_mesh), not "
                                   f"{len(inspect.signature(hook).parameters)}")
    if partition_fn is not None:
        for name, part in list(module.named_modules()):
            partition_fn(name, part, device_mesh)
    entries = [(name, parameter, True) for name, parameter in module.named_parameters() if not isinstance(parameter, DTensor)]
    entries += [(name, buffer, False) for name, buffer in module.named_buffers() if not isinstance(buffer, DTensor)]
    _extension.shard.distribute_module(entries, mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda part, inputs: input_fn(part, inputs, device_mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda part, inputs, outputs: output_fn(part, outputs, device_mesh))
    return module
