"""This rank's place in the job, its device, and its process groups and meshes.

    from meshrun.distributed import DistributedManager

    DistributedManager.initialize()
    manager = DistributedManager()
    model = torch.nn.parallel.DistributedDataParallel(model.to(manager.device))

Names, argument order, defaults and exceptions are those of physicsnemo.distributed.manager. What stands behind them is
the C++ meshrun::DistributedManager, whose groups are those of torch.distributed: initialize() also calls
init_process_group("meshrun").
"""

import atexit
import datetime
import operator
import os
import warnings
from collections.abc import Iterable

import torch

from meshrun.distributed import _join
from meshrun.distributed.config import ProcessGroupConfig
from meshrun.distributed.errors import GroupError, MeshError, UndefinedGroupError, UninitializedError
from meshrun.torch import _extension

PhysicsNeMoUndefinedGroupError = UndefinedGroupError
PhysicsNeMoUninitializedDistributedManagerWarning = UninitializedError


class DistributedManager:
    """The one manager of this process: every instance shows the same one.

    UninitializedError: before initialize() or setup(), and after cleanup().
    """

    def __init__(self):
        _extension.manager_rank()

    def __str__(self):
        return (f"rank {self.rank} of {self.world_size}, initialized by the method {self.initialization_method!r}, on "
                f"the device {self.device}")

    # -- joining and leaving --

    @staticmethod
    def initialize(*, backend=None, method=None, timeout=None):
        """Joins the job that the environment shows, and makes its world torch's default group.

        It takes the first that it finds: the meshrun daemon, ENV (torchrun's variables), SLURM, OPENMPI, MPICH; without
        any, this process is rank 0 of 1. MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD, then
        PHYSICSNEMO_DISTRIBUTED_INITIALIZATION_METHOD, forces one. A second call warns and changes nothing. Seeds NumPy
        by the rank, as PhysicsNeMo does.

        Args: `backend` "ucx" (also "meshrun", torch's name of it), "gloo", "nccl" or one for each device,
        "cpu:ucx,cuda:nccl"; None: MESHRUN_BACKEND, else what this machine has. `method`: COORDINATOR, ENV, SLURM,
        OPENMPI, MPICH or SINGLE. `timeout`: timedelta of rendezvous and collectives; None: MESHRUN_TIMEOUT_SECONDS,
        else 5 minutes for the rendezvous, and for collectives 30 minutes (NCCL: 10).

        Several ranks without NCCL in the package run on the CPU: it warns where the host has a GPU.

        Raises: LaunchEnvironmentError; torch.distributed.DistError: the ranks do not meet; RuntimeError:
        init_process_group() was called before.
        """
        backend = "ucx" if backend == "meshrun" else backend
        if timeout is not None and not isinstance(timeout, datetime.timedelta):
            raise TypeError(f"timeout is {timeout!r}; a datetime.timedelta is expected, such as timedelta(seconds=30)")
        _start(lambda: _extension.manager_initialize(backend, method, timeout))

    @staticmethod
    def setup(rank=0, world_size=1, local_rank=None, addr="localhost", port="12355", backend="nccl", method="env"):
        """Joins with the given values instead of the environment's. `backend` "nccl" needs a GPU. Errors as above."""
        _start(lambda: _extension.manager_setup(rank, world_size, local_rank, addr, str(port), backend, method))

    @staticmethod
    def initialize_env():
        """initialize() by torchrun's variables."""
        DistributedManager.initialize(method="ENV")

    @staticmethod
    def initialize_open_mpi(addr, port):
        """initialize() by Open MPI's variables; rank 0 is at `addr` and `port`."""
        os.environ.update(MASTER_ADDR=addr, MASTER_PORT=str(port))
        DistributedManager.initialize(method="OPENMPI")

    @staticmethod
    def initialize_slurm(port):
        """initialize() by Slurm's variables; rank 0 listens at `port`."""
        os.environ["MASTER_PORT"] = str(port)
        DistributedManager.initialize(method="SLURM")

    @staticmethod
    def is_initialized():
        return _extension.manager_is_initialized()

    @staticmethod
    def get_available_backend():
        """"nccl" where this process has a GPU and this build has NCCL, else "ucx"."""
        return "nccl" if _extension.has_backend("nccl") and torch.cuda.is_available() else "ucx"

    @staticmethod
    def cleanup(barrier=False):
        """Leaves the job: drops all groups, torch.distributed's too. Then initialize() works again.

        With `barrier` it first waits for all ranks; a lost peer is a warning. It also runs when the interpreter ends.
        """
        if not _join.in_this_process():
            return
        held = _join.forget_torch()
        try:
            _extension.manager_cleanup(bool(barrier))
        finally:
            _join.end_groups(held, abort=False)

    # -- this rank --

    rank = property(lambda self: _extension.manager_rank(), doc="Number of this rank in the world.")
    world_size = property(lambda self: _extension.manager_world_size(), doc="Number of ranks.")
    local_rank = property(lambda self: _extension.manager_local_rank(), doc="Number of this rank on its node.")
    local_world_size = property(lambda self: _extension.manager_local_world_size(), doc="Ranks on this node.")
    node_rank = property(lambda self: _extension.manager_node_rank(), doc="Number of this node.")
    device = property(lambda self: torch.device(_extension.manager_device()), doc="This rank's torch.device.")
    cuda = property(lambda self: _extension.manager_cuda(), doc="Whether the device is a GPU.")
    distributed = property(lambda self: _extension.manager_distributed(),
                           doc="Whether there is more than one rank, or a launcher started this process.")
    backend = property(lambda self: _extension.manager_backend(), doc='As asked for or chosen: "ucx", "nccl".')
    initialization_method = property(
        lambda self: _extension.manager_initialization_method(),
        doc='"COORDINATOR", "ENV", "SLURM", "OPENMPI", "MPICH", "SINGLE", or what setup() was given.')
    _initialization_method = property(lambda self: self.initialization_method.lower(), doc="In PhysicsNeMo's words.")

    @property
    def broadcast_buffers(self):
        """For DistributedDataParallel's argument of that name; False unless set."""
        return _extension.manager_broadcast_buffers()

    @broadcast_buffers.setter
    def broadcast_buffers(self, broadcast):
        _extension.manager_set_broadcast_buffers(broadcast)

    @property
    def find_unused_parameters(self):
        """For DistributedDataParallel's argument of that name; False unless set. To set it to True warns: it costs time."""
        return _extension.manager_find_unused_parameters()

    @find_unused_parameters.setter
    def find_unused_parameters(self, find_params):
        if find_params:
            warnings.warn("find_unused_parameters makes DistributedDataParallel search the graph in every step: set it "
                          "only where parameters stay unused", stacklevel=2)
        _extension.manager_set_find_unused_parameters(find_params)

    # -- groups --

    def group(self, name=None):
        """The torch.distributed.ProcessGroup of that name that this rank is in; None for None: torch's default group.

        The name is a subgroup's, an orthogonal group's or a mesh axis's. UndefinedGroupError: there is none.
        """
        return None if name is None else _join.named_group(_name(name))

    @property
    def group_names(self):
        """Names of all groups, in order of creation, without "world"."""
        return _extension.manager_group_names()

    def group_size(self, name=None):
        """Ranks of the group; None: the world. UndefinedGroupError."""
        return _extension.manager_group_size(name)

    def group_rank(self, name=None):
        """This rank's number in the group; None: in the world. UndefinedGroupError."""
        return _extension.manager_group_rank(name)

    def group_name(self, group=None):
        """Name of a group from group(); None for None. UndefinedGroupError: the manager has no such group."""
        return None if group is None else _extension.manager_group_name(group)

    @staticmethod
    def create_process_subgroup(name, size, group_name=None, verbose=False):
        """Splits a group (None: the world) into contiguous blocks of `size` ranks; each rank's block is group(name).

        All ranks call it. GroupError: the name is taken, `size` does not divide the parent's, or ranks give other
        arguments. UndefinedGroupError: there is no such parent. `verbose`: rank 0 prints the blocks.
        """
        _agree(f"create_process_subgroup({name!r}, {size!r}, {group_name!r})", GroupError)
        _extension.manager_create_process_subgroup(_name(name), _size(name, size), group_name, bool(verbose))
        _join.named_group(name)

    @staticmethod
    def create_orthogonal_process_group(orthogonal_group_name, group_name, verbose=False):
        """Ranks with the same position in the groups `group_name` form a new group. All ranks call it. Errors as above."""
        _agree(f"create_orthogonal_process_group({orthogonal_group_name!r}, {group_name!r})", GroupError)
        _extension.manager_create_orthogonal_process_group(_name(orthogonal_group_name), _name(group_name),
                                                           bool(verbose))
        _join.named_group(orthogonal_group_name)

    @staticmethod
    def create_group_from_node(node, parent=None, verbose=False):
        """Makes the group of a ProcessGroupNode within `parent`, and the one orthogonal to it, whose name it returns."""
        if node.size is None:
            raise GroupError(f"the process group {node.name!r} has no size: call set_leaf_group_sizes()")
        DistributedManager.create_process_subgroup(node.name, node.size, parent, verbose)
        orthogonal = f"__orthogonal_to_{node.name}"
        DistributedManager.create_orthogonal_process_group(orthogonal, node.name, verbose)
        return orthogonal

    @staticmethod
    def create_groups_from_config(config, verbose=False):
        """Makes the groups of a ProcessGroupConfig, and for each "__orthogonal_to_<name>". All ranks call it.

        A root named "world" is the world. GroupError: a size is missing or does not divide, a name is taken, or ranks
        give other trees; then no group was made.
        """
        if not isinstance(config, ProcessGroupConfig):
            raise TypeError(f"config is a {type(config).__name__}, not a ProcessGroupConfig")
        _agree(f"create_groups_from_config({config._in_order()})", GroupError)
        _extension.manager_create_groups(config._in_order(), bool(verbose))
        for name, _, _ in config._in_order():
            if name != "world":
                _join.named_group(name)

    # -- meshes --

    def initialize_mesh(self, mesh_shape, mesh_dim_names):
        """Arranges the world as a mesh, each axis of which becomes a group of its name. All ranks call it.

        Args: sizes of the axes, of which one may be -1, and their names. Returns the torch.distributed.DeviceMesh, for
        FSDP2 and DTensor too. MeshError: the sizes do not multiply to the world's, the names do not fit or are taken,
        there is a mesh of another shape, or ranks give other arguments.
        """
        mesh_shape, mesh_dim_names = _axes("mesh_shape", mesh_shape), _axes("mesh_dim_names", mesh_dim_names)
        if self.mesh_names() in ([], ["world"]):
            _agree(f"initialize_mesh({mesh_shape}, {mesh_dim_names})", MeshError)
        names = [_name(name) for name in mesh_dim_names]
        _extension.manager_initialize_mesh([operator.index(size) for size in mesh_shape], names)
        return _join.mesh()

    @property
    def global_mesh(self):
        """The mesh; one axis named "world" if none was initialized."""
        _extension.manager_global_mesh()
        return _join.mesh()

    def mesh(self, name=None):
        """The mesh, or this rank's part along one axis. UndefinedGroupError: there is no mesh or no such axis."""
        _extension.manager_mesh(name)
        return _join.mesh() if name is None else _join.mesh()[name]

    def mesh_names(self):
        """Names of the mesh's axes; empty: there is no mesh."""
        return list(self.mesh_dims)

    def mesh_sizes(self):
        """Sizes of the mesh's axes."""
        return list(self.mesh_dims.values())

    @property
    def mesh_dims(self):
        """Size by axis name, in the order of the mesh."""
        if not _extension.manager_mesh_names():
            return {}
        shape, names, _ = _extension.manager_mesh()
        return dict(zip(names, shape))

    def get_mesh_group(self, mesh):
        """The ProcessGroup of all ranks of a torch DeviceMesh that this rank is in. All of them call it."""
        return mesh.get_group() if mesh.ndim == 1 else _join.group_of_mesh(mesh.mesh.flatten().tolist())


