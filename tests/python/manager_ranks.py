"""What each rank of tests/python/manager does: one function a case, called with (rank, size), which asserts.

As a program it runs the cases named in its arguments in the world of its launcher's environment.
"""

import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn

import ranks
from meshrun.distributed import (
    DistributedManager,
    GroupError,
    MeshError,
    PhysicsNeMoUndefinedGroupError,
    PhysicsNeMoUninitializedDistributedManagerWarning,
    ProcessGroupConfig,
    ProcessGroupNode,
    all_gather_v,
    fused_all_reduce,
    reduce_from_parallel_region,
    scatter_to_parallel_region,
)


def raised(kind, call, *words):
    """The sentence of the error that `call` raises within 5 s; it has all the words, and is the same on all ranks."""
    began = time.monotonic()
    try:
        call()
    except kind as error:
        text = str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
    assert time.monotonic() - began < 5
    assert "\n" not in text and all(word in text for word in words), text
    if dist.is_initialized():
        said = [None] * dist.get_world_size()
        dist.all_gather_object(said, text)
        assert len(set(said)) == 1, said
    return text


def total(group, value):
    x = torch.tensor([float(value)])
    dist.all_reduce(x, group=group)
    return x.item()


def place(rank, size):
    manager, other = DistributedManager(), DistributedManager()
    assert (manager.rank, manager.world_size, manager.local_rank) == (rank, size, rank)
    assert (manager.local_world_size, manager.node_rank) == (size, 0)
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, size, "meshrun")
    assert manager.device == torch.device("cpu") and manager.cuda is False and manager.backend == "ucx"
    assert manager.group() is None and manager.group_name() is None
    assert (manager.group_size(), manager.group_rank()) == (size, rank)
    assert manager.group("world") is dist.group.WORLD and manager.group_name(dist.group.WORLD) == "world"
    assert not getattr(dist.distributed_c10d._world, "pg_flight_recorder_hooks", {}), "torch records each call a second time"
    assert manager.broadcast_buffers is False and manager.find_unused_parameters is False
    manager.broadcast_buffers = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        manager.find_unused_parameters = True
        DistributedManager.initialize()
    assert len(caught) == 2 and "already" in str(caught[1].message), caught
    assert other.broadcast_buffers is True and other.find_unused_parameters is True
    manager.broadcast_buffers = manager.find_unused_parameters = False
    assert f"rank {rank} of {size}" in str(manager)
    assert total(None, rank) == total(manager.group(), rank) == size * (size - 1) / 2
    ranks.collectives(rank, size)
    ranks.objects(rank, size)


