"""What a module whose parameters are marked as shared refuses before its forward pass: wrappers under which the marks
would leave some gradients of this pass as they are, without an error."""

import functools
import sys
import weakref

import torch
from torch import nn

# The attribute of a marked parameter: the name of its group.
SHARED_OVER = "_meshrun_shared_over"

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
    """For this pass. In later ones the program does not ask: DistributedDataParallel does."""
    return _problem_of(_active_ddp())


def watch_ddp():
    """From now on each DistributedDataParallel looks for marked parameters itself: a marked module may be one that nobody calls
    (nn.ModuleList, or whose methods are called), or compiled before it was wrapped."""
    forward = nn.parallel.DistributedDataParallel.forward
    if hasattr(forward, "_meshrun_watches"):
        return

    @functools.wraps(forward)
    def watched(self, *arguments, **named):
        problem = _problem_of(self) if torch.is_grad_enabled() else ""
        if problem and any(hasattr(parameter, SHARED_OVER) and name not in self.parameters_to_ignore
                           for name, parameter in self.module.named_parameters()):
            raise RuntimeError(problem)
        return forward(self, *arguments, **named)

    watched._meshrun_watches = True
    nn.parallel.DistributedDataParallel.forward = watched


def is_sharded(parameter):
    """Whether it is a DTensor, as fully_shard() makes them."""
    dtensor = sys.modules.get("torch.distributed.tensor")
    return dtensor is not None and isinstance(parameter, dtensor.DTensor)


class MarkGuard:
    """A module's forward pre-hook. RuntimeError where a parameter is no longer the marked one, or DDP does not fit."""

    def __init__(self, module, marked):
        """marked: parameters by two names, the one that messages say and the one in `module`."""
        self._module = weakref.ref(module)
        self._marked = {names: weakref.ref(parameter) for names, parameter in marked.items()}

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
        marked = {names: reference() for names, reference in self._marked.items()}
        gone = [names for names, parameter in marked.items() if parameter is None or id(parameter) not in held]
        if not gone:
            return
        now, known = dict(module.named_parameters(remove_duplicate=False)), {id(parameter) for parameter in marked.values()}
        for said, name in gone:
            parameter = now.get(name)
            if parameter is None or id(parameter) not in known and parameter.requires_grad and parameter.is_leaf:
                raise RuntimeError(f"{_NO_SUM}parameter {said!r} is not the one that was marked, so its gradients would not be "
                                   "summed. Unmark and mark the module again; FSDP2's fully_shard(), which replaces parameters, "
                                   "does not go together with marks")

    def __reduce__(self):
        return _no_guard, ()  # a copy by deepcopy or pickle has no mark


def guard(module, names, parameters):
    """Puts guards on the module, and on those in it that have a marked parameter of their own: any of them may be called without
    the others."""
    marked = {name: parameter for name, parameter in zip(names, parameters) if parameter.requires_grad}
    module.register_forward_pre_hook(MarkGuard(module, {(name, name): parameter for name, parameter in marked.items()}))
    known = {id(parameter) for parameter in marked.values()}
    for path, inner in module.named_modules():
        own = {(f"{path}.{name}", name): parameter for name, parameter in inner.named_parameters(recurse=False)
               if id(parameter) in known}
        if own and inner is not module and not isinstance(inner, torch.jit.ScriptModule):  # which takes no hooks
            inner.register_forward_pre_hook(MarkGuard(inner, own))


def _no_guard():
    return _take_as_it_is


def _take_as_it_is(module, arguments):
    return None


def unguard(module):
    """Removes a module's guards, and those of the modules in it."""
    for each in module.modules():
        for key in [key for key, hook in each._forward_pre_hooks.items() if isinstance(hook, MarkGuard)]:
            del each._forward_pre_hooks[key]
