"""What a module whose parameters are marked as shared refuses before its forward pass: wrappers under which the marks
would leave some gradients of this pass as they are, without an error."""

import sys
import weakref

import torch
from torch import nn

_NO_SUM = "mark_module_as_shared: "


def problem_with_ddp():
    """Why DistributedDataParallel, in whose forward pass this is, would average gradients that are not summed; else empty."""
    return _problem_while_traced() if torch.compiler.is_compiling() else _problem_of(_active_ddp())


def _active_ddp():
    return nn.parallel.DistributedDataParallel._active_ddp_module if torch.is_grad_enabled() else None


def _problem_of(ddp):
    if ddp is None:
        return ""
    if not ddp.require_backward_grad_sync and ddp.process_group.size() > 1:
        return (_NO_SUM + "within DistributedDataParallel.no_sync() the gradients of a marked module would never be averaged. "
                "Call backward() without no_sync(): gradients accumulate, and each pass is averaged and summed")
    if ddp.gradient_as_bucket_view:
        return _NO_SUM + "DistributedDataParallel(gradient_as_bucket_view=True) leaves no memory for the gradients of earlier passes"
    return ""


@torch.compiler.assume_constant_result
def _problem_while_traced():
    """For this pass. In later ones the program does not ask: DistributedDataParallel, which is not compiled, does."""
    ddp = _active_ddp()
    if ddp is not None and _refuse_problem not in ddp._forward_pre_hooks.values():
        ddp.register_forward_pre_hook(_refuse_problem)
    return _problem_of(ddp)


def _refuse_problem(ddp, arguments):
    problem = _problem_of(ddp) if torch.is_grad_enabled() else ""
    if problem and any(_sums_gradients(module) for module in ddp.modules()):
        raise RuntimeError(problem)


def _sums_gradients(module):
    return hasattr(module, "problem_with_ddp") or any(isinstance(hook, MarkGuard) for hook in module._forward_pre_hooks.values())


def is_sharded(parameter):
    """Whether it is a DTensor, as fully_shard() makes them."""
    dtensor = sys.modules.get("torch.distributed.tensor")
    return dtensor is not None and isinstance(parameter, dtensor.DTensor)


class MarkGuard:
    """A module's forward pre-hook. RuntimeError where a parameter is no longer the marked one, or DDP does not fit."""

    def __init__(self, module, names, parameters):
        self._module = weakref.ref(module)
        self._marked = {name: weakref.ref(parameter) for name, parameter in zip(names, parameters) if parameter.requires_grad}

    def __call__(self, module, arguments):
        if not torch.is_grad_enabled():
            return
        problem = problem_with_ddp()
        if problem:
            raise RuntimeError(problem)
        if not torch.compiler.is_compiling() and module is self._module():
            self._check_parameters(module)

    def _check_parameters(self, module):
        # By identity: wrappers within the module give its parameters other names.
        held = {id(parameter) for parameter in module.parameters()}
        marked = {name: reference() for name, reference in self._marked.items()}
        gone = [name for name, parameter in marked.items() if parameter is None or id(parameter) not in held]
        if not gone:
            return
        now, known = dict(module.named_parameters(remove_duplicate=False)), {id(parameter) for parameter in marked.values()}
        for name in gone:
            parameter = now.get(name)
            if parameter is None or id(parameter) not in known and parameter.requires_grad and parameter.is_leaf:
                raise RuntimeError(f"{_NO_SUM}parameter {name!r} is not the one that was marked, so its gradients would not be "
                                   "summed. Unmark and mark the module again; FSDP2's fully_shard(), which replaces parameters, "
                                   "does not go together with marks")

    def __reduce__(self):
        return _no_guard, ()  # a copy by deepcopy or pickle has no mark


def _no_guard():
    return _take_as_it_is


def _take_as_it_is(module, arguments):
    return None


def unguard(module):
    """Removes a module's guards, and those of the modules in it."""
    for each in module.modules():
        for key in [key for key, hook in each._forward_pre_hooks.items() if isinstance(hook, MarkGuard)]:
            del each._forward_pre_hooks[key]
