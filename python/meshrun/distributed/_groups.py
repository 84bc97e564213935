"""How functions read their argument `group`."""

import torch
from torch.distributed import distributed_c10d


def group_name(group=None):
    """c10d's name of a group, as the operators torch.ops.meshrun.* take it.

    group: a torch.distributed.ProcessGroup; the name of a group of DistributedManager, or c10d's own name of a group;
    "world" or None for torch.distributed's default group. Raises ValueError where there is no default group, TypeError for
    anything else; the manager raises where it has no group of that name.
    """
    if group is None:
        return _default_name()
    if isinstance(group, str):
        return _name_of_named(group)
    if not isinstance(group, torch.distributed.ProcessGroup):
        raise TypeError(f"group is {type(group).__name__}; a ProcessGroup, a group's name or None is expected")
    return group.group_name


def _default_name():
    if not torch.distributed.is_initialized():
        raise ValueError("there is no process group yet: call meshrun.distributed.DistributedManager.initialize(), or "
                         'torch.distributed.init_process_group("meshrun"), first')
    return distributed_c10d._get_default_group().group_name


def _name_of_named(name):
    manager = _manager()
    if manager is not None and name in manager.group_names:
        group = manager.group(name)
        return _default_name() if group is None else group.group_name
    known = list(distributed_c10d._world.pg_names.values())
    if name in known:
        return name
    if name == "world":
        return _default_name()
    if manager is not None:
        manager.group(name)  # raises
    raise ValueError(f"this process has no group {name!r}; its groups are {', '.join(known) or 'none'}")


def _manager():
    """DistributedManager where it is initialised."""
    from meshrun.distributed.manager import DistributedManager

    return DistributedManager() if DistributedManager.is_initialized() else None


# torch.compile calls it once and keeps the answer, as it does for a ProcessGroup: a traced program has its groups
# inside. The decorator torch.compiler.assume_constant_result imports all of torch._dynamo.
_name_of_named._dynamo_marked_constant = True