def subgroups(rank, size):
    manager = DistributedManager()
    wide = 2 if size % 2 == 0 else size
    names = manager.group_names
    DistributedManager.create_process_subgroup("model", wide)
    DistributedManager.create_orthogonal_process_group("data", "model")
    DistributedManager.create_process_subgroup("single", 1, "model")
    assert manager.group_names == [*names, "model", "data", "single"]
    block = rank // wide
    model, data = manager.group("model"), manager.group("data")
    assert dist.get_process_group_ranks(model) == list(range(block * wide, (block + 1) * wide))
    assert dist.get_process_group_ranks(data) == list(range(rank % wide, size, wide))
    assert manager.group("model") is model and manager.group_name(model) == "model"
    assert (manager.group_size("model"), manager.group_rank("model")) == (wide, rank % wide)
    assert (manager.group_size("data"), manager.group_rank("data")) == (size // wide, block)
    assert (dist.get_world_size(data), dist.get_rank(data)) == (size // wide, block)
    assert total(model, 10 ** (rank % wide)) == sum(10 ** r for r in range(wide))
    assert total(data, rank) == sum(range(rank % wide, size, wide))
    assert total(manager.group("single"), rank) == rank
    # By its name, as traced programs find a group.
    import torch.distributed._functional_collectives as functional

    assert functional.all_reduce(torch.ones(1), "sum", model).item() == wide
    mine = torch.full((1 + rank % wide,), float(rank))
    for name, members in (("model", range(block * wide, (block + 1) * wide)), ("single", [rank])):
        sizes = [1 + member % wide for member in members]
        whole = torch.cat([torch.full((1 + member % wide,), float(member)) for member in members])
        assert torch.equal(all_gather_v(mine, sizes, group=name), whole)
        assert fused_all_reduce(torch.ones(1), group=name) == len(members)
        assert reduce_from_parallel_region(torch.ones(1), name) == len(members)
    assert fused_all_reduce(torch.ones(1), group="world") == size
    # A program's own groups beside the manager's: all ranks count them alike, whoever has asked for which name.
    if rank == 0:
        manager.group("single")
    own = dist.new_group()
    assert total(own, 1) == size
    raised(PhysicsNeMoUndefinedGroupError, lambda: manager.group_name(own))
    halves = [dist.new_group(range(0, size, 2)), dist.new_group(range(1, size, 2)) if size > 1 else None]
    assert total(halves[rank % 2], 1) == len(range(rank % 2, size, 2))
    assert total(dist.new_group(backend="gloo"), 1) == size
    dist.destroy_process_group(own)
    assert total(dist.new_group(), rank) == size * (size - 1) / 2


def configuration(rank, size):
    config = ProcessGroupConfig(ProcessGroupNode("world"))
    config.add_node(ProcessGroupNode("config_model"), parent="world")
    config.add_node(ProcessGroupNode("config_data"), config.root)
    config.add_node(ProcessGroupNode("spatial"), parent="config_model")
    config.add_node(ProcessGroupNode("channel"), parent="config_model")
    assert config.leaf_groups() == ["config_data", "spatial", "channel"]
    spatial = 2 if size % 2 == 0 else 1
    manager = DistributedManager()
    before = manager.group_names
    config.set_leaf_group_sizes({"spatial": spatial, "channel": 1, "config_data": 5})
    assert config.get_node("world").size == 5 * spatial and config.get_node("config_model").size == spatial
    raised(GroupError, lambda: DistributedManager.create_groups_from_config(config), str(5 * spatial), str(size))
    raised(ValueError, lambda: config.set_leaf_group_sizes({"config_model": 2}), "config_model", "spatial", "channel")
    raised(AssertionError, lambda: config.set_leaf_group_sizes({"other": 2}), "other", "config_data")
    raised(GroupError, lambda: config.set_leaf_group_sizes({"spatial": 0}), "spatial", "0")
    raised(GroupError, lambda: config.add_node(ProcessGroupNode("spatial"), "world"), "spatial", "already")
    raised(GroupError, lambda: config.add_node(ProcessGroupNode("new"), "nowhere"), "new", "nowhere")
    assert config.get_node("spatial").size == spatial and manager.group_names == before
    config.set_leaf_group_sizes({"config_data": size // spatial})
    DistributedManager.create_groups_from_config(config)
    assert manager.group_size("spatial") == manager.group_size("config_model") == spatial
    assert (manager.group_size("channel"), manager.group_size("config_data")) == (1, size // spatial)
    assert total(manager.group("config_data"), rank) == sum(range(rank % spatial, size, spatial))
    assert total(manager.group("spatial"), 1) == spatial
    assert total(manager.group("__orthogonal_to_spatial"), 1) == size // spatial
    node = ProcessGroupNode("from_node", spatial)
    assert DistributedManager.create_group_from_node(node) == "__orthogonal_to_from_node"
    assert manager.group_size("__orthogonal_to_from_node") == size // spatial
    raised(GroupError, lambda: DistributedManager.create_group_from_node(ProcessGroupNode("no_size")), "no_size")


def wrong_calls(rank, size):
    manager = DistributedManager()
    create = DistributedManager.create_process_subgroup
    text = raised(PhysicsNeMoUndefinedGroupError, lambda: manager.group("nothing"), "nothing")
    assert ("model" in text) == (size > 1) or "model" not in manager.group_names
    raised(RuntimeError, lambda: manager.group_size("nothing"), "nothing")
    raised(PhysicsNeMoUndefinedGroupError, lambda: manager.group_rank("nothing"), "nothing")
    raised(PhysicsNeMoUndefinedGroupError, lambda: create("new", 1, "nothing"), "nothing")
    raised(AssertionError, lambda: create("new", size + 1), str(size), str(size + 1))
    raised(ValueError, lambda: create("world", 1), "world")
    raised(GroupError, lambda: create("new", 0), "0")
    raised(TypeError, lambda: create("new", 1.5), "new", "1.5")
    raised(TypeError, lambda: create(3, 1), "3")
    raised(RuntimeError, lambda: DistributedManager.create_orthogonal_process_group("new", "nothing"), "nothing")
    raised(MeshError, lambda: manager.initialize_mesh((size + 1,), ("dp",)), str(size), str(size + 1))
    raised(RuntimeError, lambda: manager.initialize_mesh((size, 1), ("dp",)), "2", "1")
    raised(ValueError, lambda: manager.initialize_mesh((size, 1), ("dp", "dp")), "dp")
    raised(TypeError, lambda: manager.initialize_mesh(size, ("dp",)), "mesh_shape", f"[{size}]")
    raised(TypeError, lambda: manager.initialize_mesh((size,), "dp"), "mesh_dim_names", "['dp']")
    if size > 1:  # one rank's call is another: without an error its group would wait for ranks of other groups
        last = rank == size - 1
        raised(GroupError, lambda: create("new", size + last), f"'new', {size},", f"'new', {size + 1},", f"rank {size - 1}")
        raised(GroupError, lambda: create("other" if last else "new", size), "'new'", "'other'")
        raised(GroupError, lambda: create("new", 1.5 if last else size), "1.5")
        raised(GroupError, lambda: create("new", 1, "nothing" if last else None), "'nothing'", "None")
        raised(GroupError, lambda: DistributedManager.create_orthogonal_process_group("new", "nothing") if last
               else create("new", size), "create_orthogonal_process_group", "create_process_subgroup")
        raised(MeshError, lambda: manager.initialize_mesh((1, -1) if last else (-1, 1), ("dp", "tp")), "(-1, 1)", "(1, -1)")
        raised(MeshError, lambda: manager.initialize_mesh((size,), ("tp" if last else "dp",)), "'tp'", "'dp'")
        config = ProcessGroupConfig(ProcessGroupNode("world"))
        config.add_node(ProcessGroupNode("new"), parent="world")
        config.set_leaf_group_sizes({"new": 1 if last else size})
        raised(GroupError, lambda: DistributedManager.create_groups_from_config(config), "'new', 1", f"'new', {size}")
    assert "new" not in manager.group_names
    create("new", size)
    raised(GroupError, lambda: create("new", 1), "new", "already")


def mesh(rank, size):
    manager = DistributedManager()
    assert manager.mesh_names() == [] and manager.mesh_dims == {}
    raised(PhysicsNeMoUndefinedGroupError, manager.mesh, "initialize_mesh")
    flat = manager.global_mesh
    assert flat.mesh_dim_names == ("world",) and flat.get_group() is dist.group.WORLD
    rows = 2 if size % 2 == 0 else 1
    made = manager.initialize_mesh((rows, -1), ("dp", "tp"))
    columns = size // rows
    assert made is manager.global_mesh is manager.mesh()
    assert isinstance(made, dist.DeviceMesh) and tuple(made.shape) == (rows, columns)
    assert made.mesh.flatten().tolist() == list(range(size))
    assert manager.mesh_names() == ["dp", "tp"] and manager.mesh_dims == {"dp": rows, "tp": columns}
    assert manager.mesh_sizes() == [rows, columns]
    assert made["tp"].get_group() is manager.group("tp") is manager.get_mesh_group(manager.mesh("tp"))
    assert manager.mesh("dp").get_group() is manager.group("dp") is made.get_group("dp")
    assert made.get_local_rank("dp") == rank // columns == manager.group_rank("dp")
    assert total(made.get_group("dp"), rank) == sum(range(rank % columns, size, columns))
    whole = manager.get_mesh_group(made)
    assert whole is manager.get_mesh_group(made) and total(whole, 1) == size
    assert total(made["dp", "tp"]._flatten().get_group(), 1) == size
    raised(MeshError, lambda: manager.initialize_mesh((size, 1, 1), ("a", "b", "c")), str(size))
    raised(PhysicsNeMoUndefinedGroupError, lambda: manager.mesh("pp"), "pp", "dp", "tp")
    assert manager.initialize_mesh((rows, columns), ("dp", "tp")) is made

    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.manual_seed(3)
    a, b = torch.randn(4 * size + 1, 6), torch.randn(6, 5)
    product = distribute_tensor(a, made, [Shard(0), Replicate()]) @ distribute_tensor(b, made, [Replicate(), Shard(1)])
    assert torch.allclose(product.full_tensor(), a @ b, atol=1e-6)


def flattened(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trainings(rank, size):
    """DDP over the manager's world, and FSDP2 over its mesh, equal DDP on Gloo; with the same data in all of a row."""
    from torch.distributed.fsdp import fully_shard

    manager = DistributedManager()
    model = nn.parallel.DistributedDataParallel(
        ranks.network(), broadcast_buffers=manager.broadcast_buffers,
        find_unused_parameters=manager.find_unused_parameters, process_group=manager.group())
    ranks.train(model, rank)
    plain = nn.parallel.DistributedDataParallel(ranks.network(), process_group=dist.new_group(backend="gloo"))
    ranks.train(plain, rank)
    expected = flattened(plain)
    assert ((flattened(model) - expected).norm() / expected.norm()).item() < 1e-6
    sharded = ranks.network()
    for layer in [*(layer for layer in sharded if isinstance(layer, nn.Linear)), sharded]:
        fully_shard(layer, mesh=manager.global_mesh)
    ranks.train(sharded, rank)
    whole = torch.cat([parameter.full_tensor().detach().flatten() for parameter in sharded.parameters()])
    assert ((whole - expected).norm() / expected.norm()).item() < 1e-6


CASES = [place, subgroups, configuration, wrong_calls, mesh, trainings]


def run(names):
    manager = DistributedManager()
    for case in CASES:
        if names and case.__name__ not in names:
            continue
        case(manager.rank, manager.world_size)
        if manager.rank == 0:
            print(f"  {manager.world_size} ranks, {manager.initialization_method}: {case.__name__}", flush=True)


def passed(rank, size, name):
    if rank == 0:
        print(f"  {size} ranks: {name}", flush=True)


def environment(rank, size, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)


def spawned(rank, size, port, names):
    """By torchrun's variables."""
    environment(rank, size, port)
    raised(PhysicsNeMoUninitializedDistributedManagerWarning, DistributedManager, "DistributedManager.initialize()")
    raised(RuntimeError, lambda: DistributedManager.create_process_subgroup("a", 1), "DistributedManager.initialize()")
    DistributedManager.initialize()
    manager = DistributedManager()
    assert manager.distributed is True and manager.initialization_method == "ENV"
    run(names)
    DistributedManager.cleanup(barrier=True)
    raised(PhysicsNeMoUninitializedDistributedManagerWarning, lambda: manager.rank, "DistributedManager.initialize()")
    assert not DistributedManager.is_initialized() and not dist.is_initialized()


def again(rank, size, port, names):
    """Worlds one after another: after cleanup, after the program destroyed torch's groups, and by setup()."""
    environment(rank, size, port)
    hook = sys.excepthook
    raised(TypeError, lambda: DistributedManager.initialize(timeout=3), "timedelta")
    raised(ValueError, lambda: DistributedManager.initialize(method="SLRUM"), "initialize()'s method", "SLURM")
    piece = torch.compile(lambda x: scatter_to_parallel_region(x, 0, "pairs"), fullgraph=True, backend="aot_eager")
    for number in range(3):
        DistributedManager.initialize()
        manager = DistributedManager()
        DistributedManager.create_process_subgroup("pairs", 1 if number == 1 else 2 if size % 2 == 0 else size)
        kept = manager.group("pairs")
        with torch.no_grad():
            assert len(piece(torch.arange(12))) == 12 // manager.group_size("pairs")
        assert total(kept, 1) == manager.group_size("pairs")
        manager.initialize_mesh((size,), ("dp",))
        if number == 1:
            dist.barrier()  # rank 0 hosts the store, and destroyed groups do not wait for ranks that still need it
            dist.destroy_process_group()
            raised(RuntimeError, lambda: manager.create_process_subgroup("late", 1), "destroy_process_group")
        DistributedManager.cleanup(barrier=number != 1)
        assert not dist.is_initialized() and (number == 1 or sys.excepthook is hook)
        raised(ValueError, lambda: all_gather_v(torch.ones(1), None), "initialize()")
        raised(RuntimeError, lambda: all_gather_v(torch.ones(1), None, group=kept), "has ended")
    # Rank 1 comes to the port of the next job while rank 0 still holds the store of this one there.
    DistributedManager.initialize()
    if rank == 0:
        time.sleep(0.5)
    DistributedManager.cleanup()
    DistributedManager.setup(rank, size, rank, "127.0.0.1", port, "ucx", "by hand")
    assert DistributedManager().initialization_method == "by hand" and total(None, 1) == size
    DistributedManager.cleanup()
    # Another meeting place: rank 0's server at that port may still be closing, and torch's own rendezvous does not ask.
    place = f"file://{os.environ['MESHRUN_TEST_DIRECTORY']}/again-{port}"
    dist.init_process_group("meshrun", init_method=place, rank=rank, world_size=size)
    raised(RuntimeError, DistributedManager.initialize, "init_process_group", "meshrun")
    assert not DistributedManager.is_initialized() and total(None, 1) == size
    dist.destroy_process_group()
    passed(rank, size, "again")


def by_each_launcher(rank, size, port, names):
    """The functions of PhysicsNeMo that name a launcher, each with that one's variables alone."""
    by_slurm = {"SLURM_PROCID": rank, "SLURM_NPROCS": size, "SLURM_LOCALID": rank, "SLURM_NODEID": 0,
                "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_JOB_ID": port, "SLURM_STEP_ID": 0}
    by_open_mpi = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
                   "OMPI_COMM_WORLD_LOCAL_SIZE": size}
    by_env = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port + 2}
    raised(RuntimeError, DistributedManager.initialize_env, "RANK")
    raised(RuntimeError, lambda: DistributedManager.initialize_slurm(port), "SLURM_PROCID")
    raised(RuntimeError, lambda: DistributedManager.initialize_open_mpi("127.0.0.1", port), "OMPI_COMM_WORLD_RANK")
    for method, variables, start in (("SLURM", by_slurm, lambda: DistributedManager.initialize_slurm(port)),
                                     ("OPENMPI", by_open_mpi, lambda: DistributedManager.initialize_open_mpi("127.0.0.1", port + 1)),
                                     ("ENV", by_env, DistributedManager.initialize_env)):
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        os.environ.update({name: str(value) for name, value in variables.items()})
        start()
        manager = DistributedManager()
        assert manager.initialization_method == method and (manager.rank, manager.world_size, manager.local_rank) == (rank, size, rank)
        assert manager.get_available_backend() == "ucx" and total(None, rank) == size * (size - 1) / 2
        DistributedManager.cleanup(barrier=True)
        for name in variables:
            os.environ.pop(name, None)
    passed(rank, size, "by_each_launcher")


def follows(rank, size, port, names):
    """C++ leaves one world and joins another, from which a rank is missing; torch's groups follow."""
    from meshrun.distributed import _join
    from meshrun.torch import _extension

    environment(rank, size, port)
    DistributedManager.initialize()
    manager = DistributedManager()
    DistributedManager.create_process_subgroup("all", size)
    old, own = manager.group("all"), dist.new_group(backend="gloo")
    mesh = manager.initialize_mesh((size,), ("dp",))
    assert total(old, 1) == total(own, 1) == total(mesh.get_group(), 1) == size
    dist.barrier()
    if rank == size - 1:
        os._exit(0)
    waiting = dist.all_reduce(torch.ones(3), group=own, async_op=True)
    began = time.monotonic()
    _extension.manager_cleanup()
    os.environ.update(WORLD_SIZE=str(size - 1), MASTER_PORT=str(port + 1))
    _extension.manager_initialize(None, None, None)
    _join.join_torch()
    assert time.monotonic() - began < 20
    assert dist.get_world_size() == manager.world_size == size - 1 and manager.group_names == []
    raised(PhysicsNeMoUndefinedGroupError, lambda: manager.group("all"), "all")
    DistributedManager.create_process_subgroup("all", size - 1)
    assert manager.group("all") is not old and total(manager.group("all"), 1) == total(None, 1) == size - 1
    assert manager.global_mesh.size() == size - 1
    del waiting
    passed(rank, size, "follows")


def ends(rank, size, port, names):
    """Without cleanup(), with a group and an operation that no other rank takes part in."""
    environment(rank, size, port)
    DistributedManager.initialize()
    DistributedManager.create_process_subgroup("all", size)
    x = torch.ones(2000)
    dist.all_reduce(x, group=DistributedManager().group("all"))
    if rank == 0:
        dist.all_reduce(x, async_op=True)
        print(f"  {size} ranks: ends", flush=True)


def alone():
    """Without a launcher."""
    DistributedManager.initialize()
    manager = DistributedManager()
    assert manager.distributed is False and manager.initialization_method == "SINGLE"
    run([])


def main():
    torch.set_num_threads(1)
    DistributedManager.initialize()
    assert DistributedManager().initialization_method == "COORDINATOR"
    run(sys.argv[1:])
    if DistributedManager().rank == 0:
        DistributedManager.cleanup()


if __name__ == "__main__":
    main()
