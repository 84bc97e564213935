"""Values of a training (a scheduler's state_dict) as bytes that are equal where the values are, on all ranks.

pickle writes an object that occurs twice by reference, so equal values may give other bytes. Here each is written out.
Reading accepts plain values alone: a checkpoint is a file that may come from anywhere.
"""

import io
import pickle

_PLAIN = {("collections", "Counter"), ("collections", "OrderedDict"), ("collections", "defaultdict"),
          ("collections", "deque"), ("builtins", "complex"), ("builtins", "set"), ("builtins", "frozenset"),
          ("builtins", "int"), ("builtins", "list"), ("builtins", "dict")}
_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes)


class _Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in _PLAIN:
            raise pickle.UnpicklingError(f"kept bytes name {module}.{name}, and may hold plain values alone")
        return super().find_class(module, name)


def _check(value, path):
    if isinstance(value, _PLAIN_TYPES):
        return
    if isinstance(value, dict):
        for key, each in value.items():
            _check(key, path)
            _check(each, f"{path}[{key!r}]")
        return
    if isinstance(value, (list, tuple, set, frozenset)):
        for place, each in enumerate(value):
            _check(each, f"{path}[{place}]")
        return
    raise TypeError(f"{path} is a {type(value).__module__}.{type(value).__qualname__}, and only plain values (numbers, strings, "
                    "lists, dictionaries) are kept so: keep it by two functions, keep(name, save, load)")


def encode(value, path):
    """Raises TypeError that begins with `path` where a part of it is no plain value."""
    _check(value, path)
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol=4)
    pickler.fast = True  # no references
    pickler.dump(value)
    return out.getvalue()


def decode(content):
    return _Reader(io.BytesIO(content)).load()
