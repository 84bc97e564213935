"""What the sizes of a DistributedAFNO must satisfy, and which Fourier modes it keeps. Pure functions."""

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class AfnoShape:
    inp_shape: Tuple[int, ...]
    patch_size: Tuple[int, ...]
    in_chans: int
    out_chans: int
    embed_dim: int
    depth: int
    mlp_ratio: float
    drop_rate: float
    drop_path_rate: float
    num_blocks: int
    sparsity_threshold: float
    hard_thresholding_fraction: float
    input_is_matmul_parallel: bool
    output_is_matmul_parallel: bool

    @property
    def rows(self) -> int:
        """Patches along the height."""
        return self.inp_shape[0] // self.patch_size[0]

    @property
    def columns(self) -> int:
        return self.inp_shape[1] // self.patch_size[1]

    @property
    def hidden(self) -> int:
        return int(self.embed_dim * self.mlp_ratio)


def problem_of(shape: AfnoShape, ranks: int) -> str:
    """The first thing that is wrong, with its numbers; empty: nothing. `ranks` split the channels."""
    for name in ("inp_shape", "patch_size"):
        sizes = getattr(shape, name)
        if len(sizes) != 2 or min(sizes) < 1:
            return f"{name} must be two positive sizes, got {list(sizes)}"
    if any(size % patch for size, patch in zip(shape.inp_shape, shape.patch_size)):
        return f"input shape {list(shape.inp_shape)} should be divisible by patch_size {list(shape.patch_size)}"
    for name in ("in_chans", "out_chans", "embed_dim", "depth", "num_blocks"):
        if getattr(shape, name) < 1:
            return f"{name} must be positive, got {getattr(shape, name)}"
    if not 1 <= shape.embed_dim * shape.mlp_ratio < 1e15:
        return f"embed_dim * mlp_ratio must be at least 1, got {shape.embed_dim} * {shape.mlp_ratio}"
    for name in ("drop_rate", "drop_path_rate", "hard_thresholding_fraction"):
        if not 0 <= getattr(shape, name) <= 1:
            return f"{name} must be between 0 and 1, got {getattr(shape, name)}"
    if not shape.sparsity_threshold >= 0:
        return f"sparsity_threshold must not be negative, got {shape.sparsity_threshold}"
    if shape.embed_dim % shape.num_blocks:
        return f"embed_dim {shape.embed_dim} should be divisible by num_blocks {shape.num_blocks}"
    if shape.input_is_matmul_parallel and shape.in_chans % ranks:
        return f"Error, in_channels needs to be divisible by model_parallel size: {shape.in_chans} and {ranks}"
    for name, size in (("embed_dim", shape.embed_dim), ("num_blocks", shape.num_blocks),
                       ("embed_dim * mlp_ratio", shape.hidden)):
        if size % ranks:
            return f"Error, {name} needs to be divisible by model_parallel size: {size} and {ranks}"
    return ""


def mode_window(height: int, width: int, fraction: float) -> Tuple[range, int]:
    """The part of a half spectrum [height, width / 2 + 1] that is transformed, rows and a number of columns; the rest
    becomes zero. As PhysicsNeMo's: both follow from the height, so a field wider than high loses modes even at fraction
    1."""
    total = height // 2 + 1
    kept = int(total * fraction)
    begin = total - kept
    return range(begin, max(begin, min(total + kept, height))), min(kept, width // 2 + 1)


def overlap(rows: range, held: slice) -> Tuple[int, int]:
    """Where `rows` begin within `held`, and how many of them are there; may be none."""
    begin = min(max(rows.start, held.start), held.stop)
    return begin - held.start, min(max(rows.stop, begin), held.stop) - begin
