"""Neighborhood attention on a line and on a plane, with NATTEN's names, on plain tensors and ShardTensors."""

from meshrun.torch import _extension


def na1d(query, key, value, kernel_size, stride=1, dilation=1, is_causal=False, scale=None):
    """Collective where one of them is sharded: each position attends to `kernel_size` positions around it, `dilation` apart.

    Args: `query`, `key`, `value`: [batch, length, heads, features], of one dtype; the value may have other features. Near an end a
    position attends to the outermost `kernel_size` ones. `is_causal`: to itself and those before it. `scale`: None: 1 / sqrt(features).
    A cut length fetches its neighbors' halos; heads and batches that are cut send nothing. The result lies as the query.

    Differentiable, of any order. Raises ValueError on all ranks: shapes, a window that is longer than the line;
    NotImplementedError: a `stride` other than 1.
    """
    return _attention(query, key, value, 1, kernel_size, stride, dilation, is_causal, scale)


def na2d(query, key, value, kernel_size, stride=1, dilation=1, is_causal=False, scale=None):
    """The same on [batch, height, width, heads, features]. `kernel_size`, `dilation` and `is_causal` are one value for both
    dimensions, or a pair."""
    return _attention(query, key, value, 2, kernel_size, stride, dilation, is_causal, scale)


def _attention(query, key, value, count, kernel_size, stride, dilation, is_causal, scale):
    def for_each(name, given):
        values = list(given) if isinstance(given, (tuple, list)) else [given] * count
        if len(values) != count:
            raise ValueError(f"na{count}d: {name} has {len(values)} elements; one or {count} are expected")
        return values

    if any(each != 1 for each in for_each("stride", stride)):
        raise NotImplementedError(f"na{count}d: stride is {stride}; every position attends here, which is stride 1")
    return _extension.shard.neighborhood_attention(query, key, value, for_each("kernel_size", kernel_size), for_each("dilation", dilation),
                                                   [bool(each) for each in for_each("is_causal", is_causal)], scale)
