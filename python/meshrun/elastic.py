"""Trainings that live through changes of the world: a rank whose peer is lost, or whose job grows, leaves its process groups,
joins the next generation, and goes on from memory.

    import torch
    from meshrun.distributed import DistributedManager
    from meshrun.elastic import CheckpointDirectory, ElasticContext, ElasticState, EpochSampler

    DistributedManager.initialize()
    elastic = ElasticContext()
    checkpoints = CheckpointDirectory("checkpoints")
    sampler = EpochSampler(len(data), seed=17)

    def body():                                            # in each world anew
        model = Network()
        optimizer = torch.optim.Adam(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        state = ElasticState(elastic, model, optimizer)
        state.keep("scheduler", scheduler)
        state.seed_each_step(17)
        first = state.restore()                            # from the rank that is farthest
        if first is None:
            saved = checkpoints.load(model, optimizer, state)
            first = saved.step if saved else 0
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        for step in state.steps(first, 1000):
            optimizer.zero_grad()
            loss_of(ddp, data[sampler.local_batch(step, 64)]).backward()
            with state.update():                           # state changes here alone
                optimizer.step()
                scheduler.step()
            if step % 100 == 99:
                checkpoints.save(model, optimizer, step + 1, kept=state)

    elastic.run(body)

A rank that is lost anywhere in this loop leaves every other one with the state before update(), or with the one after it.
The ranks go on from the highest count of steps, so each step is taken once.

Models and optimizers are whole on each rank; the optimizer is Adam, AdamW, RAdam, Adamax, Adagrad, Adadelta, RMSprop or SGD.
For FSDP2's sharded parameters use torch.distributed.checkpoint.

Errors: torch.distributed.DistError and its subclasses from collectives; ElasticStoppedError, where the job was stopped while
this rank waited for its next generation; CheckpointError's subclasses; RuntimeError for a call at the wrong moment; ValueError
and TypeError for wrong arguments. The rules are those of the C++ library: docs/elastic.md; docs/python_training.md has Python's.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional, Union

import torch

from meshrun import _kept_bytes
from meshrun._epoch_sampler import EpochSampler
from meshrun._optimizer_states import OptimizerStates
from meshrun.distributed import _join
from meshrun.distributed._channel_group import ShardedModule
from meshrun.distributed.manager import DistributedManager as _DistributedManager
from meshrun.torch import _extension

CheckpointError = _extension.CheckpointError
CheckpointDamagedError = _extension.CheckpointDamagedError
CheckpointMismatchError = _extension.CheckpointMismatchError
CheckpointFileError = _extension.CheckpointFileError
CheckpointRefusedError = _extension.CheckpointRefusedError
ElasticStoppedError = _extension.ElasticStoppedError

__all__ = ["CheckpointDamagedError", "CheckpointDirectory", "CheckpointError", "CheckpointFileError", "CheckpointMismatchError",
           "CheckpointRefusedError", "ElasticContext", "ElasticState", "ElasticStoppedError", "EpochSampler", "KeptValues",
           "TrainingProgress"]


def _tensors_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor, bool]]:
    """(name, tensor, is a parameter) of what state_dict() holds. Raises NotImplementedError for what lies in pieces."""
    # Not by state_dict() itself: this runs in each step, and the program's hooks are called there.
    passing = {f"{prefix}.{name}" if prefix else name for prefix, owner in module.named_modules(remove_duplicate=False)
               for name in owner._non_persistent_buffers_set}
    for name, owner in module.named_modules():
        if isinstance(owner, ShardedModule) and owner.holds_pieces():
            raise NotImplementedError(
                f"{name or type(module).__name__} holds pieces of its parameters, other ones on each rank, and a rank keeps what it "
                "has whole: save what full_state_dict() returns, which load_full_state_dict() takes on any number of ranks")
    found = [(name, value, True) for name, value in module.named_parameters()]
    buffers = {}  # under the first of its names, as parameters are
    for name, value in module.named_buffers(remove_duplicate=False):
        if name not in passing:
            buffers.setdefault(id(value), (name, value, False))
    found += buffers.values()
    for name, value, _ in found:
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise NotImplementedError(f"{name} is a {type(value).__name__}, and a rank keeps what it has whole: save a module in "
                                      "pieces with torch.distributed.checkpoint")
    return found


def _tell_of_extra_state(module):
    for name, owner in module.named_modules():
        if type(owner).get_extra_state is not torch.nn.Module.get_extra_state:
            warnings.warn(f"get_extra_state() of {name or type(module).__name__} is not handed on with the module: keep() it, "
                          "with set_extra_state() to load it", stacklevel=3)


def _count_writes(optimizer, _arguments, _keywords):
    """After a step: a fused one raises no tensor's version, by which a step is known to be done, or half done."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            for parameter in group["params"]:
                states = optimizer.state.get(parameter, {}).values()
                torch.autograd.graph.increment_version([parameter, *filter(torch.is_tensor, states)])


