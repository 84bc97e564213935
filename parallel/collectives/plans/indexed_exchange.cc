#include "parallel/collectives/plans/indexed_exchange.h"

#include <utility>

#include "ATen/EmptyTensor.h"
#include "ATen/core/DimVector.h"
#include "c10/core/Allocator.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/kernels/row_kernels.h"

namespace meshrun {
namespace {

CollectiveSpec spec_of(const std::string& problem, const std::shared_ptr<const IndexedState>& state,
                       bool use_fp32) {
  CollectiveSpec spec;
  spec.kind = CollectiveSpec::Kind::kAllToAllV;
  spec.use_fp32 = use_fp32;
  spec.agreed = state->plan.table_digest;
  if (problem.empty()) {
    spec.say([state] { return state->words(); });
  } else {
    spec.problem = problem + " (indexed_all_to_all_v)";
  }
  return spec;
}

void call_wrongly(const at::Tensor& tensor, const std::string& problem,
                  const std::shared_ptr<const IndexedState>& state, bool use_fp32,
                  const Launch& how) {
  call_backend(state->group, device_of(tensor, *state->group), {}, {},
               spec_of(problem, state, use_fp32), problem, how);
}

class NoMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t) override {
    return {nullptr, nullptr, &ignore, c10::Device(c10::kCPU)};
  }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  static void ignore(void*) {}
};

// A tensor of the shape that is sent, without memory of its own; undefined where slices must be
// gathered first.
at::Tensor put_together_when_sent(CollectiveSpec& spec, const at::Tensor& tensor,
                                  const std::shared_ptr<const IndexedState>& state, int64_t dim) {
  const RowKernels& kernels = row_kernels(tensor.device().type());
  if (kernels.filler == nullptr) return {};
  const auto& lists = state->lists_on(tensor.device());
  RowKernels::Filler filler = kernels.filler(tensor, lists.remote, dim);
  if (!filler) return {};
  spec.fill = [filler = std::move(filler), state](int32_t piece, int64_t offset, StridedSpan to,
                                                  int64_t to_offset, int64_t bytes) {
    const auto rank = static_cast<size_t>(piece);
    filler(state->sent_begin[rank], state->sent[rank], offset, to, to_offset, bytes);
  };
  at::DimVector shape(tensor.sizes());
  shape[static_cast<size_t>(dim)] = lists.remote.size(0);
  static NoMemory no_memory;
  return at::Tensor(at::detail::empty_generic(shape, &no_memory,
                                              c10::DispatchKeySet(c10::DispatchKey::CPU),
                                              tensor.scalar_type(), at::MemoryFormat::Contiguous));
}

}  // namespace

std::string check_indexed(const at::Tensor& tensor, const IndexedState& state, bool reversed,
                          int64_t& dim) {
  if (!state.plan.problem.empty()) return state.plan.problem;
  std::string problem = tensor_problem(tensor);
  if (!problem.empty()) return problem;
  if (tensor.layout() != at::kStrided) {
    return std::string("the tensor is of layout ") + c10::str(tensor.layout()) +
           "; a dense one is expected";
  }
  problem = wrap_dim("dim", dim, tensor.dim());
  if (!problem.empty()) return problem;
  const int64_t expected = reversed ? state.num_received : state.extent;
  if (tensor.size(dim) == expected) return {};
  return "the tensor has " + std::to_string(tensor.size(dim)) + " slices along dim " +
         std::to_string(dim) + ", and the plan is for " + std::to_string(expected);
}

at::Tensor indexed_all_to_all(const at::Tensor& tensor,
                              const std::shared_ptr<const IndexedState>& state, bool use_fp32,
                              int64_t dim, const Launch& how) {
  const std::string problem = check_indexed(tensor, *state, /*reversed=*/false, dim);
  if (!problem.empty()) {
    call_wrongly(tensor, problem, state, use_fp32, how);
    return {};
  }
  const RowKernels& kernels = row_kernels(tensor.device().type());
  const auto& lists = state->lists_on(tensor.device());
  const VCollectivesOf collectives(state->group, tensor.device().type());
  CollectiveSpec spec = spec_of(problem, state, use_fp32);
  spec.cut = {dim, state->sent};
  spec.received = {dim, state->received};
  spec.requires_grad = how.requires_grad;
  spec.async = how.work != nullptr;
  at::Tensor sent;
  if (collectives->takes_fill()) sent = put_together_when_sent(spec, tensor, state, dim);
  if (!sent.defined()) {
    sent = empty_with_extent(tensor, dim, lists.remote.size(0));
    kernels.gather_rows(sent, tensor, lists.remote, dim);
  }
  at::Tensor output = empty_with_extent(tensor, dim, state->num_received);
  const auto place_own = [&] {
    kernels.gather_rows(output.narrow(dim, state->own_begin, lists.own.size(0)), tensor, lists.own,
                        dim);
  };
  // The Work of a GPU covers only what is on its stream before the call.
  if (!tensor.is_cpu()) place_own();
  WorkPtr work = collectives->run(output, sent, std::move(spec));
  // While the others' are on their way.
  if (tensor.is_cpu()) place_own();
  finish(std::move(work), problem, how);
  return output;
}

at::Tensor indexed_all_to_all_reverse(const at::Tensor& tensor,
                                      const std::shared_ptr<const IndexedState>& state,
                                      bool use_fp32, int64_t dim, bool requires_grad) {
  const Launch how{.requires_grad = requires_grad};
  const std::string problem = check_indexed(tensor, *state, /*reversed=*/true, dim);
  if (!problem.empty()) {
    call_wrongly(tensor, problem, state, use_fp32, how);
    return {};
  }
  const auto& lists = state->lists_on(tensor.device());
  const at::Tensor buffer = empty_with_extent(tensor, dim, lists.remote.size(0));
  CollectiveSpec spec = spec_of(problem, state, use_fp32);
  spec.cut = {dim, state->received};
  spec.received = {dim, state->sent};
  call_backend(state->group, tensor.device().type(), buffer, tensor, std::move(spec), problem, how);
  at::Tensor output = empty_with_extent(tensor, dim, state->extent);
  row_kernels(tensor.device().type())
      .segmented_sum(output, buffer, tensor.narrow(dim, state->own_begin, lists.own.size(0)),
                     lists.offsets, lists.positions, dim, use_fp32);
  return output;
}

}  // namespace meshrun
