"""What each rank of tests/python/shard_data does: one function a case, called with (rank, size, mesh), which asserts.

The mesh has the axes "dp" and "domain": 2 x 2 of 4 ranks, else 1 x size.
"""

import collections
import os
import pickle
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.utils.data import DataLoader, Dataset

from meshrun.distributed import DistributedManager
from meshrun.distributed.utils import compute_split_shapes
from meshrun.domain_parallel import ShardedCollate, ShardedSampler, ShardTensor, ShardTensorError, sharded, slab
from meshrun.elastic import EpochSampler

SAMPLES = 13
SHAPE = (2, 5, 4)  # channels, latitudes (uneven on 2 and 3 ranks), longitudes
ROWS = [Replicate(), Shard(1)]  # of a sample, on ("dp", "domain")
Pair = collections.namedtuple("Pair", "field row")


def sample(index):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(100 + index))


class Archive(Dataset):
    """A file of float32 samples, of which each read takes one run of bytes, and counts it."""

    def __init__(self, path, mesh, placements=ROWS):
        self.path, self.slab = path, slab(SHAPE, mesh, placements)

    def __len__(self):
        return SAMPLES

    def read(self, index):
        channels, rows, columns = self.slab
        parts, taken = [], 0
        with open(self.path, "rb", buffering=0) as file:
            for channel in range(channels.start, channels.stop):
                for row in range(rows.start, rows.stop):
                    file.seek(4 * (((index * SHAPE[0] + channel) * SHAPE[1] + row) * SHAPE[2] + columns.start))
                    run = file.read(4 * (columns.stop - columns.start))
                    taken += len(run)
                    parts.append(run)
        shape = [part.stop - part.start for part in self.slab]
        field = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.float32) if taken else torch.empty(0)
        return field.reshape(shape), taken

    def __getitem__(self, index):
        field, taken = self.read(index)
        return {"field": field, "nested": (field * 2, index), "row": field[0], "bytes": taken, "name": f"sample {index}"}


TREE = {"field": SHAPE, "nested": (SHAPE, None), "row": SHAPE[1:]}
PLACED = {"field": ROWS, "nested": (ROWS, None), "row": [Replicate(), Shard(0)]}


def archive(rank, directory, mesh, **options):
    """The file is written by rank 0."""
    path = os.path.join(directory, "archive")
    if rank == 0:
        with open(path, "wb") as file:
            for index in range(SAMPLES):
                file.write(bytes(sample(index).contiguous().view(torch.uint8).flatten().tolist()))
    dist.barrier()
    return Archive(path, mesh, **options)


def raises(kinds, call, *words):
    try:
        call()
    except kinds as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("no error")


def told(value):
    """What each rank has to say."""
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


def replicas(mesh):
    return mesh.size(0), mesh.get_local_rank("dp")


def a_slab_is_a_ranks_part(rank, size, mesh):
    domain, here = mesh.size(1), mesh.get_local_rank("domain")
    for shape, dim in (((2, 5, 4), 1), ((7,), 0), ((3, 1), 1), ((4, 9), -1)):
        sizes = compute_split_shapes(shape[dim], domain)
        expected = [slice(0, each) for each in shape]
        expected[dim] = slice(sum(sizes[:here]), sum(sizes[:here + 1]))
        assert slab(shape, mesh, [Replicate(), Shard(dim)]) == tuple(expected)
    assert slab((2, 5), mesh, [Replicate(), Replicate()]) == (slice(0, 2), slice(0, 5))
    x = torch.arange(63).reshape(7, 9)
    both = [Shard(0), Shard(1)]
    every = told((mesh.get_coordinate(), x[slab(x.shape, mesh, both)]))
    assert sum(part.numel() for _, part in every) == 63
    assert torch.equal(torch.cat([torch.cat([part for place, part in every if place[0] == row], 1)
                                  for row in range(mesh.size(0))]), x)
    raises(ShardTensorError, lambda: slab((5,), mesh, [Replicate(), Partial()]), "Partial", "Shard", "Replicate")
    raises(ShardTensorError, lambda: slab((5,), mesh, [Replicate(), Shard(1)]), "1")
    raises(ShardTensorError, lambda: slab((5,), mesh, [Shard(0)]), "2")
    raises(ShardTensorError, lambda: slab(5, mesh, ROWS), "5", "sizes")


