"""Makes the manager's process groups those of torch.distributed.

The C++ manager makes every group. torch.distributed learns of one by its own way for new groups, in which it asks the
backend "meshrun" for a group: while `_handed_out` is set, that backend gives the manager's. So torch's default group is
the manager's world, and DDP, FSDP2 and collectives take the groups of manager.group().

What is kept here belongs to one world. join_torch() forgets it when the C++ side has joined another one.

Threads: one joins and leaves; groups from any.
"""

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import meshrun._torch_entry as _entry
from meshrun.torch import _extension

# How long cleanup waits for groups that are not the manager's, such as a program's own on Gloo.
_LAST_WAIT = 5.0

_lock = threading.RLock()
_handed_out = threading.local()  # .group: what the backend gives to torch.distributed in this thread at this moment
_world = None  # torch's default group, while it is the manager's world
_process = None  # that joined: children of fork() leave its groups alone
_groups = {}  # by name
_meshes = {}  # groups of several axes of a mesh, by their ranks
_mesh = None  # torch's DeviceMesh of the manager's mesh
_hooks = None  # sys.excepthook before torch joined, and after
_at_forget = []  # functions that forget what belongs to a world


def is_joined():
    """Whether torch's default group is the manager's world. It is not after destroy_process_group()."""
    return _world is not None and dist.is_initialized() and dist.group.WORLD is _world


def at_forget(function):
    """From now on `function` is called when this process leaves the manager's world."""
    _at_forget.append(function)


def refuse_other_world():
    """RuntimeError if torch.distributed has a world that is not the manager's."""
    if dist.is_initialized() and not is_joined():
        raise RuntimeError(
            f"torch.distributed is initialized already, with the backend {dist.get_backend()!r}: call "
            "DistributedManager.initialize() instead of init_process_group(), which it calls itself")


def join_torch():
    """Makes the world that the C++ manager is in torch's default group, and forgets the one before.

    Returns without waiting for any rank, also if ranks of the world before are dead. Groups and meshes of that world are
    no longer torch's. RuntimeError: torch.distributed has a world that is not the manager's.
    """
    global _hooks, _process, _world
    refuse_other_world()
    end_groups(forget_torch(), abort=True)
    group = _extension.manager_group()
    hook = sys.excepthook
    _hand_out(group, lambda: dist.init_process_group(
        _entry.NAME, store=_extension.manager_store(), rank=group.rank(), world_size=group.size(),
        timeout=_extension.manager_timeout()))
    _hooks = hook, sys.excepthook
    _world, _process = group, os.getpid()
    _entry.forget_traced_programs()
    for name in _extension.manager_group_names():
        named_group(name)
    if _extension.manager_mesh_names():
        mesh()


def forget_torch():
    """Empties torch.distributed of the manager's world, and returns (group, backend) of those it had.

    No group is shut down: that waits for operations, which peers may never finish.
    """
    global _hooks, _mesh, _world
    held = []
    if is_joined():
        held = [(group, backend) for group, (backend, _) in c10d._world.pg_map.items()]
        c10d._world.pg_names.clear()  # destroy_process_group() shuts down the groups in it
        dist.destroy_process_group()
    if _hooks is not None and sys.excepthook is _hooks[1]:
        sys.excepthook = _hooks[0]  # else each world puts one more "[rank0]:" before a traceback
    _groups.clear()
    _meshes.clear()
    for forget in _at_forget:
        forget()
    _hooks = _mesh = _world = None
    return held


def end_groups(held, abort):
    """Ends those groups of forget_torch() that are not the manager's: these end with it.

    On another thread, because a group may wait for peers that are gone.
    """
    others = [group for group, backend in held if backend != _entry.NAME]
    held.clear()

    def end():
        while others:
            group = others.pop()
            try:
                group.abort() if abort else group.shutdown()
            except Exception:
                pass  # a backend that cannot do that ends with its last handle

    if others:
        thread = threading.Thread(target=end, daemon=True)
        thread.start()
        thread.join(_LAST_WAIT)


def difference(call):
    """How ranks' descriptions of a call that all of them make differ, in the same words on all; empty: they are equal."""
    if _extension.manager_world_size() == 1:
        return ""
    _require_world(call)
    return torch.ops.meshrun.difference_between_ranks(_world.group_name, call, "")


def _require_world(what):
    if not is_joined():
        raise RuntimeError(f"{what} needs torch's default group, which destroy_process_group() has ended: call "
                           "DistributedManager.cleanup() and initialize()")


def in_this_process():
    return _process is None or _process == os.getpid()


def named_group(name):
    """torch's ProcessGroup of that name. All its ranks call it, in the same order of groups. UndefinedGroupError."""
    if name == "world":
        return _extension.manager_group()
    with _lock:
        if name not in _groups:
            _groups[name] = _adopt(name, _extension.manager_group_ranks(name), _extension.manager_group(name))
        return _groups[name]


def group_of_mesh(ranks):
    """The group of a mesh's ranks, made once. All of them call it."""
    key = tuple(sorted(ranks))
    with _lock:
        if key not in _meshes:
            name = "mesh " + ",".join(map(str, key))
            _meshes[key] = _adopt(name, list(key), _extension.manager_make_group(name, list(key)))
        return _meshes[key]


def mesh():
    """The DeviceMesh of the manager's mesh, whose axes are the manager's groups. All ranks call it the first time."""
    global _mesh
    with _lock:
        shape, names, ranks = _extension.manager_mesh()
        if _mesh is None or (_mesh.mesh_dim_names, tuple(_mesh.shape)) != (tuple(names), tuple(shape)):
            device = "cuda" if _extension.manager_cuda() else "cpu"
            _mesh = dist.DeviceMesh.from_group([named_group(name) for name in names], device,
                                               mesh=torch.tensor(ranks, dtype=torch.int).reshape(shape),
                                               mesh_dim_names=tuple(names))
        return _mesh


def _hand_out(group, call):
    with _lock:
        _handed_out.group = group
        try:
            return call()
        finally:
            del _handed_out.group


def _adopt(name, ranks, group):
    """Makes torch know the manager's `group` of these ranks.

    As new_group() does for its members; but that one counts its calls, and names the groups of later calls by the
    count, which must be equal on all ranks.
    """
    _require_world(f"the process group {name!r}")
    title = f"meshrun/{name}"
    while title in c10d._world.pg_names.values():
        title += "'"
    store = c10d._world.pg_map[_world][1]
    _hand_out(group, lambda: c10d._new_process_group_helper(
        len(ranks), group.rank(), ranks, c10d.Backend(_entry.NAME), store, title,
        timeout=_extension.manager_timeout() or c10d.default_pg_timeout, group_desc=name))
    c10d._world.pg_group_ranks[group] = {rank: position for position, rank in enumerate(ranks)}
    return group


def _give(call):
    """What the backend "meshrun" gives torch.distributed for a call: a group of the manager, or None: it makes its own."""
    handed_out = getattr(_handed_out, "group", None)
    if handed_out is not None:
        return handed_out
    if not is_joined() or not call.global_ranks_in_group:
        return None
    # Without a timeout of its own, new_group() names torch's; the manager's comes before that.
    timeout = None if call.timeout == c10d.default_pg_timeout else call.timeout
    number = call.store.add(f"meshrun/calls/{call.group_rank}", 1)
    return _extension.manager_make_group(f"torch {call.group_id}", list(call.global_ranks_in_group),
                                         dist.PrefixStore(f"meshrun/{number}", call.store), timeout)


_entry.given = _give
