// meshrun's own, over the ucx backend with the header check.
#include "ATen/ops/empty.h"
#include "parallel/comm/v_collectives.h"
#include "tests/bench/collectives/contender.h"

namespace meshrun::bench {
namespace {

using WorkPtr = VCollectives::WorkPtr;

Contender all_reduce(const Problem& p, const Group& ucx) {
  const at::Tensor tensor = at::empty_like(p.input);
  return {.name = "ours",
          .note = "c10d's allreduce, in place",
          .call =
              [=] {
                std::vector<at::Tensor> tensors = {tensor};
                ucx->allreduce(tensors, {.asyncOp = false})->wait();
                return tensor;
              },
          .prepare = [=, &p] { tensor.copy_(p.input); }};
}

Contender all_to_all(const Problem& p, const Group& ucx) {
  int64_t extent = 0;
  for (const int64_t e : p.received()) extent += e;
  const at::Tensor output = at::empty(p.shape_with(extent), p.input.options());
  return {.name = "ours",
          .note = "c10d's alltoall_base, into memory that is there",
          .call =
              [=, &p, to = p.sent(), from = p.received()]() mutable {
                at::Tensor input = p.input, result = output;
                ucx->alltoall_base(result, input, from, to, {.asyncOp = false})->wait();
                return output;
              },
          .kept = {output}};
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
      return everywhere ? backend.all_gather_v(output, p.input, p.sizes, p.dim, {})
                        : backend.gather_v(output, p.input, p.sizes, p.dim, 0, {});
    };
  } else if (name == "scatter_v" || name == "reduce_scatter_v") {
    output = at::empty(p.shape_with(p.sizes[p.rank]), p.input.options());
    const bool adds = name == "reduce_scatter_v";
    start = [=, &p](VCollectives& backend) {
      return adds ? backend.reduce_scatter_v(output, p.input, p.sizes, p.dim, {})
                  : backend.scatter_v(output, p.input, p.sizes, p.dim, 0, {});
    };
  } else {
    return {};
  }
  if (output.defined()) result.kept = {output};
  const c10::intrusive_ptr<c10d::Backend> backend = ucx->getBackend(c10::kCPU);
  result.call = [=] {
    start(dynamic_cast<VCollectives&>(*backend))->wait();
    return output;
  };
  return {result};
}

}  // namespace

std::vector<Contender> ours(const Problem& problem, const Group& ucx) {
  const std::string& name = problem.what.operation;
  if (name == "all_reduce") return {all_reduce(problem, ucx)};
  if (name == "all_to_all") return {all_to_all(problem, ucx)};
  return in_place(problem, ucx);
}

}  // namespace meshrun::bench
