"""Registers the backend "meshrun" with torch.distributed: what the entry points torch.backends and
torch.distributed.backends call.

The first runs in every `import torch`, also of programs that never use meshrun. So nothing is loaded here: the first
group loads the extension, and says what is wrong with it.
"""

NAME = "meshrun"


def register():
    from torch.distributed import Backend, is_available

    if is_available() and NAME.upper() not in Backend._plugins:
        Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(call, options):
    """torch.distributed's creator of a group's backend: its _DistributedBackendOptions, and pg_options."""
    import meshrun.torch
    from torch.distributed import is_initialized

    if options is not None:
        raise ValueError(f"pg_options is {type(options).__name__}, but the backend {NAME!r} takes none: pass None")
    return meshrun.torch._extension.create(
        store=call.store, rank=call.group_rank, size=call.group_size, timeout=call.timeout, name=call.group_id,
        global_ranks=call.global_ranks_in_group, is_default=not is_initialized())
