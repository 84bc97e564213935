"""PyTorch's torch.distributed on meshrun's collectives.

    import meshrun.torch
    torch.distributed.init_process_group("meshrun")

registers the backend "meshrun" for CPU tensors, and with the wheel for GPUs for CUDA tensors too, by NCCL. Every collective compares the ranks' calls first: a wrong call on one rank
is a ValueError on all, with both sides' values. Sums are taken in a fixed order, so all ranks and runs get the same bits.
With the other wheel, name a backend for each device where CUDA tensors are sent too: "cpu:meshrun,cuda:nccl".

Where the package is installed, entry points register the backend without this import.

Raises ImportError where the installed torch is not the one that the extension is built for.
"""

import importlib.metadata as _metadata

from meshrun.torch._built_for import TORCH as _TORCH


def _require_torch():
    """Says in one sentence what else the loader would say by a missing symbol."""
    try:
        version = _metadata.version("torch")
    except _metadata.PackageNotFoundError:
        import torch

        version = torch.__version__
    if version.split(".")[:2] != _TORCH.split("."):
        raise ImportError(f"this meshrun-torch is built for torch {_TORCH}, and torch {version} is installed: "
                          f"pip install 'torch=={_TORCH}.*', or the meshrun-torch for torch "
                          f"{'.'.join(version.split('.')[:2])}")


_require_torch()

import torch as _torch_package  # its libraries, before the extension that is linked with them

if not _torch_package.distributed.is_available():
    raise ImportError("this torch is built without torch.distributed, which meshrun.torch adds a backend to")

from meshrun import _failures as _failures_of_ranks
from meshrun import _torch as _extension
from meshrun._torch_entry import register as _register
from meshrun.torch import _effects

import atexit as _atexit

_register()
_failures_of_ranks.install()
_atexit.register(_extension.end_worlds)
