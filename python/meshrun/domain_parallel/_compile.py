"""torch.compile and sharded tensors: a compiled program breaks where it meets one, and what is computed from it runs as written.

torch.compile describes a tensor by its storage, which a sharded one has not, and would end with an internal error.
"""

import functools

from torch._subclasses import meta_utils
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

from meshrun.torch import _extension

_is_sharded = _extension.shard.is_sharded
_describe = meta_utils.MetaTensorDescriber.describe_tensor


@functools.wraps(_describe)
def _describe_plain(self, tensor, *args, **kwargs):
    if _is_sharded(tensor):
        raise UnsupportedFakeTensorException("operators on a ShardTensor run outside of compiled programs: compile functions of local "
                                             "tensors, or call torch.compile without fullgraph=True")
    return _describe(self, tensor, *args, **kwargs)


meta_utils.MetaTensorDescriber.describe_tensor = _describe_plain
