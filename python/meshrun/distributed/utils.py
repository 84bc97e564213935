"""Collectives on uneven pieces without gradients, padding, and the small functions around them.

The names, argument order and defaults are those of physicsnemo.distributed.utils. `group` is a ProcessGroup, a group's
name or None for the world (see _groups.py). `sizes` are the ranks' extents along `dim`, or their full shapes, in rank
order.

Ranks compare their calls before anything moves: a wrong argument on one rank is a ValueError on all ranks of the group,
with one sentence. All ranks of a group make its calls in the same order.
"""

import collections

import torch

import meshrun.torch as _backend  # loads the operators
from meshrun.distributed._groups import group_name
from meshrun.distributed._marked import SHARED_OVER, guard, is_sharded, unguard, watch_ddp
from meshrun.distributed.fused import fused_all_reduce

_ops = torch.ops.meshrun

__all__ = ["all_gather_v_bwd_wrapper", "all_gather_v_wrapper", "compute_split_shapes", "distributed_transpose",
           "fused_all_reduce", "gather_v_wrapper", "get_memory_format", "indexed_all_to_all_v_wrapper",
           "indexed_all_to_all_v_wrapper_bwd", "mark_module_as_shared", "pad_helper", "reduce_loss",
           "scatter_v_wrapper", "split_tensor_along_dim", "truncate_helper", "unmark_module_as_shared"]


def _flat(sizes):
    """Sizes as the operators take them: extents by rank, or full shapes one after another."""
    if sizes is None:
        return None
    if isinstance(sizes, torch.Tensor):
        sizes = sizes.tolist()
    flat = []
    for size in sizes:
        if isinstance(size, (list, tuple)):
            flat.extend(size)
        else:
            flat.append(size)
    return flat


def _wrapped(dim, ndim, caller):
    if ndim == 0 or not -ndim <= dim < ndim:
        raise IndexError(f"{caller}: dim is {dim} for a tensor of {ndim} dimensions")
    return dim % ndim


def compute_split_shapes(size, num_chunks):
    """The sizes of the pieces that `num_chunks` ranks hold of a dimension of `size`, in rank order.

    Every piece but the last has ceil(size / num_chunks) elements and the last one the rest; if that leaves nothing for
    the last one, the others have floor(size / num_chunks). Pieces may be empty: 3 in 4 is [0, 0, 0, 3]. Raises
    ValueError for a negative size or no chunks. Source: physicsnemo.distributed.utils.compute_split_shapes.
    """
    if num_chunks < 1 or size < 0:
        raise ValueError(f"compute_split_shapes: size {size} cannot be cut into {num_chunks} pieces")
    chunk = (size + num_chunks - 1) // num_chunks
    if size - chunk * (num_chunks - 1) <= 0:
        chunk = size // num_chunks
    return [chunk] * (num_chunks - 1) + [size - chunk * (num_chunks - 1)]


def split_tensor_along_dim(tensor, dim, num_chunks):
    """The pieces of compute_split_shapes along `dim`, as a tuple of views. Backward: PyTorch's. Nothing is sent."""
    dim = _wrapped(dim, tensor.dim(), "split_tensor_along_dim")
    return torch.split(tensor, compute_split_shapes(tensor.shape[dim], num_chunks), dim)


def get_memory_format(tensor):
    """torch.channels_last where a tensor of four dimensions lies so, else torch.contiguous_format."""
    channels_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last and not tensor.is_contiguous() else torch.contiguous_format


def pad_helper(tensor, dim, new_size, mode="zero"):
    """`tensor` with `new_size` along `dim`, padded at the end.

    mode "zero": with zeros. "conj": with the conjugates that complete the half of a spectrum that a transform of real
    data yields: element new_size - k is the conjugate of element k, along `dim` alone; at most 2 * size - 1 elements.
    Any dtype; the result has it. Backward: PyTorch's. Nothing is sent. Raises ValueError where new_size is smaller than
    the size or too large for "conj", or mode is unknown; IndexError for a dim out of range. Source:
    physicsnemo.distributed.utils.pad_helper, which pads the last dimension whatever `dim` says.
    """
    dim = _wrapped(dim, tensor.dim(), "pad_helper")
    if mode not in ("zero", "conj"):
        raise ValueError(f'pad_helper: mode "{mode}" is unknown; it is "zero" or "conj"')
    size = tensor.shape[dim]
    added = new_size - size
    if added < 0:
        raise ValueError(f"pad_helper: dim {dim} has size {size} already and cannot be padded to {new_size}; "
                         "see truncate_helper")
    if added == 0:
        return tensor
    if mode == "conj":
        if added >= size:
            raise ValueError(f"pad_helper: dim {dim} of size {size} can be completed with conjugates to at most "
                             f"{2 * size - 1}, not to {new_size}")
        return torch.cat([tensor, tensor.narrow(dim, 1, added).conj().flip(dim)], dim)
    shape = list(tensor.shape)
    shape[dim] = added
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)


