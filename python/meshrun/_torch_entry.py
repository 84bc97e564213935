"""Registers the backend "meshrun" with torch.distributed: what the entry points torch.backends and
torch.distributed.backends call.

The first runs in every `import torch`, also of programs that never use meshrun. So nothing is loaded here: the first
group loads the extension, and says what is wrong with it.
"""

import sys

NAME = "meshrun"


def given(call):
    """meshrun.distributed sets this: the group for a call where its manager has one, else None."""


def register():
    import torch
    from torch.distributed import is_available

    if not is_available():
        return
    from torch.distributed import Backend, distributed_c10d

    if NAME.upper() not in Backend._plugins:
        # Not whether there is a GPU: to ask for one here would end fork() for programs that have none.
        devices = ["cpu", "cuda"] if torch.version.cuda else ["cpu"]
        Backend.register_backend(NAME, _create, extended_api=True, devices=devices)
        # Its groups keep flight records by themselves. Else torch 2.15 would keep a second one, for 4 us of every call.
        getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set()).add(NAME)


def forget_traced_programs():
    """Makes torch.compile trace its programs again: they have ranks and sizes of groups inside, and a group of the same name
    has other members now."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def _create(call, options):
    """torch.distributed's creator of a group's backend: its _DistributedBackendOptions, and pg_options.

    Returns a Backend for the CPU, or a whole ProcessGroup where CUDA tensors have one too.
    """
    import torch

    import meshrun.torch
    from torch.distributed import is_initialized

    if options is not None:
        raise ValueError(f"pg_options is {type(options).__name__}, but the backend {NAME!r} takes none: pass None")
    group = given(call)
    if group is not None:
        return group
    extension = meshrun.torch._extension
    create = extension.create
    if getattr(call, "enable_reconfigure", False):  # a field that older versions lack
        create = extension.create_reconfigurable
    elif extension.has_backend("nccl") and torch.cuda.is_available():
        create = extension.create_group
    return create(store=call.store, rank=call.group_rank, size=call.group_size, timeout=call.timeout,
                  name=call.group_id, global_ranks=call.global_ranks_in_group, is_default=not is_initialized())
