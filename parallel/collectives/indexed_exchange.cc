#include "parallel/collectives/indexed_exchange.h"

#include <utility>

#include "ATen/EmptyTensor.h"
#include "ATen/core/DimVector.h"
#include "c10/core/Allocator.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/kernels/row_kernels.h"

namespace meshrun {
namespace {

VCall call_of(const std::string& problem, const std::shared_ptr<const IndexedState>& state,
              bool use_fp32, const CallForm& form) {
  VCall call = make_call(problem, form);
  call.use_fp32 = use_fp32;
  call.agreed = state->plan.table_digest;
  if (problem.empty()) {
    call.details = [state] { return state->words(); };
  } else {
    call.problem += " (indexed_all_to_all_v)";
  }
  return call;
}

void call_wrongly(const at::Tensor& tensor, const std::string& problem,
                  const std::shared_ptr<const IndexedState>& state, bool use_fp32,
                  const CallForm& form) {
  finish(VCollectivesOf(state->group, device_of(tensor, *state->group))
             ->all_to_all_v({}, {}, 0, {}, {}, 0, call_of(problem, state, use_fp32, form)),
         problem, form);
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
at::Tensor put_together_when_sent(VCall& call, const at::Tensor& tensor,
                                  const std::shared_ptr<const IndexedState>& state, int64_t dim) {
  const RowKernels& kernels = row_kernels(tensor.device().type());
  if (kernels.filler == nullptr) return {};
  const auto& lists = state->lists_on(tensor.device());
  RowKernels::Filler filler = kernels.filler(tensor, lists.remote, dim);
  if (!filler) return {};
  call.fill = [filler = std::move(filler), state](int32_t piece, int64_t offset, StridedSpan to,
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
                              int64_t dim, const CallForm& form) {
  const std::string problem = check_indexed(tensor, *state, /*reversed=*/false, dim);
  if (!problem.empty()) {
    call_wrongly(tensor, problem, state, use_fp32, form);
    return {};
  }
  const RowKernels& kernels = row_kernels(tensor.device().type());
  const auto& lists = state->lists_on(tensor.device());
  const VCollectivesOf collectives(state->group, tensor.device().type());
  VCall call = call_of(problem, state, use_fp32, form);
  at::Tensor sent;
  if (collectives->takes_fill()) sent = put_together_when_sent(call, tensor, state, dim);
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
  WorkPtr work = collectives->all_to_all_v(output, state->received, dim, sent, state->sent, dim,
                                           std::move(call));
  // While the others' are on their way.
  if (tensor.is_cpu()) place_own();
  finish(std::move(work), problem, form);
  return output;
}

at::Tensor indexed_all_to_all_reverse(const at::Tensor& tensor,
                                      const std::shared_ptr<const IndexedState>& state,
                                      bool use_fp32, int64_t dim, bool requires_grad) {
  const CallForm form{requires_grad, nullptr};
  const std::string problem = check_indexed(tensor, *state, /*reversed=*/true, dim);
  if (!problem.empty()) {
    call_wrongly(tensor, problem, state, use_fp32, form);
    return {};
  }
  const auto& lists = state->lists_on(tensor.device());
  const at::Tensor buffer = empty_with_extent(tensor, dim, lists.remote.size(0));
  finish(VCollectivesOf(state->group, tensor.device().type())
             ->all_to_all_v(buffer, state->sent, dim, tensor, state->received, dim,
                            call_of(problem, state, use_fp32, form)),
         problem, form);
  at::Tensor output = empty_with_extent(tensor, dim, state->extent);
  row_kernels(tensor.device().type())
      .segmented_sum(output, buffer, tensor.narrow(dim, state->own_begin, lists.own.size(0)),
                     lists.offsets, lists.positions, dim, use_fp32);
  return output;
}

}  // namespace meshrun
