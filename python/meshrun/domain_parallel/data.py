"""Samples that arrive sharded: each rank reads its part of each sample from disk, and batches are ShardTensors.

    from meshrun.domain_parallel import ShardedCollate, ShardedSampler, sharded, slab

    mesh = DistributedManager().initialize_mesh((2, -1), ("dp", "domain"))
    shape, placements = (3, 721, 1440), [Replicate(), Shard(1)]     # of one sample; "domain" cuts its latitudes
    part = slab(shape, mesh, placements)                            # a dataset returns file[index][part]
    sampler = ShardedSampler(dataset, mesh)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, collate_fn=ShardedCollate(mesh, placements, shape), num_workers=2)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for x in sharded(loader):                                   # ShardTensors: Shard(0) over "dp", Shard(2) over "domain"
            ...

No function here sends a message: what lies where follows from shapes, placements and the mesh.
"""

import collections.abc

import torch
from torch.distributed.tensor import Partial, Placement, Shard
from torch.utils.data import Sampler, default_collate

from meshrun._epoch_sampler import EpochSampler
from meshrun.domain_parallel import _meshes
from meshrun.domain_parallel._spec import ShardTensorSpec
from meshrun.domain_parallel._tensor import ShardTensor
from meshrun.domain_parallel.errors import ShardTensorError


def slab(shape, mesh, placements):
    """This rank's part of a sample, as one slice for each dimension: `file[index][slab(...)]` reads that part alone.

    Sizes of the parts are those of compute_split_shapes (meshrun.distributed.utils), PhysicsNeMo's rule; parts may be empty.

    Args: `shape` of the sample, without a batch dimension. `mesh`, a DeviceMesh with this rank. `placements`, one for each of its
    dimensions: Shard or Replicate. Raises ShardTensorError: other placements, or ones that do not fit the shape.
    """
    if not _is_shape(shape):
        raise ShardTensorError(f"the shape of a sample is a sequence of sizes, not {shape!r}")
    for placement in placements:
        if isinstance(placement, Partial):
            raise ShardTensorError(f"a sample is read and not summed, so {placement!r} is none of its placements: use "
                                   "Shard(dim) or Replicate()")
    offsets, sizes = ShardTensorSpec(mesh, placements, shape=shape, sharding_shapes="split")._native.box
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes))


