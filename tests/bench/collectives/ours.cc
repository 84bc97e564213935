// meshrun's own, over the ucx backend with the header check.
#include <memory>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/call/output_memory.h"
#include "parallel/collectives/gather_v.h"
#include "parallel/collectives/indexed_all_to_all_v.h"
#include "parallel/collectives/primitives.h"
#include "parallel/collectives/reduce_scatter_v.h"
#include "parallel/collectives/scatter_v.h"
#include "parallel/comm/v_collectives_of.h"
#include "tests/bench/collectives/contender.h"
#include "tests/parallel/support/v_calls.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun::bench {
namespace {

using WorkPtr = VCollectives::WorkPtr;

Contender named(bool is_async, std::string note) {
  if (!is_async) return {.name = "ours", .note = std::move(note)};
  return {.name = "asynchronous", .note = "asyncOp, and wait() at once"};
}

Contender all_reduce_of_ours(const Problem& p, const Group& ucx, bool is_async) {
  const at::Tensor tensor = empty_output(p.input.sizes(), p.input.options());
  Contender result =
      named(is_async, "c10d::Backend's allreduce, in place, in memory of empty_output()");
  result.call = [=, backend = ucx->getBackend(c10::kCPU)] {
    std::vector<at::Tensor> tensors = {tensor};
    backend->allreduce(tensors, {.asyncOp = is_async})->wait();
    return tensor;
  };
  result.prepare = [=, &p] { tensor.copy_(p.input); };
  return result;
}

Contender all_to_all_of_ours(const Problem& p, const Group& ucx, bool is_async) {
  int64_t extent = 0;
  for (const int64_t e : p.received()) extent += e;
  const at::Tensor output = empty_output(p.shape_with(extent), p.input.options());
  Contender result =
      named(is_async, "c10d::Backend's alltoall_base, into memory of empty_output()");
  result.call = [=, &p, backend = ucx->getBackend(c10::kCPU), to = p.sent(),
                 from = p.received()]() mutable {
    at::Tensor input = p.input, received = output;
    backend->alltoall_base(received, input, from, to, {.asyncOp = is_async})->wait();
    return output;
  };
  result.kept = {output};
  return result;
}

// What the backend offers, into memory that is there.
std::vector<Contender> in_place(const Problem& p, const Group& ucx) {
  const std::string& name = p.what.operation;
  const bool is_root = p.rank == 0;
  Contender result{.name = "in_place", .note = "VCollectives, into memory that is there"};
  at::Tensor output;
  std::function<WorkPtr(VCollectives&)> start;
  if (name == "all_gather_v" || name == "gather_v") {
    const bool everywhere = name == "all_gather_v";
    if (everywhere || is_root) output = at::empty(p.shape, p.input.options());
    start = [=, &p](VCollectives& backend) {
      return everywhere ? all_gather_v(backend, output, p.input, p.sizes, p.dim, {})
                        : gather_v(backend, output, p.input, p.sizes, p.dim, 0, {});
    };
  } else if (name == "scatter_v" || name == "reduce_scatter_v") {
    output = at::empty(p.shape_with(p.sizes[p.rank]), p.input.options());
    const bool adds = name == "reduce_scatter_v";
    start = [=, &p](VCollectives& backend) {
      return adds ? reduce_scatter_v(backend, output, p.input, p.sizes, p.dim, {})
                  : scatter_v(backend, output, p.input, p.sizes, p.dim, 0, {});
    };
  } else {
    return {};
  }
  if (output.defined()) result.kept = {output};
  result.call = [=, backend = std::make_shared<VCollectivesOf>(ucx, c10::kCPU)] {
    start(**backend)->wait();
    return output;
  };
  return {result};
}

// The public function; it allocates its result.
Contender public_function(const Problem& p, const Group& ucx) {
  const std::string& name = p.what.operation;
  Contender result{.name = "ours"};
  if (name == "all_gather_v") {
    result.call = [=, &p] { return meshrun::all_gather_v(p.input, p.sizes, p.dim, true, ucx); };
  } else if (name == "reduce_scatter_v") {
    result.call = [=, &p] { return meshrun::reduce_scatter_v(p.input, p.sizes, p.dim, true, ucx); };
  } else if (name == "gather_v") {
    result.call = [=, &p] {
      const at::Tensor whole = meshrun::gather_v(p.input, p.sizes, p.dim, 0, ucx);
      return p.rank == 0 ? whole : at::Tensor();
    };
  } else if (name == "scatter_v") {
    result.call = [=, &p] { return meshrun::scatter_v(p.input, p.sizes, p.dim, 0, ucx); };
  } else {
    result.note = "with a plan that is kept";
    const IndexedAllToAllPlan plan(p.indices, p.table, p.shape[p.dim], ucx);
    if (name == "indexed_all_to_all_v") {
      result.call = [=, &p] { return indexed_all_to_all_v(p.input, plan, true, p.dim); };
    } else {
      result.note += "; the primitive, as the others do the steps without autograd";
      result.call = [=, &p] {
        return indexed_all_to_all_v_wrapper_bwd(p.input, plan, true, p.dim);
      };
    }
  }
  return result;
}

// A forward call's graph, walked again and again.
Contender backward_pass(const Problem& p, const Group& ucx) {
  const IndexedAllToAllPlan plan(p.indices, p.table, p.shape[p.dim], ucx);
  const at::AutoGradMode grad_mode(true);
  const at::Tensor leaf = at::empty(p.shape, p.input.options()).zero_().requires_grad_();
  const at::Tensor output = indexed_all_to_all_v(leaf, plan, true, p.dim);
  return {.name = "autograd", .note = "the backward pass of LibTorch's engine", .call = [=, &p] {
            return torch::autograd::grad({output}, {leaf}, {p.input}, /*retain_graph=*/true)[0];
          }};
}

}  // namespace

std::vector<Contender> ours(const Problem& problem, const Group& ucx) {
  const std::string& name = problem.what.operation;
  const auto both = [&](auto make) -> std::vector<Contender> {
    return {make(problem, ucx, false), make(problem, ucx, true)};
  };
  if (name == "all_reduce") return both(all_reduce_of_ours);
  if (name == "all_to_all") return both(all_to_all_of_ours);
  std::vector<Contender> result = in_place(problem, ucx);
  if (name == "indexed_all_to_all_v_backward") result.push_back(backward_pass(problem, ucx));
  result.insert(result.begin(), public_function(problem, ucx));
  return result;
}

}  // namespace meshrun::bench
