"""The adaptive Fourier neural operator (arXiv:2111.13587) with its channels and weights split over the ranks of a
group.

    DistributedManager.initialize()                    # with MODEL_PARALLEL_SIZE=4 in the environment
    model = DistributedAFNO((720, 1440), 20)
    y = model(x)                                       # [B, 20, 720, 1440] on every rank

Any number of ranks holds pieces of one model: the one that a single rank would have with the seed of the group's rank
0. Outputs and gradients are those of that model, up to rounding. Parameters have its names, and are those of the C++
class meshrun::DistributedAFNO with the same seed; parameter_shards() says how each is cut.

Data: all ranks get the same samples; with channel_parallel_inputs each gets its piece of their channels. Backward: a
whole output has the same loss on all ranks. With channel_parallel_outputs the loss is the sum of the ranks' losses of
their channels. It runs on all ranks or on none.

With a `spatial_group` the field is split along its width as well: a rank has whole columns of patches, as
compute_split_shapes(width / patch width) says, of the input and of the output; the loss is the sum of the ranks' losses
of their columns. Each forward call with gradients marks those trainable parameters as shared over that group that are
not yet (utils.py): also those of a copy, those that were frozen before, and those that another load put in place. All
ranks copy, load, freeze and unfreeze alike.

Errors: UndefinedGroupError (a RuntimeError) where the group was never made; ValueError on all ranks of the group for
options that do not fit or differ, and inputs of another shape, dtype or device.

Corresponds to physicsnemo.models.afno.distributed, whose LayerNorm is over positions and not over channels, and whose
channel_parallel_ arguments are ignored.
"""

import math
from typing import Any, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshrun.distributed._afno_plan import AfnoShape, mode_window, overlap, problem_of
from meshrun.distributed._channel_group import ChannelGroup, ShardedModule, Weights
from meshrun.distributed._marked import problem_with_ddp
from meshrun.distributed.errors import UndefinedGroupError
from meshrun.distributed.fft import DistributedIRFFT2, DistributedRFFT2
from meshrun.distributed.utils import is_shared_over, mark_parameters_as_shared

__all__ = ["DistributedAFNO", "DistributedAFNONet"]

_LAYER_NORM_EPSILON = 1e-6


@torch.compiler.disable
def _share(named: Sequence[Tuple[str, Tensor]], group: str) -> None:
    names, parameters = zip(*named)
    mark_parameters_as_shared(list(names), list(parameters), group)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _dropout(x: Tensor, p: float, training: bool, columns: Tuple[slice, int], channels: Tuple[slice, int]) -> Tensor:
    """Drops elements of [B, h, w, C]. The mask is that of the unsharded tensor, drawn whole: ranks that are seeded
    alike drop what one rank alone drops."""
    if not training or p == 0:
        return x
    if p == 1:
        return x * 0
    mask = x.new_empty((x.shape[0], x.shape[1], columns[1], channels[1])).bernoulli_(1 - p).div_(1 - p)
    return x * mask[:, :, columns[0], channels[0]]


def _drop_path(x: Tensor, p: float, training: bool) -> Tensor:
    """Drops whole samples (Huang et al. 2016)."""
    if not training or p == 0:
        return x
    return x * 0 if p == 1 else x * x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(1 - p).div_(1 - p)


def _layer_norm(x: Tensor, norm: Weights, channels: ChannelGroup) -> Tensor:
    """Over all channels, of which this rank has a piece: means and variances of the pieces are gathered, two numbers
    per position and rank, and combined (Chan et al. 1979)."""
    if channels.size == 1:
        return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, _LAYER_NORM_EPSILON)
    wide = _wide(x)
    own = torch.stack(torch.var_mean(wide, -1, correction=0, keepdim=True)).unsqueeze(0)
    variances, means = channels.all_gather(own, 0, channels.size).unbind(1)
    mean = means.mean(0)
    variance = (variances + (means - mean).square()).mean(0)
    normal = (wide - mean) * (variance + _LAYER_NORM_EPSILON).rsqrt()
    return torch.addcmul(_wide(norm.bias), normal, _wide(norm.weight)).to(x.dtype)


def _real_matrix(w: Tensor) -> Tensor:
    """Real [blocks, 2 i, 2 o] that multiplies rows (re, im, re, im, ...) as the complex [2, blocks, i, o] would."""
    re, im = w.unbind(0)
    rows = torch.stack([torch.stack([re, im], -1), torch.stack([-im, re], -1)], 2)
    return rows.flatten(3).flatten(1, 2)


def _real_row(b: Tensor) -> Tensor:
    return torch.stack([b[0], b[1]], -1).flatten(1).unsqueeze(1)


