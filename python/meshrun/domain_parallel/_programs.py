"""What torch.compile's compiler makes of a graph with sharded inputs.

The graph is that of the whole tensors. It runs once more, on sharded tensors whose parts the compiler traces: the operators' handlers
become operators on this rank's parts, with torch.ops.meshrun.traced_call between them where ranks send, or draw random numbers. The
compiler gets that. All ranks of the mesh compile a graph, or none does, so that they have the same calls in the same order.

A program is for one layout of each input. Another one is compiled anew, and counted in torch._dynamo.utils.counters["meshrun"].
"""

import operator
import warnings

import torch
from torch._dynamo.utils import counters

from meshrun.domain_parallel import _handlers
from meshrun.torch import _extension

_shard = _extension.shard


def compile(compiler, graph, example_inputs):
    """A backend of torch.compile, beside the compiler that the user chose."""
    # DistributedDataParallel's cuts graphs by the sizes of parameters that it knows: ours has others.
    owner = getattr(compiler, "__self__", None)
    return _Programs(getattr(owner, "backend_compile_fn", compiler), graph)


class _AsWritten(Exception):
    """What the graph does, and no compiled program can."""


class _Programs:
    """A graph, called with its inputs."""

    def __init__(self, compiler, graph):
        self._compiler, self._graph, self._programs = compiler, graph, {}

    def __call__(self, *inputs):
        # Beyond what the frontend checks before each call.
        kinds = (_handlers.changes, _shard.promotion_mode(), *map(_kind, inputs))
        program = self._programs.get(kinds)
        if program is None:
            program = self._programs[kinds] = self._made_for(inputs)
        return program(*inputs)

    def _made_for(self, inputs):
        """Collective: all ranks of the mesh make a program, or none does."""
        mesh = next((_shard.spec_of(value).mesh for value in inputs if _shard.is_sharded(value)), None)
        if mesh is None:
            # The frontend checks the keys of tensors, so this is another kind of call to it.
            return self._graph
        program, why = None, None
        if len(self._programs) >= torch._dynamo.config.recompile_limit:
            why = (f"{len(self._programs)} layouts of its inputs were compiled, and torch._dynamo.config.recompile_limit is that")
        else:
            try:
                program = _Program(self._compiler, self._graph, inputs)
            except Exception as error:
                why = str(error).strip().partition("\n")[0] or type(error).__name__
        # A backward pass that is compiled calls for results that the loss does not use, too.
        if _shard.all_agree(mesh, program is not None):
            counters["meshrun"]["compiled programs"] += 1
            return program
        counters["meshrun"]["programs as written"] += 1
        warnings.warn(f"torch.compile leaves a graph of {len(self._graph.graph.nodes)} nodes with sharded tensors as written: "
                      f"{why or 'another rank has a reason'}", stacklevel=2)
        return self._graph


def _kind(value):
    if not isinstance(value, torch.Tensor):
        return value
    if not _shard.is_sharded(value):
        return None
    return _shard.spec_of(value)


def _memory(tensors):
    return [tensor.untyped_storage()._cdata for tensor in tensors if isinstance(tensor, torch.Tensor)]


class _Program:
    """A graph, compiled for inputs of these layouts."""

    def __init__(self, compiler, graph, inputs):
        self._specs = [_shard.spec_of(value) if _shard.is_sharded(value) else None for value in inputs]
        self._tensors = [place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self._graph, self._constants = graph, list(inputs)
        for place in self._tensors:
            self._constants[place] = None
        self._results, self._written = None, []
        with _shard.Tracing():
            self._compiled = compiler(self._on_parts(graph), self._parts(inputs))
        if self._results is None:
            raise _AsWritten("the compiler does not trace before the program runs")

    def __call__(self, *inputs):
        if self._written and self._writes_to_memory_of_others(inputs):
            return self._graph(*inputs)
        parts = self._parts(inputs)
        return tuple(result if spec is None else _shard.from_parts(result, spec)
                     for result, spec in zip(self._compiled(*parts), self._results))

    def _parts(self, inputs):
        # Contiguous, since the strides of parts may differ between ranks, and all compile the same.
        return [inputs[place] if self._specs[place] is None else _shard.to_local(inputs[place], None).contiguous()
                for place in self._tensors]

    def _writes_to_memory_of_others(self, inputs):
        # Before _parts(), which copies what is not contiguous.
        memory = _memory(inputs[place] if self._specs[place] is None else _shard.local(inputs[place]) for place in self._tensors)
        return any(memory.count(memory[place]) > 1 for place in self._written)

    def _on_parts(self, graph):
        """The graph as a function of the parts of its tensors, which gives the parts of its results."""
        outer = torch.fx.Graph()
        parts = [outer.placeholder(f"part_{place}") for place in self._tensors]
        made = outer.call_function(self._run, tuple(parts))
        (returned,) = (node for node in graph.graph.nodes if node.op == "output")
        outer.output(tuple(outer.call_function(operator.getitem, (made, i)) for i in range(len(returned.args[0]))))
        return torch.fx.GraphModule(torch.nn.Module(), outer)

    def _run(self, *parts):
        inputs = list(self._constants)
        for place, part in zip(self._tensors, parts):
            spec = self._specs[place]
            inputs[place] = part if spec is None else _shard.from_parts(part, spec)
        versions = [inputs[place]._version for place in self._tensors]
        results = self._graph(*inputs)
        self._written = [i for i, place in enumerate(self._tensors) if inputs[place]._version != versions[i]]
        if any(self._specs[self._tensors[i]] is not None for i in self._written):
            raise _AsWritten("it writes to a sharded tensor that it is given")
        self._results = [_shard.spec_of(result) if _shard.is_sharded(result) else None for result in results]
        given = [result if spec is None else _shard.to_local(result, None) for result, spec in zip(results, self._results)]
        # Views of sharded tensors are views for autograd, and those that are put together from parts are not.
        shared = _memory(given)
        before = _memory(part for place, part in zip(self._tensors, parts) if self._specs[place] is not None)
        of_sharded = _memory(part for part, spec in zip(given, self._results) if spec is not None)
        if any(memory in before or shared.count(memory) > 1 for memory in of_sharded):
            raise _AsWritten("a result is a view of a sharded tensor that it is given, or of another result")
        return tuple(given)
