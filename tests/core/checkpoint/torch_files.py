"""Writes samples/ for torch_files_test.cc with torch itself, and what each tensor of them is: samples/expected.json.

Usage: torch_files.py DIRECTORY, with a Python that has torch, numpy and what torch.distributed imports. torch_files_test.cc
reads what was committed, and needs no Python; with MESHRUN_TORCH_SAMPLES=DIRECTORY it reads what a newer torch wrote. The
.mdlus files are written as PhysicsNeMo's Module.save() does, without PhysicsNeMo.
"""

import copy
import io
import json
import multiprocessing
import os
import pathlib
import shutil
import sys
import tarfile
import zipfile

import numpy
import torch
import torch.distributed
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

NAMES = {
    "torch.bool": "BOOL", "torch.uint8": "U8", "torch.int8": "I8", "torch.uint16": "U16", "torch.int16": "I16", "torch.uint32": "U32",
    "torch.int32": "I32", "torch.uint64": "U64", "torch.int64": "I64", "torch.float8_e4m3fn": "F8_E4M3", "torch.float8_e5m2": "F8_E5M2",
    "torch.float8_e8m0fnu": "F8_E8M0", "torch.float16": "F16", "torch.bfloat16": "BF16", "torch.float32": "F32", "torch.float64": "F64",
    "torch.complex64": "C64", "torch.complex128": "F64",
}
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float16, torch.bfloat16, torch.float32, torch.float64,
          torch.complex64, torch.complex128]


def describe(tensor):
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    whole.copy_(tensor.detach())
    shape = list(tensor.shape) + ([2] if tensor.dtype == torch.complex128 else [])
    return {"dtype": NAMES[str(tensor.dtype)], "shape": shape, "bytes": bytes(whole.untyped_storage()).hex()}


def tensors_of(value, name=""):
    """All tensors of nested dicts and lists, by their joined names."""
    if isinstance(value, torch.Tensor):
        return {name or "tensor": describe(value)}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    found = {}
    for key, item in items:
        found |= tensors_of(item, f"{name}.{key}" if name else str(key))
    return found


