"""Which samples make up each batch: EpochSampler of meshrun.elastic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import torch

from meshrun.distributed.manager import DistributedManager as _DistributedManager


class EpochSampler:
    """Which samples make up each batch, where every sample comes once in an epoch: a pure function of (seed, step), so all
    ranks agree without a message, and a run that goes on with another number of ranks draws the same samples next.

    `samples`: their number. A batch may take its first part from one epoch and the rest from the next.
    """

    _GOLDEN = -7046029254386353131  # splitmix64's increment and multipliers, as int64
    _FIRST = -4658895280553007687
    _SECOND = -7723592293110705685

    def __init__(self, samples: int, seed: int = 0) -> None:
        if samples < 1:
            raise ValueError(f"there are {samples} samples to draw batches from")
        self.samples = samples
        self.seed = seed
        self._epoch: Optional[int] = None
        self._order: Optional[torch.Tensor] = None

    def batch(self, step: int, batch_size: int) -> torch.Tensor:
        """The global batch of `step`: int64, of batch_size indices."""
        if step < 0 or batch_size < 1:
            raise ValueError(f"batch(step={step}, batch_size={batch_size}): steps begin at 0, and a batch has at least 1 sample")
        begin, end = step * batch_size, (step + 1) * batch_size
        parts = []
        while begin < end:
            epoch, place = divmod(begin, self.samples)
            count = min(end - begin, self.samples - place)
            parts.append(self._order_of(epoch)[place:place + count])
            begin += count
        return torch.cat(parts)

    def local_batch(self, step: int, batch_size: int, rank: Optional[int] = None,
                    world_size: Optional[int] = None) -> torch.Tensor:
        """This rank's piece of it. Where batch_size does not divide, the first ranks have one sample more: then scale the loss by
        len(piece) * world_size / batch_size, because DistributedDataParallel averages over ranks, not over samples."""
        if rank is None or world_size is None:
            manager = _DistributedManager()
            rank, world_size = manager.rank, manager.world_size
        whole, more = divmod(batch_size, world_size)
        begin = rank * whole + min(rank, more)
        return self.batch(step, batch_size)[begin:begin + whole + (rank < more)]

    def local_batches(self, first: int, last: int, batch_size: int, rank: Optional[int] = None,
                      world_size: Optional[int] = None) -> list[list[int]]:
        """A batch_sampler for torch.utils.data.DataLoader: this rank's pieces of the steps first to last - 1, as lists."""
        return [self.local_batch(step, batch_size, rank, world_size).tolist() for step in range(first, last)]

    @classmethod
    def _mix(cls, value):
        def shifted(each, bits):
            return (each >> bits) & ((1 << (64 - bits)) - 1)  # logical

        value = value + cls._GOLDEN
        value = (value ^ shifted(value, 30)) * cls._FIRST
        value = (value ^ shifted(value, 27)) * cls._SECOND
        return value ^ shifted(value, 31)

    def _order_of(self, epoch):
        if epoch != self._epoch:
            stream = self._mix(self._mix(torch.tensor(self.seed, dtype=torch.int64)) ^ epoch)
            keys = self._mix(stream + torch.arange(self.samples, dtype=torch.int64))
            self._epoch, self._order = epoch, torch.sort(keys, stable=True).indices
        return self._order
