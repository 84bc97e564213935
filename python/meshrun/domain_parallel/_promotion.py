"""What a plain tensor means among sharded ones."""

import contextlib
import enum

from meshrun.torch import _extension

_shard = _extension.shard


class TensorPromotionMode(enum.Enum):
    """A plain tensor that meets a ShardTensor in an operator holds the same values on all ranks: it counts as Replicate.

    DISABLED: that is a ShardTensorError, except for tensors without dimensions. WARN: it is told each time. SILENT, the default.
    """

    DISABLED = "disabled"
    WARN = "warn"
    SILENT = "silent"


_MODES = tuple(TensorPromotionMode)


def get():
    return _MODES[_shard.promotion_mode()]


def put(mode):
    _shard.set_promotion_mode(_MODES.index(TensorPromotionMode(mode)))


@contextlib.contextmanager
def within(mode):
    before = get()
    put(mode)
    try:
        yield
    finally:
        put(before)