class ShardedSampler(Sampler):
    """Which samples this rank's batches are made of: `DataLoader(dataset, batch_size, sampler=ShardedSampler(dataset, mesh))`.

    Ranks with equal coordinates on the data axis get the same indices, and different coordinates get different ones: in round r,
    coordinate c gets place r * coordinates + c of the order, which EpochSampler draws from (seed, epoch). All coordinates get
    equally many in an epoch. Where their number does not divide the samples, the last round of an epoch takes the first samples
    of the next one, as EpochSampler's batches do. So no sample is skipped or taken twice from epoch to epoch, and an epoch may
    be a round shorter than another.

    Args: `dataset`, or the number of samples. `mesh`, a DeviceMesh. `data_axis`: name or number of its axis whose ranks have
    different samples; None: all ranks have the same. `seed`, the same on all ranks. `shuffle`: False: in the dataset's order.
    `drop_last`: the samples of an incomplete last round are left out, and all epochs have equally many.

    Raises ShardTensorError: the mesh has no such axis; ValueError: there is no sample; TypeError: the dataset has no length.
    """

    def __init__(self, dataset, mesh, data_axis="dp", seed=0, shuffle=True, drop_last=False):
        samples = dataset if isinstance(dataset, int) else _length(dataset)
        axis = _axis(mesh, data_axis)
        self.replicas = 1 if axis is None else mesh.size(axis)
        self.replica = 0 if axis is None else mesh.get_local_rank(axis)
        self.drop_last = drop_last
        self._orders = (EpochSampler if shuffle else _InOrder)(samples, seed)
        self.set_epoch(0)

    def set_epoch(self, epoch, begin=0):
        """Before each epoch, as for torch's DistributedSampler: without it, all epochs are the same.

        `begin`: goes on within the epoch, after so many samples of each replica (batches done times the DataLoader's
        batch_size). ValueError: a negative number, or more than the epoch has.
        """
        if epoch < 0 or begin < 0:
            raise ValueError(f"set_epoch(epoch={epoch}, begin={begin}): both begin at 0")
        self._first, self._last = self._rounds(epoch)
        if begin > self._last - self._first:
            raise ValueError(f"set_epoch(epoch={epoch}, begin={begin}): a replica has {self._last - self._first} samples in this "
                             "epoch")
        self.epoch, self._begin = epoch, begin

    def __len__(self):
        return self._last - self._first - self._begin

    def __iter__(self):
        samples, replicas = self._orders.samples, self.replicas
        place, end = (self._first + self._begin) * replicas, self._last * replicas
        if self.drop_last:  # each epoch begins with its own order
            skipped = self.epoch * (samples - samples // replicas * replicas)
            place, end = place + skipped, end + skipped
        place += self.replica
        while place < end:
            epoch = place // samples
            order = self._orders.batch(epoch, samples)
            for index in order[place - epoch * samples:end - epoch * samples:replicas].tolist():
                yield index
                place += replicas

    def _rounds(self, epoch):
        """Rounds of this epoch, among those of all: the first, and the one after the last."""
        samples, replicas = self._orders.samples, self.replicas
        if self.drop_last:
            rounds = samples // replicas
            return epoch * rounds, (epoch + 1) * rounds
        return -(-epoch * samples // replicas), -(-(epoch + 1) * samples // replicas)


class _InOrder(EpochSampler):
    def _order_of(self, epoch):
        return torch.arange(self.samples)


class ShardedCollate:
    """A DataLoader's collate_fn for samples of slabs; sharded() makes ShardTensors of what it returns.

    Workers of a DataLoader hold no process groups: called there, it checks the slabs and stacks them, into plain tensors.
    Entries without a shape (labels, numbers, text) go through torch's default_collate, and stay plain.

    Args:
        mesh: a DeviceMesh.
        placements: of a sample, as in slab(): one for each dimension of the mesh; or a tree of them, where entries differ.
        shape: global shape of a sample. For samples that are dicts, tuples or lists: the like, of shapes; None, or a key that is
            left out: an entry that is not sharded. (): one number, such as a label, which a loss of all replicas needs in one
            tensor with the samples; its placements are Replicate().
        batch_dim: where the batch dimension is in a batch.
        data_axis: axis of the mesh whose ranks have different samples. A batch is Shard(batch_dim) there: the replicas' batches
            lie one after another in one global tensor, whose loss has whole gradients on all ranks, without
            DistributedDataParallel. The replicas' batches have equal sizes, as ShardedSampler sees to. None: all ranks of the
            mesh have the same samples; that is for a replica with a batch of its own, on `mesh["domain"]`.

    Raises ShardTensorError: arguments that do not fit each other; when it is called, samples that are not as described.
    """

    def __init__(self, mesh, placements, shape, batch_dim=0, data_axis="dp"):
        self._mesh, self._data_axis = mesh, _axis(mesh, data_axis)
        self._specs = {}
        count = 0

        def entry(shape, placements, path):
            nonlocal count
            if shape is None:
                return None
            if _is_shape(shape):
                count += 1
                if not _are_placements(placements):
                    raise ShardTensorError(f"{_named(path)} has a shape, and its placements are {placements!r}: give one "
                                           "Shard(dim) or Replicate() for each dimension of the mesh")
                return _Entry(tuple(shape), mesh, tuple(placements), batch_dim, self._data_axis, path)
            if isinstance(shape, collections.abc.Mapping):
                return {key: entry(each, _below(placements, key), (*path, key)) for key, each in shape.items()}
            if isinstance(shape, (tuple, list)):
                return tuple(entry(each, _below(placements, key), (*path, key)) for key, each in enumerate(shape))
            raise ShardTensorError(f"the shape of {_named(path)} is {shape!r}: give a sequence of sizes, None for an entry that "
                                   "is not sharded, or a dict or tuple of these")

        self._tree = entry(shape, placements, ())
        if not count:
            raise ShardTensorError(f"no entry of a sample is sharded by shape={shape!r}: give the global shape of those that are")

    def __call__(self, samples):
        """A list of samples as one batch of plain tensors: each is this rank's part."""
        if not samples:
            raise ShardTensorError("there is no sample to make a batch of")
        return _collated(self._tree, samples, ())

    def sharded(self, batch):
        """What a call has returned, with ShardTensors. In the main process; nothing is sent, and memory is shared where a part is
        contiguous. On a mesh of GPUs parts go to this rank's GPU."""
        if self._mesh is None:
            raise ShardTensorError("this copy of a ShardedCollate came to a worker without its mesh: ShardTensors are made in "
                                   "the main process")
        return _walked(self._tree, batch, self._placed, ())

    def __getstate__(self):
        return self.__dict__ | {"_mesh": None, "_specs": {}}

    def _placed(self, entry, local, path):
        own = entry.size_of_batch(local)
        if own is None:
            has = f"the shape {list(local.shape)}" if isinstance(local, torch.Tensor) else f"a {type(local).__name__}"
            raise ShardTensorError(f"{_named(path, 'batch')} has {has}, which this collate does not make of "
                                   f"{list(entry.slab_shape)}: use it as the collate_fn of this loader")
        spec = self._specs.get((path, own))
        if spec is None:
            replicas = 1 if self._data_axis is None else self._mesh.size(self._data_axis)
            spec = self._specs[path, own] = ShardTensorSpec(self._mesh, entry.placements, shape=entry.batch_shape(own * replicas),
                                                            sharding_shapes="split")
        return ShardTensor(local.to(self._mesh.device_type, non_blocking=True), spec)


class _Entry:
    """One entry of samples that is sharded."""

    def __init__(self, shape, mesh, placements, batch_dim, data_axis, path):
        self.shape, self._ndim = shape, len(shape) + 1
        if not -self._ndim <= batch_dim < self._ndim:
            raise ShardTensorError(f"batch_dim={batch_dim}, and batches of {_named(path)} have {self._ndim} dimensions")
        self.batch_dim = batch_dim % self._ndim
        if data_axis is not None and data_axis < len(placements) and not placements[data_axis].is_replicate():
            raise ShardTensorError(f"{_named(path)} is {placements[data_axis]!r} over the data axis {_meshes.names_of(mesh)[data_axis]!r}, "
                                   "whose ranks have different samples: placements are those of one sample, so give Replicate() "
                                   "there, or data_axis=None if all ranks have the same")
        self.slab_shape = tuple(part.stop - part.start for part in slab(shape, mesh, placements))
        self.placements = [Shard(self.batch_dim) if axis == data_axis else self._in_batch(placement)
                           for axis, placement in enumerate(placements)]

    def batch_shape(self, size):
        return (*self.shape[:self.batch_dim], size, *self.shape[self.batch_dim:])

    def size_of_batch(self, local):
        """None: no batch of slabs."""
        if not isinstance(local, torch.Tensor) or local.dim() != self._ndim:
            return None
        shape = list(local.shape)
        size = shape.pop(self.batch_dim)
        return size if tuple(shape) == self.slab_shape else None

    def stacked(self, slabs, path):
        for number, each in enumerate(slabs):
            shape = () if isinstance(each, (int, float)) else getattr(each, "shape", None)
            if shape is None or tuple(shape) != self.slab_shape:
                has = f"is a {type(each).__name__}" if shape is None else f"has the shape {list(shape)}"
                raise ShardTensorError(f"{_named(path)} {has} in sample {number} of a batch, and this rank's part of "
                                       f"{list(self.shape)} is {list(self.slab_shape)}: index what the dataset reads by "
                                       "slab(shape, mesh, placements)")
        batch = default_collate(slabs)
        return batch if self.batch_dim == 0 else batch.movedim(0, self.batch_dim).contiguous()

    def _in_batch(self, placement):
        if not placement.is_shard():
            return placement
        dim = placement.dim % (self._ndim - 1)
        return Shard(dim + (dim >= self.batch_dim))


class sharded:
    """The batches of a DataLoader whose collate_fn is a ShardedCollate, with ShardTensors. Has the loader's length.

    `loader`: or any iterable over such batches, if `collate` is given. Raises ShardTensorError: there is no ShardedCollate.
    """

    def __init__(self, loader, collate=None):
        collate = collate if collate is not None else getattr(loader, "collate_fn", None)
        if not isinstance(collate, ShardedCollate):
            raise ShardTensorError(f"the collate_fn of this loader is {collate!r}, which does not say how batches are sharded: "
                                   "give DataLoader(collate_fn=ShardedCollate(...)), or sharded(loader, collate)")
        self.loader, self.collate = loader, collate

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        return map(self.collate.sharded, self.loader)


def _collated(tree, samples, path):
    if tree is None:
        return default_collate(samples)
    if isinstance(tree, _Entry):
        return tree.stacked(samples, path)
    for each in samples:
        _check_like(tree, each, path, "sample")
    return _rebuilt(samples[0], lambda key: _collated(_entry_of(tree, key), [each[key] for each in samples], (*path, key)))


def _walked(tree, batch, place, path):
    if tree is None:
        return batch
    if isinstance(tree, _Entry):
        return place(tree, batch, path)
    _check_like(tree, batch, path, "batch")
    return _rebuilt(batch, lambda key: _walked(_entry_of(tree, key), batch[key], place, (*path, key)))


def _check_like(tree, value, path, what):
    kind, kinds = ("dict", collections.abc.Mapping) if isinstance(tree, dict) else ("tuple", (tuple, list))
    if not isinstance(value, kinds):
        raise ShardTensorError(f"{_named(path, what)} is a {type(value).__name__}, and ShardedCollate was given the shapes of a "
                               f"{kind}")
    if kind == "tuple" and len(value) != len(tree):
        raise ShardTensorError(f"{_named(path, what)} has {len(value)} entries, and ShardedCollate was given shapes for "
                               f"{len(tree)}: give None for those that are not sharded")
    missing = [key for key in tree if key not in value] if kind == "dict" else []
    if missing:
        raise ShardTensorError(f"{_named(path, what)} has the keys {list(value)} and not {missing[0]!r}, for which "
                               "ShardedCollate was given a shape")


def _entry_of(tree, key):
    return tree.get(key) if isinstance(tree, dict) else tree[key]


def _rebuilt(value, part):
    """A container like `value`."""
    if isinstance(value, collections.abc.Mapping):
        return {key: part(key) for key in value}
    parts = [part(key) for key in range(len(value))]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def _is_shape(shape):
    return isinstance(shape, (tuple, list)) and all(isinstance(size, int) for size in shape)


def _are_placements(placements):
    return isinstance(placements, (tuple, list)) and all(isinstance(each, Placement) for each in placements)


def _below(placements, key):
    """Placements of an entry: its own, if they are a tree."""
    if _are_placements(placements):
        return placements
    if isinstance(placements, collections.abc.Mapping):
        return placements.get(key)
    return placements[key] if isinstance(placements, (tuple, list)) and isinstance(key, int) and key < len(placements) else None


def _named(path, what="sample"):
    return f"the entry {'.'.join(map(str, path))!r} of a {what}" if path else f"a {what}"


def _length(dataset):
    try:
        return len(dataset)
    except TypeError:
        raise TypeError(f"a {type(dataset).__name__} has no length: give the number of samples, or a dataset that has "
                        "__len__") from None


def _axis(mesh, data_axis):
    """Number of the data axis; None: there is none."""
    _meshes.check(mesh)
    if data_axis is None:
        return None
    names = _meshes.names_of(mesh)
    if isinstance(data_axis, int) and -mesh.ndim <= data_axis < mesh.ndim:
        return data_axis % mesh.ndim
    if data_axis not in names:
        raise ShardTensorError(f"the mesh has the axes {', '.join(names)} and not {data_axis!r}: name the one whose ranks have "
                               "different samples, or give data_axis=None where all have the same")
    return names.index(data_axis)