def _with_counted_writes(optimizer):
    if not hasattr(optimizer, "_meshrun_counts_writes"):
        optimizer._meshrun_counts_writes = optimizer.register_step_post_hook(_count_writes)
    return OptimizerStates(optimizer)


class _Keeper:
    """keep() of ElasticState and KeptValues."""

    _core: Any
    _modules: list[tuple[str, torch.nn.Module, list[tuple[str, torch.Tensor, bool]]]]  # with the tensors handed on

    def keep(self, name: str, value: Any, load: Optional[Callable[[bytes], object]] = None) -> None:
        """Adds a value to the state, by a name of the program's own. `value` is one of

        - a torch.Tensor that the program writes in place,
        - a torch.nn.Module, all its parameters and buffers,
        - another optimizer of torch.optim,
        - an object with state_dict() and load_state_dict() of plain values: a scheduler, a GradScaler,
        - a function that returns bytes, with `load`, a function that takes them: keep(name, save, load).

        Raises TypeError for anything else, ValueError where the name is taken.
        """
        core = self._core
        if load is not None or (callable(value) and not hasattr(value, "state_dict")):
            if not callable(value) or not callable(load):
                raise TypeError(f"keep({name!r}, save, load) takes two functions")
            core.keep_functions(name, value, load)
        elif isinstance(value, torch.Tensor):
            core.keep_tensor(name, value)
        elif isinstance(value, torch.nn.Module):
            _tell_of_extra_state(value)
            tensors = _tensors_of(value)
            core.keep_module(name, tensors)
            self._modules.append((f"the module that is kept as {name!r}", value, tensors))
        elif isinstance(value, torch.optim.Optimizer):
            core.keep_optimizer(name, _with_counted_writes(value))
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            path = f"keep({name!r}): the state_dict"
            _kept_bytes.encode(value.state_dict(), path)  # what cannot be kept raises here
            core.keep_functions(name, lambda: _kept_bytes.encode(value.state_dict(), path),
                                lambda content: value.load_state_dict(_kept_bytes.decode(content)))
        else:
            raise TypeError(f"keep({name!r}) got a {type(value).__name__}, and takes a tensor, a module, an optimizer, what has a "
                            "state_dict, or two functions; a number is kept as a tensor of it, torch.tensor(x)")

    def _check_tensors(self):
        """Raises RuntimeError where a module has another tensor than when it came here: it would not be handed on."""
        for what, module, tensors in self._modules:
            now = {name: tensor for name, tensor, _ in _tensors_of(module)}
            for name, tensor, _ in tensors:
                if now.get(name) is not tensor:
                    raise RuntimeError(f"{name} of {what} is another tensor than the one that this {type(self).__name__} hands on: "
                                       f"write it in place (copy_), or make the {type(self).__name__} after it is assigned")
            if len(now) != len(tensors):
                more = sorted(now.keys() - {name for name, _, _ in tensors})
                raise RuntimeError(f"{what} has got {more[0]} since this {type(self).__name__} was made: make it after the module "
                                   "is complete")


class KeptValues(_Keeper):
    """What a checkpoint holds beside the model and the optimizer, in a training without an ElasticState."""

    def __init__(self) -> None:
        self._modules = []
        self._core = _extension.KeptValues()


class TrainingProgress:
    """How far the run of a checkpoint was: `step` are done; `sampler`, what was saved with it."""

    def __init__(self, step: int = 0, sampler: Optional[Mapping[str, str]] = None) -> None:
        self.step = step
        self.sampler = dict(sampler or {})

    def __repr__(self) -> str:
        return f"TrainingProgress(step={self.step}, sampler={self.sampler})"