class _Columns:
    """This rank's columns of a field, and the transforms over the group that splits them: from columns to rows of
    modes, and back."""

    def __init__(self, shape: AfnoShape, group: Optional[ChannelGroup]):
        self.group = group
        self.size = 1 if group is None else group.size
        self.extent = shape.columns
        self.own = slice(0, self.extent) if group is None else group.piece(self.extent)
        self.rows = slice(0, shape.rows) if group is None else group.piece(shape.rows)
        self.field = (shape.rows, self.extent)
        self.has_raised = False

    @property
    def piece(self) -> Tuple[slice, int]:
        return self.own, self.extent

    def to_modes(self, x: Tensor) -> Tensor:
        if self.size == 1:
            return _in_rows(torch.fft.rfft2(x, dim=(1, 2), norm="ortho"))
        return self._transform(DistributedRFFT2, x, self.extent, self.field[0])

    def from_modes(self, x: Tensor) -> Tensor:
        if self.size == 1:
            return _in_rows(torch.fft.irfft2(x, s=self.field, dim=(1, 2), norm="ortho"))
        return self._transform(DistributedIRFFT2, x, self.field[0], self.extent)

    def _transform(self, transform, x: Tensor, split: int, then_split: int) -> Tensor:
        sizes = self.group.sizes
        try:
            return transform.apply(x, self.field, (1, 2), "ortho", group=self.group.name, input_sizes=sizes(split),
                                   output_sizes=sizes(then_split))
        except Exception:
            self.has_raised = True  # on all ranks of the group
            raise


def _in_rows(transformed: Tensor) -> Tensor:
    # torch 2.11 compiles as if a transform's result always were, and its views of it then fail.
    return transformed.clone(memory_format=torch.contiguous_format) if torch.compiler.is_compiling() else transformed


class _Filter(ShardedModule):
    """x + irfft2(softshrink(W2 relu(W1 rfft2(x) + b1) + b2)) on [B, h, w, C], block-diagonal in the channels: ranks
    need nothing of each other's. float16 and bfloat16 are transformed in float32, under autocast too."""

    def __init__(self, shape: AfnoShape, channels: ChannelGroup, normal):
        super().__init__(channels)
        self._shape = shape
        blocks, width = shape.num_blocks, shape.embed_dim // shape.num_blocks
        for number in (1, 2):
            self.register_shard(f"w{number}", normal(2, blocks, width, width), 1)
            self.register_shard(f"b{number}", normal(2, blocks, width), 1)

    def forward(self, x: Tensor, columns: _Columns) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            height, width = columns.field
            spectrum = columns.to_modes(_wide(x))
            rows, kept = mode_window(height, width, self._shape.hard_thresholding_fraction)
            begin, count = overlap(rows, columns.rows)
            mixed = self._mix(spectrum[:, begin:begin + count, :kept])
            after = columns.rows.stop - columns.rows.start - begin - count
            padded = F.pad(mixed, (0, 0, 0, 0, 0, spectrum.shape[2] - kept, begin, after))
            return columns.from_modes(torch.view_as_complex(padded.contiguous())).to(x.dtype) + x

    def _mix(self, modes: Tensor) -> Tensor:
        rows = torch.view_as_real(modes)
        blocks, width = self.w1.shape[1:3]
        x = rows.reshape(modes.shape[:3].numel(), blocks, 2 * width).transpose(0, 1)

        def layer(x, w, b):
            return torch.baddbmm(_real_row(b.to(x.dtype)), x, _real_matrix(w.to(x.dtype)))

        x = layer(torch.relu(layer(x, self.w1, self.b1)), self.w2, self.b2)
        return F.softshrink(x, self._shape.sparsity_threshold).transpose(0, 1).reshape(rows.shape)


class _MLP(nn.Module):
    """Two products with a GELU between, on a rank's piece of [B, h, w, C]: it has a slice of the hidden features."""

    def __init__(self, shape: AfnoShape, channels: ChannelGroup, normal):
        super().__init__()
        self._shape, self._channels = shape, channels
        hidden, extent = shape.hidden, shape.embed_dim
        self.fc1 = Weights(channels, normal(hidden, extent), 0, torch.zeros(hidden), 0)
        self.fc2 = Weights(channels, normal(extent, hidden), 1, torch.zeros(extent), 0)

    def forward(self, x: Tensor, columns: _Columns) -> Tensor:
        channels, extent, hidden = self._channels, self._shape.embed_dim, self._shape.hidden
        x = F.gelu(F.linear(channels.all_gather(x, -1, extent), self.fc1.weight, self.fc1.bias))
        x = _dropout(x, self._shape.drop_rate, self.training, columns.piece, (channels.piece(hidden), hidden))
        x = channels.reduce_scatter(F.linear(x, self.fc2.weight), x.dim() - 1) + self.fc2.bias
        return _dropout(x, self._shape.drop_rate, self.training, columns.piece, (channels.piece(extent), extent))


