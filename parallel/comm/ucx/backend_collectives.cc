// Calls with one tensor, or one for input and one for output.
#include <utility>

#include "fmt/format.h"
#include "parallel/base/no_collectives.h"
#include "parallel/comm/interface/memory_overlap.h"
#include "parallel/comm/ucx/backend_plan.h"

namespace meshrun {

using c10d::OpType;

namespace {

using Kind = OperationKind;
using Form = UcxBackend::Plan::Form;

// The tensor that a call is about. c10d's lists are for several devices in a process, which this
// backend has not.
bool takes_one(UcxBackend::Plan& plan, const UcxBackend::Tensors& tensors) {
  return plan.require(tensors.size() == 1, [&] {
    return fmt::format("{} tensors were passed; pass one, or call the coalesced function",
                       tensors.size());
  });
}

// What all ranks have of the same shape.
void agree_on(UcxBackend::Plan& plan, const at::Tensor& tensor) {
  plan.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  plan.shape_agrees = true;
  plan.bytes = static_cast<int64_t>(tensor.nbytes());
}

// Whether `whole` has an equal part for each rank, as large as `part`; what all agree on.
bool agree_on_parts(UcxBackend::Plan& plan, const at::Tensor& part, const char* part_name,
                    const at::Tensor& whole, const char* whole_name, int size) {
  if (!plan.require(whole.numel() == part.numel() * size, [&] {
        return fmt::format("the {} has {} elements, and the {}s of {} ranks have {}", whole_name,
                           whole.numel(), part_name, size, part.numel() * size);
      })) {
    return false;
  }
  plan.agree_on_equal_parts(part, size);
  return true;
}

template <class Span>
Span part_of(const Span& whole, int64_t offset, int64_t bytes) {
  if (bytes == 0) return {};
  return Span{whole.data + offset, Layout{1, bytes, bytes}};
}

void plan_all_reduce(UcxBackend::Plan& plan, const at::Tensor& tensor, int size) {
  if (!plan.takes_output(tensor, "the tensor")) return;
  agree_on(plan, tensor);
  plan.reduces(size);
  if (!plan.is_wrong()) plan.add_output(plan.update(tensor));
}

// Sums into memory of each other would depend on which comes first.
template <class Plans>
void refuse_overlaps(Plans& plans, at::ArrayRef<at::Tensor> tensors, const char* name) {
  for (const auto& plan : plans) {
    if (plan.is_wrong()) return;
  }
  plans.front().wrong(find_memory_overlap(tensors, name));
}

void plan_all_gather(UcxBackend::Plan& plan, const at::Tensor& output, const at::Tensor& input,
                     int rank, int size) {
  if (!plan.takes(input, "the input") || !plan.takes_output(output, "the output") ||
      !agree_on_parts(plan, input, "input", output, "output", size)) {
    return;
  }
  const auto bytes = static_cast<int64_t>(input.nbytes());
  const ConstStridedSpan own = plan.whole_to_read(input, Form::kRows);
  const StridedSpan whole = plan.whole_to_write(output, Form::kContiguous);
  plan.add_input(own);
  for (int r = 0; r < size; ++r) plan.add_output(part_of(whole, r * bytes, bytes));
  plan.in_place = own.data == plan.outputs[rank].data && own.layout.is_contiguous();
}

void plan_reduce_scatter(UcxBackend::Plan& plan, const at::Tensor& output, const at::Tensor& input,
                         int size) {
  if (!plan.takes(input, "the input") || !plan.takes_output(output, "the output") ||
      !agree_on_parts(plan, output, "output", input, "input", size)) {
    return;
  }
  plan.reduces(size);
  if (plan.is_wrong()) return;
  const auto bytes = static_cast<int64_t>(output.nbytes());
  const ConstStridedSpan whole = plan.whole_to_read(input, Form::kContiguous);
  for (int r = 0; r < size; ++r) plan.add_input(part_of(whole, r * bytes, bytes));
  plan.write(output, Form::kRows);
}

// A plan for each output with its input, made by `add`.
template <typename Plans, typename Add>
std::shared_ptr<Plans> plans_of_pairs(const CollectiveSpec& spec,
                                      const UcxBackend::Tensors& outputs,
                                      const UcxBackend::Tensors& inputs, const Add& add) {
  auto plans = std::make_shared<Plans>();
  if (outputs.size() == inputs.size()) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      add(plans->emplace_back(CollectiveSpec(spec), at::ArrayRef<at::Tensor>(outputs[i])),
          outputs[i], inputs[i]);
    }
  }
  if (plans->empty()) {
    plans->emplace_back(CollectiveSpec(spec))
        .wrong(fmt::format("{} outputs and {} inputs were passed; pass as many, at least one",
                           outputs.size(), inputs.size()));
  }
  return plans;
}

}  // namespace

