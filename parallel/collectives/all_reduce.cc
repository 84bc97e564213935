#include "parallel/collectives/all_reduce.h"

#include <utility>
#include <vector>

#include "c10/core/impl/VirtualGuardImpl.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/no_collectives.h"
#include "parallel/base/sharded_key.h"
#include "parallel/base/traced_calls.h"
#include "parallel/comm/interface/call_comparer.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/comm/interface/carried.h"
#include "parallel/comm/v_collectives_of.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::detail {
namespace {

using c10d::ReduceOp;

bool is_16_bit_float(at::ScalarType type) {
  return at::isReducedFloatingType(type) && c10::elementSize(type) == 2;
}

std::string words_of(const at::Tensor& tensor, ReduceOp::RedOpType op, const CollectiveSpec& spec) {
  return fmt::format("all_reduce of {} [{}], op {}{}", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "), static_cast<int>(op),
                     spec.words ? (*spec.words)() : "");
}

c10d::AllreduceOptions options_of(ReduceOp::RedOpType op, const CollectiveSpec& spec) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  options.asyncOp = spec.async;
  return options;
}

// With a comparison of what the all-reduce's own header does not have, in one operation.
c10::intrusive_ptr<c10d::Work> start_compared(const ComparingBackend& comparer,
                                              const at::Tensor& tensor, ReduceOp::RedOpType op,
                                              const CollectiveSpec& spec) {
  std::vector<at::Tensor> tensors = {tensor};
  const c10d::AllreduceOptions options = options_of(op, spec);
  c10d::Backend& backend = comparer.backend();
  if (spec.agreed == 0) return backend.allreduce(tensors, options);
  backend.startCoalescing();
  comparer->compare({.what = spec.words ? "an all_reduce" + (*spec.words)() : "an all_reduce",
                     .digest = spec.agreed,
                     .async = spec.async});
  backend.allreduce(tensors, options);
  return backend.endCoalescing();
}

}  // namespace

PendingAllReduce all_reduce(const ProcessGroupPtr& group, const at::Tensor& tensor,
                            ReduceOp::RedOpType op, CollectiveSpec spec) {
  check_collectives_allowed([] { return CallScope::current_or("all_reduce"); });
  const c10::DeviceType device = device_of(tensor, *group);
  const ComparingBackend own(group->getBackend(device));
  if (spec.problem.empty() && is_sharded(tensor)) spec.problem = kTakesLocalTensors;
  if (spec.problem.empty() && !own && op == ReduceOp::AVG && !tensor.is_floating_point() &&
      !tensor.is_complex()) {
    spec.problem = "an average needs a floating-point or complex type";
  }
  if (spec.problem.empty() && !own && tensor.is_complex() && op != ReduceOp::SUM &&
      op != ReduceOp::AVG) {
    spec.problem = "complex numbers, which travel as pairs, are only summed and averaged";
  }
  PendingAllReduce pending;
  pending.tensor_ = tensor;
  if (is_traced(tensor)) {
    // Made as written, the call raises it on all ranks.
    if (!spec.problem.empty()) throw NotTraceableError(spec.problem);
    spec.async = false;
    trace_call(tensor, tensor,
               [group = WeakGroup(group), op, spec](const at::Tensor& to, const at::Tensor& from) {
                 to.copy_(from);
                 all_reduce(living(group), to, op, spec).wait();
               });
    return pending;
  }
  if (!spec.problem.empty()) raise_on_all_ranks(group, device, spec.problem);
  if (own) {
    pending.work_ = start_compared(own, tensor, op, spec);
    return pending;
  }
  if (const auto comparer = comparer_of(*group)) {
    const std::string words = words_of(tensor, op, spec);
    const uint64_t digest = Fingerprint(fmt::format("{} {}", words, spec.agreed));
    comparer->compare({.what = words, .digest = digest})->wait();
  }
  if (tensor.numel() == 0) return pending;  // Gloo has no such message
  if (op == ReduceOp::AVG) {
    op = ReduceOp::SUM;
    pending.divisor_ = group->getSize();
  }
  at::Tensor wire = tensor.contiguous().resolve_conj().resolve_neg();
  if (spec.use_fp32 && is_16_bit_float(wire.scalar_type())) wire = wire.to(at::kFloat);
  std::vector<at::Tensor> tensors = {summable(wire)};
  if (!tensors[0].is_alias_of(wire)) wire = tensors[0];
  if (!wire.is_same(tensor)) pending.wire_ = wire;
  pending.work_ = group->allreduce(tensors, options_of(op, spec));
  return pending;
}

at::Tensor PendingAllReduce::wait() {
  // NCCL has none for calls that are waited for at once: they are on the current stream.
  if (work_) work_->wait();
  if (tensor_.defined() && !tensor_.is_cpu() && !is_traced(tensor_)) {
    // Perhaps another stream than the call's, to which the allocator gives the memory back.
    const c10::impl::VirtualGuardImpl guard(tensor_.device().type());
    const c10::Stream current = guard.getStream(tensor_.device());
    for (const at::Tensor& used : {tensor_, wire_}) {
      if (used.defined()) guard.recordDataPtrOnStream(used.storage().data_ptr(), current);
    }
  }
  at::Tensor reduced = wire_.defined() ? wire_ : tensor_;
  if (divisor_ != 1) reduced.div_(divisor_);
  if (wire_.defined()) tensor_.copy_(wire_);
  wire_ = at::Tensor();
  divisor_ = 1;
  return tensor_;
}

void raise_on_all_ranks(const ProcessGroupPtr& group, c10::DeviceType device,
                        const std::string& problem) {
  ComparingBackend comparer(group->getBackend(device));
  if (!comparer) comparer = comparer_of(*group);
  if (comparer) comparer->compare({.problem = problem})->wait();
  throw CollectiveArgumentError(problem);
}

}  // namespace meshrun::detail