class _Block(nn.Module):
    def __init__(self, shape: AfnoShape, drop_path_rate: float, channels: ChannelGroup, normal):
        super().__init__()
        self._channels, self._drop_path_rate = channels, drop_path_rate
        extent = shape.embed_dim
        self.norm1 = Weights(channels, torch.ones(extent), 0, torch.zeros(extent), 0)
        self.filter = _Filter(shape, channels, normal)
        self.norm2 = Weights(channels, torch.ones(extent), 0, torch.zeros(extent), 0)
        self.mlp = _MLP(shape, channels, normal)

    def forward(self, x: Tensor, columns: _Columns) -> Tensor:
        x = self.filter(_layer_norm(x, self.norm1, self._channels), columns) + x
        mixed = self.mlp(_layer_norm(x, self.norm2, self._channels), columns)
        return _drop_path(mixed, self._drop_path_rate, self.training) + x


class _PatchEmbed(nn.Module):
    """[B, in_chans, H, W] to this rank's piece of [B, h, w, embed_dim]."""

    def __init__(self, shape: AfnoShape, channels: ChannelGroup, generator: torch.Generator):
        super().__init__()
        self._shape, self._channels = shape, channels
        size = (shape.embed_dim, shape.in_chans, *shape.patch_size)
        bound = 1 / math.sqrt(math.prod(size[1:]))  # as torch.nn.Conv2d's
        weight = torch.empty(size).uniform_(-bound, bound, generator=generator)
        bias = torch.empty(size[0]).uniform_(-bound, bound, generator=generator)
        self.proj = Weights(channels, weight, 0, bias, 0)

    def forward(self, x: Tensor) -> Tensor:
        p, q = self._shape.patch_size
        if self._shape.input_is_matmul_parallel:
            x = self._channels.all_gather(x, 1, self._shape.in_chans)
        else:
            x = self._channels.copy_to(x)
        patches = x.unflatten(3, (-1, q)).unflatten(2, (-1, p)).permute(0, 2, 4, 1, 3, 5).flatten(3)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class DistributedAFNONet(ShardedModule):
    """[B, in_chans, H, W] to [B, out_chans, H, W]; see the module.

    inp_shape: height and width, multiples of patch_size. num_blocks divides embed_dim, and the number of ranks divides
    both. input_is_matmul_parallel, output_is_matmul_parallel: this rank's piece of the channels in place of all.
    drop_path_rate: that of the last block; the first one has 0, and the rates between are spaced evenly. Ranks that are
    seeded alike drop what one rank alone drops. group, spatial_group: a ProcessGroup, or a name that DistributedManager
    knows. """

    def __init__(self, inp_shape: Sequence[int] = (720, 1440), patch_size: Sequence[int] = (16, 16), in_chans: int = 2,
                 out_chans: int = 2, embed_dim: int = 768, depth: int = 12, mlp_ratio: float = 4.0,
                 drop_rate: float = 0.0, drop_path_rate: float = 0.0, num_blocks: int = 16,
                 sparsity_threshold: float = 0.01,
                 hard_thresholding_fraction: float = 1.0, input_is_matmul_parallel: bool = False,
                 output_is_matmul_parallel: bool = False, *, group="model_parallel", spatial_group=None) -> None:
        channels = _group_of_channels(group)
        columns = None if spatial_group is None else ChannelGroup(spatial_group)
        super().__init__(channels)
        shape = AfnoShape(tuple(inp_shape), tuple(patch_size), in_chans, out_chans, embed_dim, depth, mlp_ratio,
                          drop_rate, drop_path_rate, num_blocks, sparsity_threshold, hard_thresholding_fraction,
                          input_is_matmul_parallel, output_is_matmul_parallel)
        problem = problem_of(shape, channels.size)
        for each in filter(None, (channels, columns)):  # what the first group finds, the second one passes on
            problem = each.agree(str(shape), problem) or problem
        if problem:
            raise ValueError(f"{type(self).__name__}: {problem}")
        self._shape, self._columns = shape, _Columns(shape, columns)
        seed = torch.randint(2**63 - 1, (1,)).item()
        for each in filter(None, (channels, columns)):
            seed = each.broadcast_from_first(seed)
        self._make_layers(torch.Generator().manual_seed(seed))

    def _make_layers(self, generator: torch.Generator) -> None:
        shape, channels = self._shape, self._channels

        def normal(*size):
            return torch.randn(size, generator=generator) * 0.02

        self.patch_embed = _PatchEmbed(shape, channels, generator)
        self.register_shard("pos_embed", normal(1, shape.rows * shape.columns, shape.embed_dim), 2)
        last = max(shape.depth - 1, 1)
        self.blocks = nn.ModuleList(_Block(shape, shape.drop_path_rate * i / last, channels, normal)
                                    for i in range(shape.depth))
        patch = math.prod(shape.patch_size)
        self.head = Weights(channels, normal(patch * shape.out_chans, shape.embed_dim), 1)

    def forward(self, x: Tensor) -> Tensor:
        columns = self._columns
        if columns.size == 1:
            return self._run(x)
        if torch.is_grad_enabled():
            self._mark_as_shared(x)
        columns.has_raised = False
        try:
            return self._run(x)
        except ValueError as error:
            # The error is the other group's or this rank's alone, so this group's ranks wait in a transform.
            if not columns.has_raised:
                columns.group.raise_on_all(x, str(error))
            raise

    def _mark_as_shared(self, x: Any) -> None:
        """The trainable parameters that are not marked: all at first, later those of a copy, unfrozen ones, and those
        that load_state_dict(assign=True) puts in place. A rank that has none sends nothing: where another one has some,
        their calls differ, which raises on both."""
        name = self._columns.group.name
        unmarked = [(path, parameter) for path, parameter in self.named_parameters()
                    if parameter.requires_grad and parameter.is_leaf and not is_shared_over(parameter, name)]
        if unmarked:
            try:
                _share(unmarked, name)
            except (RuntimeError, ValueError) as error:
                if self._channels.size > 1:  # its other ranks may have marked theirs
                    self._channels.raise_on_all(x if isinstance(x, Tensor) else None, str(error))
                raise

    def _run(self, x: Tensor) -> Tensor:
        problem = self._problem_of_input(x)
        if problem:
            self._channels.raise_on_all(x if isinstance(x, Tensor) else None, problem)
        shape, channels, columns = self._shape, self._channels, self._columns
        position = self.pos_embed.view(1, shape.rows, shape.columns, -1)[:, :, columns.own]
        y = _dropout(self.patch_embed(x) + position, shape.drop_rate, self.training, columns.piece,
                     (channels.piece(shape.embed_dim), shape.embed_dim))
        for block in self.blocks:
            y = block(y, columns)
        p, q = shape.patch_size
        part = F.linear(y, self.head.weight).unflatten(-1, (p * q, shape.out_chans))  # channels are innermost
        if shape.output_is_matmul_parallel:
            whole = channels.reduce_scatter(part, part.dim() - 1)
        else:
            whole = channels.reduce_from(part)
        return whole.unflatten(3, (p, q)).permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)

    def _problem_of_input(self, x: Any) -> str:
        shape, name = self._shape, type(self).__name__
        problem = self.pieces_overwritten() or (problem_with_ddp() if self._columns.size > 1 else "")
        if problem:
            return problem
        if not isinstance(x, Tensor):
            return f"{name}: the input is a {type(x).__name__}, not a tensor"
        chans = shape.in_chans // (self._channels.size if shape.input_is_matmul_parallel else 1)
        columns = self._columns.own.stop - self._columns.own.start
        expected = (chans, shape.inp_shape[0], columns * shape.patch_size[1])
        if x.dim() != 4 or tuple(x.shape[1:]) != expected:
            return f"{name}: Expected input shape (B, {', '.join(map(str, expected))}), got {list(x.shape)}"
        if x.dtype != self.pos_embed.dtype or x.device != self.pos_embed.device:
            return (f"{name}: the input is {x.dtype} on {x.device}, the parameters are {self.pos_embed.dtype} on "
                    f"{self.pos_embed.device}")
        return ""


