"""What torch.compile's compiler makes of a graph with sharded inputs.

The graph is that of the whole tensors. It runs once more, on sharded tensors whose parts the compiler traces: the operators' handlers
become operators on this rank's parts, with torch.ops.meshrun.traced_call between them where ranks send, or draw random numbers. The
compiler gets that. All ranks of the mesh have the same calls in the same order, also beside ranks that run the graph as written.

A program is for one layout of each input. Another one is compiled anew, and counted in torch._dynamo.utils.counters["meshrun"].
"""

import operator
import warnings

import torch
from torch._dynamo.utils import counters

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
        kinds = tuple(map(_kind, inputs))
        program = self._programs.get(kinds)
        if program is None:
            program = self._programs[kinds] = self._made_for(inputs)
        return program(*inputs)

    def _made_for(self, inputs):
        if not any(map(_shard.is_sharded, inputs)):
            # The frontend checks the keys of tensors, so this is another kind of call to it.
            return self._graph
        if len(self._programs) >= torch._dynamo.config.recompile_limit:
            return self._as_written(f"{len(self._programs)} layouts of its inputs were compiled, and torch._dynamo.config.recompile_limit "
                                    "is that")
        counters["meshrun"]["compiled programs"] += 1
        try:
            return _Program(self._compiler, self._graph, inputs)
        except Exception as error:
            return self._as_written(str(error).strip().partition("\n")[0] or type(error).__name__)

    def _as_written(self, why):
        counters["meshrun"]["programs as written"] += 1
        warnings.warn(f"torch.compile leaves a graph of {len(self._graph.graph.nodes)} nodes with sharded tensors as written: {why}",
                      stacklevel=2)
        return self._graph


def _kind(value):
    """What a program is made for, beyond what the frontend checks before each call."""
    if not isinstance(value, torch.Tensor):
        return value
    if not _shard.is_sharded(value):
        return None
    return _shard.spec_of(value)


class _Program:
    """A graph, compiled for inputs of these layouts."""

    def __init__(self, compiler, graph, inputs):
        self._specs = [_shard.spec_of(value) if _shard.is_sharded(value) else None for value in inputs]
        self._tensors = [place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self._graph, self._constants = graph, list(inputs)
        for place in self._tensors:
            self._constants[place] = None
        self._results = None
        with _shard.Tracing():
            self._compiled = compiler(self._on_parts(graph), self._parts(inputs))

    def __call__(self, *inputs):
        results = self._compiled(*self._parts(inputs))
        return tuple(result if spec is None else _shard.from_parts(result, spec) for result, spec in zip(results, self._results))

    def _parts(self, inputs):
        # Contiguous, since the strides of parts may differ between ranks, and all compile the same.
        return [inputs[place] if self._specs[place] is None else _shard.to_local(inputs[place], None).contiguous()
                for place in self._tensors]

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
        sharded = [inputs[place] for place in self._tensors if self._specs[place] is not None]
        versions = [value._version for value in sharded]
        results = self._graph(*inputs)
        if [value._version for value in sharded] != versions:
            raise _AsWritten("it writes to a sharded tensor that it is given")
        self._results = [_shard.spec_of(result) if _shard.is_sharded(result) else None for result in results]
        return tuple(result if spec is None else _shard.to_local(result, None) for result, spec in zip(results, self._results))
