"""Compares dumped parameters (safetensors, f32 or f64) without any library."""

import array
import json
import math
import pathlib

TYPECODES = {"F32": "f", "F64": "d"}


def tensors(path):
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            out[name] = array.array(TYPECODES[entry["dtype"]], data[8 + size + begin:8 + size + end])
    return out


def same_bits(paths):
    first = {name: values.tobytes() for name, values in tensors(paths[0]).items()}
    return all({name: values.tobytes() for name, values in tensors(path).items()} == first for path in paths[1:])


def relative_l2(reference, other):
    """The worst tensor: (|other - reference| / |reference|, its name). Raises ValueError where a value is not a finite
    number: no comparison would find it."""
    a, b = tensors(reference), tensors(other)
    for path, values in ((reference, a), (other, b)):
        for name, tensor in values.items():
            if not all(map(math.isfinite, tensor)):
                raise ValueError(f"{path}: {name} holds values that are not finite")
    if a.keys() != b.keys():
        raise ValueError(f"{reference} and {other} hold different tensors")
    return max((math.sqrt(sum((y - x) ** 2 for x, y in zip(a[name], b[name]))) /
                (math.sqrt(sum(x * x for x in a[name])) or 1.0), name) for name in a)
