"""torch's placements and the words that the extension takes: "S1", "R", "Psum"."""

from torch.distributed.tensor import Partial, Replicate, Shard

from meshrun.domain_parallel.errors import ShardTensorError


def word_of(placement):
    if isinstance(placement, Replicate):
        return "R"
    if type(placement) is Shard:
        return f"S{placement.dim}"
    if type(placement) is Partial:
        return f"P{placement.reduce_op}"
    raise ShardTensorError(f"{placement!r} is no placement of a ShardTensor: Shard(dim), Replicate(), or Partial of sum, avg, "
                           "product, min or max")


def words_of(placements):
    """None stays None."""
    if placements is None:
        return None
    if isinstance(placements, (Partial, Replicate, Shard)):
        raise ShardTensorError(f"placements are a sequence with one entry for each dimension of the mesh, not {placements!r}")
    return [word_of(placement) for placement in placements]


def placement_of(word):
    if word == "R":
        return Replicate()
    return Shard(int(word[1:])) if word[0] == "S" else Partial(word[1:])


def placements_of(words):
    return tuple(placement_of(word) for word in words)