def truncate_helper(tensor, dim, new_size):
    """The first `new_size` slices of `tensor` along `dim`, contiguous. Backward: PyTorch's. Nothing is sent.

    Raises ValueError where new_size is negative or larger than the size, IndexError for a dim out of range.
    """
    dim = _wrapped(dim, tensor.dim(), "truncate_helper")
    size = tensor.shape[dim]
    if not 0 <= new_size <= size:
        raise ValueError(f"truncate_helper: dim {dim} has size {size} and cannot be truncated to {new_size}; "
                         "see pad_helper")
    return tensor if new_size == size else tensor.narrow(dim, 0, new_size).contiguous()


def reduce_loss(loss, dst_rank=0, mean=True):
    """The sum of the ranks' losses, or their mean, as a float on rank `dst_rank` of the world; None on all others.

    The sum is taken in float64. Blocks. Raises RuntimeError before DistributedManager.initialize(), ValueError on every
    rank for a dst_rank outside the world. Source: physicsnemo.distributed.utils.reduce_loss, which rounds to float32.
    """
    value = loss.detach() if isinstance(loss, torch.Tensor) else loss
    return _ops.reduce_loss(float(value), dst_rank, mean)


@torch.no_grad()
def all_gather_v_wrapper(tensor, sizes=None, dim=0, group=None):
    """All ranks' pieces on every rank: autograd.all_gather_v without a gradient. `sizes` None: all pieces are equal."""
    return _ops.all_gather_v(tensor, _flat(sizes), dim, True, group_name(group))


@torch.no_grad()
def all_gather_v_bwd_wrapper(tensor, sizes, dim=0, use_fp32=True, group=None):
    """What all_gather_v does backward, without a gradient: this rank's slice of the sum of all ranks' tensors.

    tensor: of one shape on all ranks, sum(sizes) along dim, of a dtype that is added. Returns sizes[rank] along dim.
    Sums are in rank order, so the same bits in every run; float16 and bfloat16 are added in float32 unless use_fp32 is
    False.
    """
    return _ops.reduce_scatter_v(tensor, _flat(sizes), dim, use_fp32, group_name(group))


@torch.no_grad()
def gather_v_wrapper(tensor, sizes, dim=0, dst=0, group=None):
    """All ranks' pieces on rank `dst` of the group: autograd.gather_v without a gradient.

    Elsewhere zeros of the whole tensor's shape, all of them one element of memory: a backward pass that gathers
    gradients at `dst`, as PhysicsNeMo's autograd functions do, needs that shape on every rank.
    """
    whole = _ops.gather_v(tensor, _flat(sizes), dim, dst, group_name(group))
    extents = [size[dim] if isinstance(size, (list, tuple)) else size for size in sizes]
    missing = sum(extents) - whole.shape[dim]
    if missing == 0:
        return whole
    shape = list(whole.shape)
    shape[dim] = missing
    return whole.new_zeros(()).expand(shape)


@torch.no_grad()
def scatter_v_wrapper(tensor, sizes, dim=0, src=0, group=None):
    """A piece of rank src's tensor on each rank: autograd.scatter_v without a gradient."""
    return _ops.scatter_v(tensor, _flat(sizes), dim, src, group_name(group))


@torch.no_grad()
def indexed_all_to_all_v_wrapper(tensor, indices, sizes, dim=0, group=None):
    """Slices chosen by index to each rank: autograd.indexed_all_to_all_v without a gradient."""
    return _ops.indexed_all_to_all_v(tensor, list(indices), _flat(sizes), True, dim, group_name(group))


@torch.no_grad()
def indexed_all_to_all_v_wrapper_bwd(tensor, indices, sizes, tensor_size_along_dim, use_fp32=True, dim=0, group=None):
    """What indexed_all_to_all_v does backward, without a gradient: slices travel back and are added up.

    tensor: of the forward result's shape. Returns tensor_size_along_dim along dim; slices that were never sent are
    zero. Slices are added in the order of the send list, so the same bits in every run.
    """
    return _ops.indexed_all_to_all_v_reverse(tensor, list(indices), _flat(sizes), tensor_size_along_dim, use_fp32, dim,
                                             group_name(group))


def distributed_transpose(tensor, dim0, dim1, group=None, async_op=False, *, dim1_sizes=None):
    """Takes a tensor that the ranks hold in pieces along dim1, and splits it along dim0.

        pieces, _ = distributed_transpose(x, 0, 1)    # x: [H, W / P]
        rows = torch.cat(pieces, dim=1)               # [H / P, W]

    tensor: all of dim0 and this rank's piece of dim1, of any extent, also 0; equal beside them; any dtype.
    Returns (pieces, work). pieces[r], of what rank r holds: this rank's compute_split_shapes piece of dim0 and rank r's
    extent along dim1. They are views of one tensor that has them side by side along dim1. work: None, or with async_op
    the Work to wait for before they are read. dim1_sizes: the ranks' extents along dim1. Without it the ranks tell each
    other, one number each; torch.compile needs it. Backward: the transpose back, of any order, on all ranks of the
    group or on none. With async_op: none. Raises ValueError on every rank. Source:
    physicsnemo.distributed.utils.distributed_transpose, for equal extents only.
    """
    name = group_name(group)
    sizes = _ops.transpose_sizes(tensor, dim0, dim1, name) if dim1_sizes is None else _flat(dim1_sizes)
    if async_op:
        result, work = _ops.transpose_async(tensor, dim0, dim1, sizes, name)
        return list(torch.split(result, sizes, dim1)), torch.distributed.Work.unbox(work)
    return list(torch.split(_ops.distributed_transpose(tensor, dim0, dim1, sizes, name), sizes, dim1)), None


