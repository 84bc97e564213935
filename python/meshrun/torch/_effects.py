"""Tells torch.compile that the operators of torch.ops.meshrun communicate.

It then keeps every call, in the program's order: also a call whose result this rank does not use, because other ranks
wait for it, and never a call twice, where it would rather compute something again than keep it.
"""

import torch
from torch._higher_order_ops.effects import _register_effectful_op
from torch._library.effects import EffectType

COMMUNICATING = ["all_gather_v", "distributed_transpose", "distributed_transpose_adjoint", "fused_all_reduce",
                 "gather_v", "indexed_all_to_all_v", "indexed_all_to_all_v_reverse", "irfft2", "irfft2_adjoint",
                 "reduce_from_parallel_region", "reduce_scatter_v", "rfft2", "rfft2_adjoint", "scatter_v"]

for _name in [*COMMUNICATING, "bagua_keep", "traced_call"]:
    _register_effectful_op(getattr(torch.ops.meshrun, _name).default, EffectType.ORDERED)