def epochs_have_every_sample_once(rank, size, mesh):
    count, here = replicas(mesh)
    for samples in (12, SAMPLES, 1):
        drawn = []
        for epoch in range(count):
            sampler = ShardedSampler(samples, mesh, seed=3)
            sampler.set_epoch(epoch)
            indices = list(sampler)
            assert len(indices) == len(sampler) and all(type(index) is int for index in indices)
            every = told((here, indices))
            alike = {place: each for place, each in every}
            assert all(alike[place] == each for place, each in every), "ranks of one domain differ"
            assert len({len(each) for each in alike.values()}) == 1, "replicas make different numbers of steps"
            together = [index for step in zip(*(alike[place] for place in range(count))) for index in step]
            drawn += together
            if samples % count == 0:
                assert sorted(together) == list(range(samples))
        # As EpochSampler: the last batch of an epoch begins the next one, and nothing comes twice.
        assert drawn[:samples] == EpochSampler(samples, seed=3).batch(0, samples).tolist()
        assert collections.Counter(drawn) == dict.fromkeys(range(samples), count)
        whole = ShardedSampler(samples, mesh, seed=3, drop_last=True)
        for epoch in range(3):
            whole.set_epoch(epoch)
            once = [index for place, each in told((here, list(whole))) if place == here for index in each]
            assert len(once) == size // count * (samples // count) == size // count * len(whole)
            order = EpochSampler(samples, seed=3).batch(epoch, samples).tolist()
            assert list(whole) == order[:samples - samples % count][here::count]
    in_order = ShardedSampler(Squares(8), mesh, shuffle=False)
    assert list(in_order) == list(range(here, 8, count))
    first, second = ShardedSampler(50, mesh, seed=1), ShardedSampler(50, mesh, seed=2)
    assert list(first) != list(second) and list(first) == list(first)
    first.set_epoch(1)
    assert list(first) != list(ShardedSampler(50, mesh, seed=1))
    assert list(ShardedSampler(9, mesh, data_axis=None, shuffle=False)) == list(range(9))
    assert list(ShardedSampler(9, mesh, data_axis=0, shuffle=False)) == list(ShardedSampler(9, mesh, shuffle=False))