class CheckpointDirectory:
    """Checkpoints that any number of ranks writes and any other number reads. Every rank writes its share and reads what it needs.
    Hosts that share no file system have files of their own each.

    `identity`: what must be the same in two runs for the second to go on where the first stopped, by flag. `group`: all ranks that
    train; the world where absent. Calls are collective; errors are the same on every rank and leave model, optimizer and directory
    as they were. Nobody waits for a disk under a collective's timeout; `timeout`, in seconds, is a limit for writing one (none).

    `keep`: how many complete checkpoints stay, the newest. So do those of the last `keep_for` seconds, and for ever those whose
    step is a multiple of `keep_every`. `on_commit`: a program that rank 0, and a rank of every other directory of hosts
    that share none, calls with the path of each checkpoint once it is durable, to copy it to an object store, say; nobody waits for
    it but the end of the job.

    save_async() copies this rank's share and returns; what became of it is raised by the next call, which then does nothing else.

    DIR/step-N/model.safetensors holds parameters and buffers by their names, optimizer.safetensors "exp_avg.<name>" and so on:
    the same files that the C++ library writes, which Python's safetensors reads.
    """

    def __init__(self, path: Union[str, os.PathLike[str]], identity: Optional[Mapping[str, object]] = None, keep: int = 2,
                 group: Optional[torch.distributed.ProcessGroup] = None, *, keep_for: Optional[int] = None, keep_every: int = 0,
                 timeout: Optional[float] = None, on_commit: Union[str, os.PathLike[str]] = "") -> None:
        name = None if group is None else group.group_name
        identity = {str(flag): str(value) for flag, value in (identity or {}).items()}
        self._core = _extension.CheckpointDirectory(os.fspath(path), identity, keep, keep_for, keep_every, timeout,
                                                    os.fspath(on_commit), name)

    def save(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int,
             sampler: Optional[Mapping[str, str]] = None, kept: Optional[_Keeper] = None) -> None:
        """`step` steps are done. `sampler`: strings by name. `kept`: an ElasticState or KeptValues."""
        _tell_of_extra_state(module)
        self._core.save(_tensors_of(module), OptimizerStates(optimizer), step, dict(sampler or {}), _view(kept), False)

    def save_async(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int,
                   sampler: Optional[Mapping[str, str]] = None, kept: Optional[_Keeper] = None) -> None:
        """As save(), but returns when the values are copied, into memory that stays for the next one. The next call waits for it,
        and so does the end of ElasticContext.run() and of this object."""
        _tell_of_extra_state(module)
        self._core.save(_tensors_of(module), OptimizerStates(optimizer), step, dict(sampler or {}), _view(kept), True)

    def wait(self) -> None:
        """Waits until what save_async() has begun is written, and raises what became of it."""
        self._core.wait()

    @property
    def is_writing(self) -> bool:
        """Whether this rank still writes. Not collective."""
        return self._core.is_writing()

    def check_writable(self) -> None:
        """Makes the directory where it is absent. Raises CheckpointFileError where a host's file system refuses that, or a file
        there: before a training, not at its first checkpoint. A full disk is no error here."""
        self._core.check_writable()

    def has_committed(self) -> bool:
        """Whether this job has committed a checkpoint here, before it was started again, say; the coordinator knows. Outside
        meshrun: False."""
        return self._core.has_committed()

    def load(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer,
             kept: Optional[_Keeper] = None) -> Optional[TrainingProgress]:
        """The TrainingProgress of the newest complete checkpoint, which is then in module, optimizer and kept values; None
        where there is none."""
        progress = self._core.load(_tensors_of(module), OptimizerStates(optimizer), _view(kept))
        return progress and TrainingProgress(*progress)


def _view(kept):
    if kept is None:
        kept = KeptValues()
    if not isinstance(kept, _Keeper):
        raise TypeError(f"kept is a {type(kept).__name__}, and must be an ElasticState or KeptValues")
    kept._check_tensors()
    return kept._core.view()