class DistributedAFNO(DistributedAFNONet):
    """[B, in_channels, H, W] to [B, out_channels, H, W]; see the module.

    inp_shape: height and width, multiples of patch_size. out_channels None: in_channels. num_blocks divides embed_dim,
    and the number of ranks divides both. channel_parallel_inputs, channel_parallel_outputs: this rank's piece of the
    channels in place of all. group, spatial_group: a ProcessGroup, or a name that DistributedManager knows. """

    def __init__(self, inp_shape: Tuple[int, int], in_channels: int, out_channels: Union[int, Any] = None,
                 patch_size: int = 16, embed_dim: int = 256, depth: int = 4, num_blocks: int = 4,
                 channel_parallel_inputs: bool = False, channel_parallel_outputs: bool = False, *,
                 group="model_parallel", spatial_group=None) -> None:
        super().__init__(inp_shape, (patch_size, patch_size), in_channels, out_channels or in_channels, embed_dim,
                         depth, num_blocks=num_blocks, input_is_matmul_parallel=channel_parallel_inputs,
                         output_is_matmul_parallel=channel_parallel_outputs, group=group, spatial_group=spatial_group)


def _group_of_channels(group) -> ChannelGroup:
    try:
        return ChannelGroup(group)
    except (UndefinedGroupError, ValueError) as error:
        if group != "model_parallel":
            raise
        raise UndefinedGroupError("Distributed AFNO needs to have model parallel group created first. Check the "
                                  f"MODEL_PARALLEL_SIZE environment variable: {error}") from error