def _start(join):
    if _extension.manager_is_initialized():
        warnings.warn("DistributedManager is initialized already; this call changes nothing. Call cleanup() first to "
                      "join anew.", stacklevel=3)
        return
    _join.refuse_other_world()
    join()
    try:
        if _extension.manager_cuda():
            torch.cuda.set_device(_extension.manager_device())
        _join.join_torch()
        _warn_of_idle_gpus()
    except BaseException:
        DistributedManager.cleanup()
        raise
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(_extension.manager_rank())


def _warn_of_idle_gpus():
    is_left_out = not _extension.has_backend("nccl") and _extension.manager_world_size() > 1
    # Not by torch.cuda, whose first call a forked child cannot repeat.
    if is_left_out and torch.version.cuda and os.path.exists("/dev/nvidia0"):
        warnings.warn("this host has GPUs, and this meshrun-torch is built without NCCL: the ranks run on the CPU. Install the wheel "
                      "for GPUs (tools/wheel --cuda, docs/python.md)", stacklevel=4)


def _agree(call, error):
    """Raises `error` on all ranks where one of them makes another call: each rank takes its own groups from the arguments,
    and ranks of different groups would wait for each other at the first collective until its timeout."""
    difference = _join.difference(call)
    if difference:
        raise error(difference)


def _axes(argument, values):
    """A tuple of what is given for each axis of a mesh."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{argument} is {values!r}; a list with one entry for each axis is expected, such as [{values!r}]")
    return tuple(values)


def _name(name):
    if not isinstance(name, str):
        raise TypeError(f"the name of a process group is a string, but {name!r} was given")
    return name


def _size(name, size):
    try:
        return operator.index(size)
    except TypeError:
        raise TypeError(f"the size of the process group {name!r} is an integer, but {size!r} was given") from None


# After meshrun.torch's own, so before it: the last comes first.
atexit.register(DistributedManager.cleanup)