def _named_parameters(module, recurse):
    named = [(name, p) for name, p in module.named_parameters(recurse=recurse) if p is not None]
    return [name for name, _ in named], [parameter for _, parameter in named]


def _refuse_hook(hook):
    """In place of register_post_accumulate_grad_hook of a marked parameter: a parameter has one such hook in C++, and a second
    one would take the mark's place without a word."""
    raise RuntimeError("this parameter is marked as shared (mark_module_as_shared), and a post-accumulate hook would take the "
                       "mark's place: use register_hook(), or a hook of the optimizer")


_MARK = ("register_post_accumulate_grad_hook", SHARED_OVER, "__getstate__")


class _StateWithoutMark:
    """A marked parameter's __getstate__: a copy by pickle or torch.save has no mark in C++, so none in Python."""

    def __init__(self, attributes):
        self._attributes = attributes  # not the parameter, whose memory would wait for the garbage collector

    def __call__(self):
        return {name: value for name, value in self._attributes.items() if name not in _MARK} or None


def is_shared_over(parameter, name):
    """Whether mark_module_as_shared() has marked this very parameter, over the group of that name."""
    return getattr(parameter, SHARED_OVER, None) == name


def mark_parameters_as_shared(names, parameters, group, use_fp32_reduction=True):
    """mark_module_as_shared() of some parameters of a module, under their names there; `group` is a name."""
    for name, parameter in zip(names, parameters):
        if is_sharded(parameter):
            raise RuntimeError(f"mark_module_as_shared: parameter {name!r} is a DTensor, as fully_shard() makes them. Its "
                               "gradient is written where no mark reaches it: FSDP2 and marks do not go together")
        if parameter.requires_grad and parameter._backward_hooks is None:
            # Python's list of hooks. Made by a later register_hook(), it would clear the mark's own hook.
            parameter._backward_hooks = collections.OrderedDict()
    _ops.mark_as_shared(names, parameters, group, use_fp32_reduction)
    watch_ddp()
    for parameter in parameters:
        if parameter.requires_grad:
            attributes = vars(parameter)
            attributes.update(zip(_MARK, (_refuse_hook, group, _StateWithoutMark(attributes))))


def mark_module_as_shared(module, process_group, recurse=True, use_fp32_reduction=True):
    """Marks a module's parameters as shared by the ranks of a group, each of which feeds it other data. Returns
    `module`.

    After each backward pass the parameters' gradients are summed over the group: what the pass has added to them, in
    buckets; what they held before stays, so gradients accumulate. A parameter that a rank's pass does not reach counts
    as zero there, if the pass reaches another one of this mark. All ranks mark equal modules in the same order, and a
    backward pass reaches a mark on all ranks or on none, else ValueError (tie() makes it reach one). process_group: a
    group, its name, or None for the world. recurse: the submodules' parameters too. use_fp32_reduction: 16-bit
    gradients are added in float32. A marked parameter takes no post-accumulate hook: registering one raises
    RuntimeError.

    The mark belongs to the parameters that require a gradient at the call. Other parameters have none, and their
    gradients are this rank's alone: those of a copy (copy.deepcopy, pickle, torch.load of a module), those that
    load_state_dict(assign=True) puts in place, those that are unfrozen later. Mark a copy as you marked the module;
    unmark a module before it is marked again.

    torch.autograd.grad() returns this rank's gradients: like DistributedDataParallel, a mark works on .grad alone.

    The forward pass of the module, of one in it, or of DistributedDataParallel around it raises RuntimeError where
    gradients would not be summed, or not averaged: a marked parameter was replaced (fully_shard(),
    load_state_dict(assign=True)), or DistributedDataParallel runs with no_sync() or gradient_as_bucket_view, whichever
    part of the model the pass uses. Where it has find_unused_parameters, each of its ranks uses the module all the same.

    Raises RuntimeError on every rank where a parameter is marked already or the modules differ; in the first backward
    pass where the ranks' values of a parameter differ. Source: physicsnemo.distributed.utils.mark_module_as_shared,
    which sums again what earlier passes have summed.
    """
    names, parameters = _named_parameters(module, recurse)
    mark_parameters_as_shared(names, parameters, group_name(process_group), use_fp32_reduction)
    guard(module, names, parameters)
    return module


def unmark_module_as_shared(module, recurse=True):
    """Undoes mark_module_as_shared(), on all ranks between the same two backward passes. Returns `module`.

    Raises RuntimeError on this rank where a parameter that requires a gradient is not marked.
    """
    names, parameters = _named_parameters(module, recurse)
    _ops.unmark_as_shared(names, parameters)
    unguard(module)
    for parameter in parameters:
        for name in _MARK:
            vars(parameter).pop(name, None)
    return module