class Squares(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def a_run_goes_on_within_an_epoch(rank, size, mesh):
    for drop_last in (False, True):
        sampler = ShardedSampler(SAMPLES, mesh, seed=5, drop_last=drop_last)
        sampler.set_epoch(2)
        whole = list(sampler)
        for begin in (0, 3, len(whole)):
            again = ShardedSampler(SAMPLES, mesh, seed=5, drop_last=drop_last)
            again.set_epoch(2, begin)
            assert list(again) == whole[begin:] and len(again) == len(whole) - begin
        again.set_epoch(2)
        assert list(again) == whole
        loader = DataLoader(Squares(SAMPLES), batch_size=2, sampler=again)
        again.set_epoch(2, 4)  # two batches are done
        assert [int(x) for batch in loader for x in batch] == whole[4:] and len(loader) == (len(whole) - 4 + 1) // 2
        raises(ValueError, lambda: again.set_epoch(2, len(whole) + 1), str(len(whole) + 1), str(len(whole)))
        raises(ValueError, lambda: again.set_epoch(-1), "-1")


def batches_are_those_of_one_rank(rank, size, mesh):
    count, here = replicas(mesh)
    with tempfile.TemporaryDirectory() as own:
        directory = told(own)[0]
        data = archive(rank, directory, mesh)
        wanted = 4
        for workers in (0, 2):
            sampler = ShardedSampler(data, mesh, seed=7)
            collate = ShardedCollate(mesh, PLACED, TREE)
            loader = DataLoader(data, wanted // count, sampler=sampler, collate_fn=collate, num_workers=workers,
                                multiprocessing_context="fork" if workers else None)
            batches = sharded(loader)
            assert len(batches) == len(loader)
            own_bytes = 4 * torch.empty(SHAPE)[data.slab].numel()
            order = torch.cat([EpochSampler(SAMPLES, seed=7).batch(epoch, SAMPLES) for epoch in range(3)])
            for epoch in range(2):
                sampler.set_epoch(epoch)
                done = -(-epoch * SAMPLES // count) * count
                steps = 0
                for batch in batches:
                    length = len(batch["bytes"]) * count
                    # Each replica takes every count-th sample, and their batches lie one after another.
                    indices = order[done:done + length].reshape(-1, count).t().flatten().tolist()
                    done += length
                    steps += 1
                    expected = torch.stack([sample(index) for index in indices])
                    field, (twice, own_indices), row = batch["field"], batch["nested"], batch["row"]
                    assert isinstance(field, ShardTensor) and field.placements == (Shard(0), Shard(2))
                    assert field.shape == expected.shape and field.device_mesh == mesh and not field.requires_grad
                    assert torch.equal(field.full_tensor(), expected)
                    assert torch.equal(twice.full_tensor(), expected * 2)
                    assert row.placements == (Shard(0), Shard(1)) and torch.equal(row.full_tensor(), expected[:, 0])
                    assert isinstance(batch["nested"], (tuple, list)) and not isinstance(own_indices, ShardTensor)
                    mine = indices[here * length // count:(here + 1) * length // count]
                    assert own_indices.tolist() == mine and batch["name"] == [f"sample {index}" for index in mine]
                    assert batch["bytes"].tolist() == [own_bytes] * len(mine)
                assert steps == len(batches)
            assert sum(told(own_bytes)) == count * 4 * torch.empty(SHAPE).numel(), "together a domain reads a sample once"
        dist.barrier()


def each_replica_has_a_batch_of_its_own(rank, size, mesh):
    """On the domain's part of the mesh, as DistributedDataParallel over the data axis wants it."""
    domain = mesh["domain"]
    part = slab(SHAPE, domain, [Shard(1)])
    sampler = ShardedSampler(8, mesh, shuffle=False)
    data = [Pair(sample(index)[part], sample(index)[0][part[1:]]) for index in range(8)]
    collate = ShardedCollate(domain, Pair([Shard(1)], [Shard(0)]), Pair(SHAPE, SHAPE[1:]), data_axis=None)
    for batch, first in zip(sharded(DataLoader(data, 2, sampler=sampler, collate_fn=collate)), range(0, 8, 2)):
        own = list(sampler)[first:first + 2]
        assert type(batch) is Pair and batch.field.placements == (Shard(2),) and batch.field.device_mesh == domain
        expected = torch.stack([sample(index) for index in own])
        assert torch.equal(batch.field.full_tensor(), expected) and torch.equal(batch.row.full_tensor(), expected[:, 0])


def the_batch_lies_where_it_is_wanted(rank, size, mesh):
    count, here = replicas(mesh)
    part = slab(SHAPE, mesh, ROWS)
    collate = ShardedCollate(mesh, ROWS, SHAPE, batch_dim=1)
    own = [sample(10 * here + index) for index in range(3)]
    batch = collate.sharded(collate([x[part] for x in own]))
    assert batch.placements == (Shard(1), Shard(2)) and batch.shape == (2, 3 * count, 5, 4)
    every = [sample(10 * place + index) for place in range(count) for index in range(3)]
    assert torch.equal(batch.full_tensor(), torch.stack(every, 1))
    last = ShardedCollate(mesh, [Replicate(), Shard(-1)], SHAPE, batch_dim=-1)
    batch = last.sharded(last([x[slab(SHAPE, mesh, [Replicate(), Shard(-1)])] for x in own]))
    assert batch.placements == (Shard(3), Shard(2)) and torch.equal(batch.full_tensor(), torch.stack(every, -1))
    # Any loader that gives what the collate made.
    made = [collate([x[part] for x in own])]
    assert all(torch.equal(each.full_tensor(), torch.stack(every, 1)) for each in sharded(made, collate))
    # Replicated over the domain: the whole sample on each of its ranks.
    whole = ShardedCollate(mesh, [Replicate(), Replicate()], SHAPE)
    batch = whole.sharded(whole(own))
    assert batch.placements == (Shard(0), Replicate()) and torch.equal(batch.full_tensor(), torch.stack(every))
    # A label of each sample goes with it.
    labelled = ShardedCollate(mesh, (ROWS, [Replicate(), Replicate()]), (SHAPE, ()))
    x, labels = labelled.sharded(labelled([(each[part], 10 * here + index) for index, each in enumerate(own)]))
    assert labels.placements == (Shard(0), Replicate()) and labels.dtype == torch.int64
    assert labels.full_tensor().tolist() == [10 * place + index for place in range(count) for index in range(3)]
    scores, expected = x.mean((2, 3)), torch.stack(every).mean((2, 3))
    told_apart = torch.nn.functional.cross_entropy(scores, labels % 2)
    assert torch.allclose(told_apart.full_tensor(), torch.nn.functional.cross_entropy(expected, labels.full_tensor() % 2))
    # A worker that is started anew gets it without its mesh.
    again = pickle.loads(pickle.dumps(collate))
    assert torch.equal(again([x[part] for x in own]), made[0])
    raises(ShardTensorError, lambda: again.sharded(made[0]), "worker", "main process")


def nothing_is_sent(rank, size, mesh):
    """One rank makes batches alone."""
    part = slab(SHAPE, mesh, ROWS)
    if rank == 0:
        collate = ShardedCollate(mesh, ROWS, SHAPE)
        data = [sample(index)[part] for index in range(4)]
        batches = list(sharded(DataLoader(data, 2, sampler=ShardedSampler(data, mesh), collate_fn=collate)))
        assert batches[0].to_local().shape[1:] == data[0].shape
    dist.barrier()


def wrong_calls_are_told(rank, size, mesh):
    part = slab(SHAPE, mesh, ROWS)
    collate = ShardedCollate(mesh, ROWS, {"field": SHAPE})
    raises(ShardTensorError, lambda: ShardedSampler(8, mesh["domain"]), "'dp'", "domain", "data_axis=None")
    raises(ValueError, lambda: ShardedSampler(0, mesh), "0 samples")
    raises(TypeError, lambda: ShardedSampler(8, "cpu"), "DeviceMesh")
    raises(TypeError, lambda: ShardedSampler(iter([]), mesh), "length")
    raises(ShardTensorError, lambda: ShardedCollate(mesh["domain"], [Shard(1)], SHAPE), "'dp'", "data_axis=None")
    raises(ShardTensorError, lambda: ShardedCollate(mesh, [Shard(0), Shard(1)], SHAPE), "Shard(dim=0)", "'dp'", "Replicate")
    raises(ShardTensorError, lambda: ShardedCollate(mesh, {"other": ROWS}, {"field": SHAPE}), "field", "placements")
    raises(ShardTensorError, lambda: ShardedCollate(mesh, ROWS, {"field": "large"}), "field", "'large'")
    raises(ShardTensorError, lambda: ShardedCollate(mesh, ROWS, None), "no entry")
    raises(ShardTensorError, lambda: ShardedCollate(mesh, ROWS, SHAPE, batch_dim=4), "batch_dim=4")
    raises(ShardTensorError, lambda: collate([]), "no sample")
    raises(ShardTensorError, lambda: collate([{"field": sample(0)[part][:1]}]), "field", "[1, ", "slab(")
    raises(ShardTensorError, lambda: collate([{"field": sample(0)[part]}, {"field": sample(0)[part][..., :3]}]), "sample 1")
    raises(ShardTensorError, lambda: collate([{"feld": sample(0)[part]}]), "field", "feld")
    raises(ShardTensorError, lambda: collate([sample(0)[part]]), "dict", "Tensor")
    raises(ShardTensorError, lambda: collate([{"field": "text"}]), "field", "str")
    pair = ShardedCollate(mesh, ROWS, (SHAPE, None))
    raises(ShardTensorError, lambda: pair([(sample(0)[part],)]), "2", "1")
    raises(ShardTensorError, lambda: sharded(DataLoader([sample(0)])), "collate_fn", "ShardedCollate")
    raises(ShardTensorError, lambda: list(sharded([{"field": sample(0)[part]}], collate)), "field", "collate")


CASES = [a_slab_is_a_ranks_part, epochs_have_every_sample_once, a_run_goes_on_within_an_epoch, batches_are_those_of_one_rank,
         each_replica_has_a_batch_of_its_own, the_batch_lies_where_it_is_wanted, nothing_is_sent, wrong_calls_are_told]


def run(rank, size, mesh, names, where):
    for case in CASES:
        if not names or case.__name__ in names:
            try:
                case(rank, size, mesh)
            except BaseException as error:
                error.add_note(f"case {case.__name__}, rank {rank} of {size}, {where}") if hasattr(error, "add_note") else None
                raise
    if rank == 0:
        print(f"  {size} ranks, {where}: {len(CASES)} cases", flush=True)


def environment(rank, size, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)


def shape_of(size):
    return (2, 2) if size == 4 else (1, size)


def managed(rank, size, port, names):
    environment(rank, size, port)
    DistributedManager.initialize()
    run(rank, size, DistributedManager().initialize_mesh(shape_of(size), ("dp", "domain")), names, "DistributedManager")


def on_gloo(rank, size, port, names):
    """Each rank is a replica."""
    environment(rank, size, port)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    run(rank, size, init_device_mesh("cpu", (size, 1), mesh_dim_names=("dp", "domain")), names, "gloo")
    dist.destroy_process_group()


if __name__ == "__main__":
    # One rank by hand: RANK, WORLD_SIZE, MASTER_PORT and the names of cases.
    managed(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("MASTER_PORT", 29555)),
            sys.argv[1:])
