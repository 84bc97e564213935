"""What a handler puts between a ShardTensor and its local computation: identities that change the gradient alone."""

import torch
import torch.distributed._functional_collectives as collectives


class GradReducer(torch.autograd.Function):
    """`GradReducer.apply(tensor, spec)`: the same plain tensor; its gradient is summed over the ranks along each mesh dimension
    that is a Shard in `spec`. For a tensor that all ranks hold alike (a weight) beside a sharded one of that spec. Backward is
    collective."""

    @staticmethod
    def forward(tensor, ref_spec):
        return tensor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.spec = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        for axis, placement in enumerate(ctx.spec.placements):
            if placement.is_shard():
                gradient = collectives.all_reduce(gradient, "sum", (ctx.spec.mesh, axis))
        # Hooks and `param.grad` get the sum itself, not one that is still under way.
        return gradient.wait() if isinstance(gradient, collectives.AsyncCollectiveTensor) else gradient, None


class ContiguousGrad(torch.autograd.Function):
    """`ContiguousGrad.apply(tensor)`: the same tensor; its gradient becomes contiguous."""

    @staticmethod
    def forward(tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient.contiguous()