def trained():
    """A module and an optimizer with a state."""
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.002)
    module(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    return module, optimizer


def random(dtype, *shape):
    """Random bits, in a tensor of any dtype."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


def saves():
    """What goes into files of torch.save(), by their names."""
    module, optimizer = trained()
    torch.manual_seed(2)
    base = torch.randn(4, 6)
    complex_base = torch.randn(3, dtype=torch.complex64)
    wide = torch.randn(2, 2, dtype=torch.complex128)
    attributed = torch.nn.Parameter(torch.randn(2))
    attributed.note = "kept"
    views = {
        "whole": base, "transposed": base.t(), "row": base[2], "column": base[:, 3], "corner": base[1:3, 2:5], "every_second": base[::2, ::2],
        "expanded": base[0, :3].expand(5, 3), "three": torch.randn(2, 3, 4).permute(2, 0, 1), "empty": torch.empty(0, 3),
        "scalar": torch.tensor(1.5), "ones": torch.randn(1, 3, 1).transpose(0, 2),
        "conjugate": complex_base.conj(), "imaginary": torch.randn(3, dtype=torch.complex64).conj().imag,
        "wide_conjugate": wide.conj().t(), "negative": torch._neg_view(torch.randn(3)), "parameter": torch.nn.Parameter(torch.randn(2)),
        "attributed": attributed, "frozen": torch.nn.Parameter(torch.randn(2), requires_grad=False),
    }
    plain = {
        "step": 7, "rate": 0.5, "name": "großes Netz", "nothing": None, "yes": True, "large": 1 << 70, "negative": -(1 << 70), "bytes": b"ab\xff",
        "path": pathlib.PurePosixPath("/data/set"), "device": torch.device("cuda", 1), "dtype": torch.bfloat16, "shape": torch.Size([2, 3]),
        "pair": (0.9, 0.999), "set": {5}, "numpy": numpy.float64(2.5), "numpy_int": numpy.int64(-3), "numpy_flag": numpy.bool_(True),
        (0, "tuple"): 1, "weight": torch.ones(2),
    }
    return {
        "dtypes": {str(dtype).removeprefix("torch."): random(dtype, 2, 3) for dtype in DTYPES},
        "views": views,
        "training": {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "history": [torch.ones(1), {"loss": 0.25}]},
        "plain": plain,
        "one": torch.arange(3),
    }


def refused(directory):
    """Files that torch writes and that are refused."""
    module, _ = trained()
    torch.save(module, directory / "module.pt")
    torch.save({"w": torch.eye(2).to_sparse()}, directory / "sparse.pt")
    torch.save({"w": torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)}, directory / "quantized.pt")
    torch.save({"w": torch.ones(2, dtype=torch.complex32)}, directory / "half_complex.pt")
    torch.save({"w": torch.ones(2)}, directory / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(torch.nn.Identity()), directory / "script.pt")


def write_mdlus(directory, state):
    args = json.dumps({"__name__": "Net", "__module__": "nets", "__args__": {"width": 3}})
    texts = {"args.json": args, "metadata.json": json.dumps({"physicsnemo_version": "1.3.0", "mdlus_file_version": "0.1.0"})}
    model = io.BytesIO()
    torch.save(state, model)
    with zipfile.ZipFile(directory / "zip.mdlus", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("model.pt", model.getvalue())
        for name, text in texts.items():
            archive.writestr(name, text)
    with tarfile.open(directory / "tar.mdlus", "w") as archive:
        for name, content in [("model.pt", model.getvalue())] + [(name, text.encode()) for name, text in texts.items()]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mtime = 1700000000.5  # not whole, so that pax adds records
            archive.addfile(member, io.BytesIO(content))


def whole(value):
    """DTensors as the tensors that they are a part of."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def sharded_rank(rank, directory, port, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(3)
    module = torch.nn.Linear(3, 5)
    fully_shard(module, mesh=mesh)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    model, optimizer_state = get_state_dict(module, optimizer)
    state = {
        "model": model, "optimizer": optimizer_state,
        "columns": distribute_tensor(torch.arange(35.0).reshape(5, 7), mesh, [Shard(1)]),
        "middle": distribute_tensor(torch.arange(24).reshape(2, 3, 4), mesh, [Shard(1)]),
        "complex": distribute_tensor(torch.randn(3, 2, dtype=torch.complex128), mesh, [Shard(0)]),
        "small": distribute_tensor(torch.ones(1, dtype=torch.bfloat16), mesh, [Shard(0)]),  # rank 1 has nothing
        "same": distribute_tensor(torch.arange(3), mesh, [Replicate()]),
        "epoch": 4,
    }
    torch.distributed.checkpoint.save(state, checkpoint_id=directory)
    queue.put((rank, tensors_of(whole(state))))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def write_sharded(directory, port=29671):
    queue = multiprocessing.Queue()
    ranks = [multiprocessing.Process(target=sharded_rank, args=(rank, directory, port, queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    told = dict(queue.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join()
        assert process.exitcode == 0, process.exitcode
    assert told[0] == told[1]
    return told[0]


def main(directory):
    directory = pathlib.Path(directory)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    expected = {}
    for name, value in saves().items():
        torch.save(value, directory / f"{name}.pt")
        expected[f"{name}.pt"] = tensors_of(value)
    later = {"views": saves()["views"], "plain": saves()["plain"]}
    for protocol in (3, 4, 5):
        torch.save(later, directory / f"protocol{protocol}.pt", pickle_protocol=protocol)
        expected[f"protocol{protocol}.pt"] = tensors_of(later)
    module, _ = trained()
    write_mdlus(directory, module.state_dict())
    expected["zip.mdlus"] = expected["tar.mdlus"] = tensors_of(module.state_dict())
    whole_state = {"model": copy.deepcopy(module).state_dict(), "list": [torch.ones(2), 5], "transposed": torch.randn(2, 3).t(), "step": 3}
    torch.distributed.checkpoint.save(whole_state, checkpoint_id=directory / "dcp_whole", no_dist=True)
    expected["dcp_whole"] = tensors_of(whole_state)
    expected["dcp_sharded"] = write_sharded(directory / "dcp_sharded")
    refused(directory)
    (directory / "expected.json").write_text(json.dumps(expected, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main(sys.argv[1])