UcxBackend::WorkPtr UcxBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  auto plans = Plans::of_one(spec_of(Kind::kBroadcast, options), tensors);
  Plan& plan = plans->front();
  if (takes_one(plan, tensors) && plan.is_rank(options.rootRank, size_, "the root") &&
      plan.require(options.rootTensor == 0, [] { return "the root tensor is not number 0"; }) &&
      plan.takes_output(tensors[0], "the tensor")) {
    agree_on(plan, tensors[0]);
    if (rank_ == options.rootRank) {
      plan.read(tensors[0], Form::kRows);
    } else {
      plan.write(tensors[0], Form::kRows);
    }
  }
  return submit(std::move(plans), OpType::BROADCAST);
}

UcxBackend::WorkPtr UcxBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  auto plans = Plans::of_one(spec_of(Kind::kAllReduce, options), tensors);
  Plan& plan = plans->front();
  if (takes_one(plan, tensors)) plan_all_reduce(plan, tensors[0], size_);
  return submit(std::move(plans), OpType::ALLREDUCE);
}

UcxBackend::WorkPtr UcxBackend::all_reduce_rounded(const at::Tensor& tensor) {
  auto plans = Plans::of_one(spec_of(Kind::kAllReduce, c10d::AllreduceOptions()), tensor);
  Plan& plan = plans->front();
  plan.spec.rounds_between_hosts = true;
  plan_all_reduce(plan, tensor, size_);
  return submit(std::move(plans), OpType::ALLREDUCE);
}

UcxBackend::WorkPtr UcxBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  auto plans = std::make_shared<Plans>();
  const CollectiveSpec spec = spec_of(Kind::kAllReduce, options);
  for (const at::Tensor& tensor : tensors) {
    plan_all_reduce(plans->emplace_back(CollectiveSpec(spec), at::ArrayRef<at::Tensor>(tensor)),
                    tensor, size_);
  }
  if (tensors.empty())
    plans->emplace_back(CollectiveSpec(spec)).wrong("the list of tensors is empty");
  refuse_overlaps(*plans, tensors, "tensors");
  return submit(std::move(plans), OpType::ALLREDUCE_COALESCED);
}

UcxBackend::WorkPtr UcxBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  auto plans = Plans::of_one(spec_of(Kind::kReduce, options), tensors);
  Plan& plan = plans->front();
  if (takes_one(plan, tensors) && plan.is_rank(options.rootRank, size_, "the root") &&
      plan.takes_output(tensors[0], "the tensor")) {
    agree_on(plan, tensors[0]);
    plan.reduces(size_);
  }
  if (!plan.is_wrong()) {
    if (rank_ == options.rootRank) {
      const StridedSpan span = plan.update(tensors[0]);
      plan.add_input(span);
      plan.add_output(span);
    } else {
      plan.read(tensors[0], Form::kContiguous);
    }
  }
  return submit(std::move(plans), OpType::REDUCE);
}

UcxBackend::WorkPtr UcxBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  auto plans = Plans::of_one(spec_of(Kind::kAllGather, options), output);
  plan_all_gather(plans->front(), output, input, rank_, size_);
  return submit(std::move(plans), OpType::_ALLGATHER_BASE);
}

UcxBackend::WorkPtr UcxBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  auto plans = plans_of_pairs<Plans>(spec_of(Kind::kAllGather, options), outputs, inputs,
                                     [this](Plan& plan, const auto& output, const auto& input) {
                                       plan_all_gather(plan, output, input, rank_, size_);
                                     });
  refuse_overlaps(*plans, outputs, "outputs");
  return submit(std::move(plans), OpType::ALLGATHER_COALESCED);
}

UcxBackend::WorkPtr UcxBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  auto plans = Plans::of_one(spec_of(Kind::kReduceScatter, options), output);
  plan_reduce_scatter(plans->front(), output, input, size_);
  return submit(std::move(plans), OpType::_REDUCE_SCATTER_BASE);
}

UcxBackend::WorkPtr UcxBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  auto plans = plans_of_pairs<Plans>(spec_of(Kind::kReduceScatter, options), outputs, inputs,
                                     [this](Plan& plan, const auto& output, const auto& input) {
                                       plan_reduce_scatter(plan, output, input, size_);
                                     });
  refuse_overlaps(*plans, outputs, "outputs");
  return submit(std::move(plans), OpType::COALESCED);
}

UcxBackend::WorkPtr UcxBackend::barrier(const c10d::BarrierOptions& options) {
  return submit(Plans::of_one(spec_of(Kind::kBarrier, options)), OpType::BARRIER);
}

void UcxBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  check_collectives_allowed([] { return std::string("monitoredBarrier"); });
  const bool has_timeout = options.timeout != c10d::kUnsetTimeout;
  const std::chrono::milliseconds timeout =
      has_timeout ? options.timeout : std::chrono::milliseconds(timeout_ms_.load());
  monitored_barrier_.wait(timeout, wait_all_ranks);
}

}  // namespace meshrun
