"""torch.manual_seed(), get_rng_state() and set_rng_state(), for sharded tensors too.

Random operations on sharded tensors are counted, so that ranks agree on numbers without a message (parallel/shard/random). PyTorch's
functions know nothing of the count. So what they are given back to repeat an operation (torch.utils.checkpoint, fork_rng) would draw other
numbers on ShardTensors than before, and a seed that is set again would go on where it was. From now on a state has the count as an
attribute; it does not travel into a file. A torch.Generator's own methods are as before.
"""

import functools

import torch

from meshrun.torch import _extension

_shard = _extension.shard
_COUNT = "_meshrun_count"


def _instead(name):
    """Decorates what follows torch's function of that name, given its result and arguments."""
    def decorate(function):
        before = getattr(torch, name)

        @functools.wraps(before)
        def called(*args, **kwargs):
            result = before(*args, **kwargs)
            # A program that torch.compile reads has no count of its own: its calls draw where it runs.
            if not torch.compiler.is_compiling():
                function(result, *args, **kwargs)
            return result

        setattr(torch, name, called)
        setattr(torch.random, name, called)
        return function
    return decorate


@_instead("manual_seed")
def _begins_anew(generator, seed):
    _shard.set_random_count(0)


@_instead("get_rng_state")
def _with_count(state):
    setattr(state, _COUNT, _shard.random_count())


@_instead("set_rng_state")
def _goes_back(nothing, new_state):
    count = getattr(new_state, _COUNT, None)
    if count is not None:
        _shard.set_random_count(count)
