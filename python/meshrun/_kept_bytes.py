"""Values of a training (a scheduler's state_dict) as bytes that are equal where the values are, on all ranks.

pickle writes an object that occurs twice by reference, and sets in an order that differs between processes, so equal values
may give other bytes. Here each value is written out, and sets in the order of their elements' texts. Subclasses of plain
types (numpy's float64, an IntEnum, a NamedTuple, torch.Size) are written as the plain values that they are.
Reading accepts plain values alone: a checkpoint is a file that may come from anywhere.
"""

import collections
import io
import pickle

_NUMBERS_AND_TEXT = (bool, int, float, complex, str, bytes)
_FACTORIES = (None, int, list, dict)
_READ = {("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")}
_READ |= {("builtins", name) for name in ("complex", "set", "frozenset", "int", "list", "dict")}
_NUMPY_SCALAR = {("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar")}


class _Reader(pickle.Unpickler):
    def find_class(self, module, name):
        # Which an earlier version wrote for a float64.
        if (module, name) in _NUMPY_SCALAR:
            return _numpy_scalar
        if (module, name) not in _READ | {("numpy", "dtype")}:
            raise pickle.UnpicklingError(f"kept bytes name {module}.{name}, and may hold plain values alone")
        return super().find_class(module, name)


def _numpy_scalar(dtype, content):
    import numpy

    return numpy.frombuffer(content, dtype)[0].item()


class _Set:
    """Is written as a set whose elements come in order."""

    def __init__(self, kind, elements):
        self._written = kind, (sorted(elements, key=lambda each: (type(each).__name__, repr(each))),)

    def __reduce__(self):
        return self._written


def _plain(value, path):
    """A copy of plain types alone. Raises TypeError that begins with `path`."""
    if value is None:
        return None
    for kind in _NUMBERS_AND_TEXT:
        if isinstance(value, kind):
            return value if type(value) is kind else kind.__str__(value) if kind is str else kind(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _plain(value.item(), path)
    if isinstance(value, dict):
        pairs = ((_plain(key, path), _plain(each, f"{path}[{key!r}]")) for key, each in value.items())
        if isinstance(value, collections.defaultdict) and value.default_factory in _FACTORIES:
            return collections.defaultdict(value.default_factory, pairs)
        kind = next((kind for kind in (collections.Counter, collections.OrderedDict) if isinstance(value, kind)), dict)
        return kind(dict(pairs))
    if isinstance(value, (list, tuple, collections.deque)):
        each = (_plain(each, f"{path}[{place}]") for place, each in enumerate(value))
        if isinstance(value, collections.deque):
            return collections.deque(each, value.maxlen)
        return list(each) if isinstance(value, list) else tuple(each)
    if isinstance(value, (set, frozenset)):
        kind = set if isinstance(value, set) else frozenset
        return _Set(kind, [_plain(each, path) for each in value])
    raise TypeError(f"{path} is a {type(value).__module__}.{type(value).__qualname__}, and only plain values (numbers, strings, "
                    "lists, dictionaries) are kept so: keep it by two functions, keep(name, save, load)")


def encode(value, path):
    """Raises TypeError that begins with `path` where a part of it is no plain value."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol=4)
    pickler.fast = True  # no references
    pickler.dump(_plain(value, path))
    return out.getvalue()


def decode(content):
    return _Reader(io.BytesIO(content)).load()
