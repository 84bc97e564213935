"""Python's data-parallel wrappers beside ShardTensor: DistributedDataParallel, FSDP2 and FSDP1 take modules with plain parameters, on
the data axis of a mesh or on all ranks. They broadcast, cut and flatten parameters, which a ShardTensor cannot bear: a sentence says so
on every rank, before anything is sent."""

import functools

from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard import _fsdp_init
from torch.nn.parallel import DistributedDataParallel

from meshrun.domain_parallel.errors import ShardTensorError
from meshrun.torch import _extension

_is_sharded = _extension.shard.is_sharded
_INSTEAD = ("a ShardTensor on a mesh with the data axis, placed Replicate there, gets its gradient summed over that axis without a "
            "wrapper")


def _refuse_sharded(wrapper, entries, instead):
    names = [name.removeprefix(".") for name, parameter in entries if _is_sharded(parameter)]
    if names:
        others = f" and {len(names) - 5} others" if len(names) > 5 else ""
        raise ShardTensorError(f"{wrapper} takes plain parameters, and the ShardTensors among them are {', '.join(names[:5])}{others}: "
                               f"{instead}; {_INSTEAD}")


def _check_in(kind, instead, is_left_out):
    make = kind.__init__

    @functools.wraps(make)
    def checked(self, module, *args, **kwargs):
        # DDP's own names: a parameter of the module itself is ".name" there.
        entries = [(f"{place}.{name}", parameter) for place, part in module.named_modules()
                   for name, parameter in part.named_parameters(recurse=False)]
        entries = [entry for entry in entries if not is_left_out(module, *entry, kwargs)]
        _refuse_sharded(kind.__name__, entries, instead)
        make(self, module, *args, **kwargs)

    kind.__init__ = checked


_check_in(DistributedDataParallel,
          "keep them out by DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names), where a parameter of the "
          "module itself needs two names, \"name\" and \".name\"",
          lambda module, name, parameter, options: name in getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
_check_in(FullyShardedDataParallel, "keep them out by ignored_states=",
          lambda module, name, parameter, options: _is_among(parameter, options.get("ignored_states") or ()))


def _is_among(parameter, states):
    return any(parameter is state or any(parameter is each for each in getattr(state, "parameters", tuple)()) for state in states)


_verify = _fsdp_init._verify_managed_param


@functools.wraps(_verify)
def _verify_plain(name, param):
    _refuse_sharded("fully_shard", [(name, param)], "keep them out by ignored_params=")
    _verify(name, param)


_fsdp_init._verify_managed_param = _verify_plain