class ElasticContext:
    """The rank's way through the worlds of a job. DistributedManager.initialize() comes first.

    `on_joined` is called in each world but the first; `log` gets one sentence when a world is left or joined (stderr where
    absent).
    """

    def __init__(self, on_joined: Optional[Callable[[], object]] = None,
                 log: Optional[Callable[[str], object]] = None) -> None:
        if not _DistributedManager.is_initialized():
            raise RuntimeError("ElasticContext needs a world: call DistributedManager.initialize() first")
        self._states: weakref.WeakSet[ElasticState] = weakref.WeakSet()
        self._on_joined = on_joined
        self._core = _extension.ElasticContext(self._joined, log)

    def run(self, body: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Calls body(*args, **kwargs) in each world, until one of the calls has done the work. Returns None.

        The body makes whatever holds a process group: DistributedDataParallel, subgroups, its ElasticState. Only a loss of peers
        and the coordinator's wish to change the world lead to another call; every other exception leaves run(). It ends with
        a barrier of all ranks and the report that the work is finished; afterwards no end of a rank starts the job again.
        """
        def work():
            body(*args, **kwargs)
            self._drop_states()

        self._core.run(work, self._left)

    def at_end(self, act: Callable[[], object]) -> None:
        """For the body: `act` is called once, after the last barrier, before run() returns. It calls no collectives."""
        self._core.at_end(act)

    @property
    def is_quiesce_wanted(self) -> bool:
        """The coordinator wants the ranks to stand still at the end of a step; ranks hear of it at different times."""
        return self._core.is_quiesce_wanted

    @property
    def is_save_wanted(self) -> bool:
        """It also wants a checkpoint first."""
        return self._core.is_save_wanted

    def stand_still(self, step: int) -> None:
        """Leaves the world after `step` steps, for the next one. Does not return. All ranks call it after the same step."""
        self._core.stand_still(step)

    def _drop_states(self):
        for state in list(self._states):
            state._core.close()
        self._states.clear()

    def _left(self, error):
        # The frames of the traceback hold the body's objects: model, groups, work under way.
        error.__traceback__ = None
        error.__context__ = None
        self._drop_states()
        gc.collect()

    def _joined(self):
        _join.join_torch()
        if self._on_joined is not None:
            self._on_joined()


class _Update:
    def __init__(self, core):
        self._core = core

    def __enter__(self) -> None:
        self._core.begin_update()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._core.end_update(kind is None)


class ElasticState(_Keeper):
    """What an elastic training hands from one world to the next: model, optimizer with its options, random generators, what the
    program keeps beside them, and the number of steps done. A world has one, made in the body of ElasticContext.run().
    """

    def __init__(self, context: ElasticContext, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        _tell_of_extra_state(module)
        tensors = _tensors_of(module)
        self._modules = [("the module", module, tensors)]
        self._is_checked = self._seeds = False
        self._core = _extension.ElasticState(context._core, tensors, _with_counted_writes(optimizer))
        context._states.add(self)

    def seed_each_step(self, seed: int, stream: Optional[int] = None) -> None:
        """From now on torch's default generators, and those of random and NumPy, are seeded at the beginning of each step of
        steps(), as a pure function of (seed, step, rank), so that every rank draws what an undisturbed run would have drawn.
        Where several ranks must draw alike give their common `stream` in place of the rank."""
        self._core.seed_each_step(seed, stream)
        self._seeds = True

    def seed_step(self, step: int) -> None:
        """The same for one step, in a loop of the program's own. Raises without seed_each_step()."""
        self._core.seed_step(step)
        self._seed_others()

    def restore(self) -> Optional[int]:
        """Collective: all ranks take the state of the one that has done most steps. Returns that number; None where no rank
        has a state, and nothing is changed. Comes before the first step."""
        return self._core.restore()

    def update(self) -> _Update:
        """`with state.update(): optimizer.step()`: the state changes in this block alone, and one more step is done when it
        ends. A collective in it raises RuntimeError. An exception leaves the block, and the state counts as half-done until
        commit()."""
        self._check_tensors()
        self._is_checked = True
        return _Update(self._core)

    def commit(self, steps: int) -> None:
        """`steps` are done, and the state is whole as it is now."""
        self._check_tensors()
        self._core.commit(steps)

    def steps(self, first: int, last: int, agree_every: int = 10) -> Iterator[int]:
        """Steps first to last - 1; `first` are done when the loop begins. After every `agree_every` steps the ranks agree
        whether the coordinator wants them to stand still."""
        return self._walk(self._core.steps(first, last, agree_every))

    def _walk(self, steps):
        for step in steps:
            if self._seeds:
                self._seed_others()
            self._is_checked = False
            yield step
            if not self._is_checked:
                self._check_tensors()

    def _seed_others(self):
        """As torch's generator was seeded for this step."""
        seed = torch.initial_seed()
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
