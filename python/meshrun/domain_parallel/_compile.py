"""torch.compile and sharded tensors: how its frontend sees one, and who compiles what it traced.

The frontend traces a sharded tensor as a plain tensor of the global shape, which has no memory. A graph with one among its inputs goes
to _programs.py with the compiler that the program chose. What reads this rank's part (to_local(), placements, isinstance) breaks the
graph.
"""

import dataclasses
import functools
import sys

import torch
from torch._subclasses import meta_utils
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException
from torch.distributed.tensor import DTensor

from meshrun.torch import _extension

_is_sharded = _extension.shard.is_sharded
_WITH_DTENSOR = "DTensors and ShardTensors meet outside of compiled programs"
_describe = meta_utils.MetaTensorDescriber.describe_tensor


@functools.wraps(_describe)
def _describe_as_whole(self, tensor, *args, **kwargs):
    if not _is_sharded(tensor):
        if isinstance(tensor, DTensor) and any(map(_is_sharded, _inputs_of_graph())):
            raise UnsupportedFakeTensorException(_WITH_DTENSOR)
        return _describe(self, tensor, *args, **kwargs)
    if any(isinstance(value, DTensor) for value in _inputs_of_graph()):
        raise UnsupportedFakeTensorException(_WITH_DTENSOR)
    if tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
        raise UnsupportedFakeTensorException("a sharded tensor that is a conjugate, a negative view or made in inference mode is computed "
                                             "as written, outside of compiled programs")
    _give_graphs_to_programs()
    alike = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    for name in "_dynamo_dynamic_indices", "_dynamo_hint_overrides":
        if hasattr(tensor, name):
            setattr(alike, name, getattr(tensor, name))
    grad = tensor.grad if tensor.is_leaf else None
    return dataclasses.replace(
        _describe(self, alike, *args, **kwargs), id=self.get_tensor_id(tensor), device=tensor.device, is_leaf=tensor.is_leaf,
        requires_grad=tensor.requires_grad, is_parameter=isinstance(tensor, torch.nn.Parameter),
        grad=None if grad is None else self.describe_tensor(grad))


meta_utils.MetaTensorDescriber.describe_tensor = _describe_as_whole


def _give_graphs_to_programs():
    """When a sharded tensor is described: the frontend is then loaded, which importing this package does not wait for."""
    frontend = sys.modules.get("torch._dynamo.output_graph")
    if frontend is not None:
        _take_graphs_of(frontend.OutputGraph)


@functools.cache
def _take_graphs_of(graphs):
    from meshrun.domain_parallel import _programs

    # What a program calls of these runs as written, without a word. Those of local tensors (halo, ring, grad_ops) are traced.
    for name in "_dtensor", "_install", "_meshes", "_module", "_scatter", "_spec", "_sync", "_tensor":
        torch._dynamo.trace_rules.add(f"meshrun.domain_parallel.{name}")
    call_compiler = graphs._call_user_compiler

    @functools.wraps(call_compiler)
    def call_compiler_of_sharded(self, graph, example_inputs):
        compiler = self.compiler_fn
        if any(map(_is_sharded, example_inputs)):
            self.compiler_fn = functools.partial(_programs.compile, compiler)
            self.compiler_fn.__name__ = getattr(compiler, "__name__", "compiler")
        try:
            return call_compiler(self, graph, example_inputs)
        finally:
            self.compiler_fn = compiler

    graphs._call_user_compiler = call_compiler_of_sharded


def _inputs_of_graph():
    """Of the graph that the frontend traces; none where it does not, also where the compiler traces."""
    frontend = sys.modules.get("torch._dynamo.symbolic_convert")
    try:
        return [argument.example for argument in frontend.InstructionTranslator.current_tx().output.graphargs]
    except (AttributeError, LookupError):
        return []


def break_graph_with_sharded(name):
    """Where the frontend traces a graph with a sharded tensor among its inputs, the program goes on as written: `name` is of a tensor,
    and the graph has no part of it."""
    if any(map(_is_sharded, _inputs_of_graph())):
        from torch._dynamo.exc import Unsupported

        raise Unsupported(f"{name!r} of a ShardTensor is not traced: torch.compile without fullgraph=True breaks the graph there",
                          gb_type="attribute of a ShardTensor")
