// Calls with a tensor for each rank, and all-to-all.
#include <string>
#include <utility>

#include "fmt/format.h"
#include "parallel/base/extents.h"
#include "parallel/comm/ucx/backend_plan.h"

namespace meshrun {

using c10d::OpType;

namespace {

using Kind = OperationKind;
using Form = UcxBackend::Plan::Form;
using Tensors = UcxBackend::Tensors;

// As many as ranks, each usable. `what`: "output", "input".
bool takes_list(UcxBackend::Plan& plan, const Tensors& list, int size, bool is_output,
                const char* what) {
  if (plan.is_wrong() || !plan.require(list.size() == static_cast<size_t>(size), [&] {
        return fmt::format("the list of {}s has {} tensors in a group of {} ranks", what,
                           list.size(), size);
      })) {
    return false;
  }
  for (size_t rank = 0; rank < list.size(); ++rank) {
    const std::string name = fmt::format("{} {}", what, rank);
    if (!(is_output ? plan.takes_output(list[rank], name) : plan.takes(list[rank], name))) {
      return false;
    }
  }
  return true;
}

// Pieces that all ranks know: `list` has one for each, of which `own` is this rank's.
bool agree_on_sizes(UcxBackend::Plan& plan, const Tensors& list, const at::Tensor& own, int rank,
                    const char* own_name, const char* list_name) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : list) {
    plan.spec.cut.sizes.push_back(tensor.numel());
    elements += tensor.numel();
  }
  plan.spec.cut.dim = -1;
  plan.bytes = elements * static_cast<int64_t>(own.element_size());
  return plan.require(own.numel() == plan.spec.cut.of(rank), [&] {
    return fmt::format("the {} has {} elements, and {} {} has {}", own_name, own.numel(), list_name,
                       rank, plan.spec.cut.of(rank));
  });
}

bool takes_one_of_each(UcxBackend::Plan& plan, size_t outputs, size_t inputs) {
  return plan.require(outputs == 1 && inputs == 1, [&] {
    return fmt::format("{} outputs and {} inputs were passed; pass one of each", outputs, inputs);
  });
}

bool all_have(UcxBackend::Plan& plan, const Tensors& list, const at::Tensor& own,
              const char* what) {
  for (size_t rank = 0; rank < list.size(); ++rank) {
    if (!plan.require(list[rank].numel() == own.numel(), [&] {
          return fmt::format("{} {} has {} elements, the own tensor {}: all must have as many",
                             what, rank, list[rank].numel(), own.numel());
        })) {
      return false;
    }
  }
  return true;
}

// Extents of dim 0 by rank; empty, with a problem, where they are wrong.
std::vector<int64_t> splits_of(UcxBackend::Plan& plan, const at::Tensor& tensor,
                               const std::vector<int64_t>& splits, int size, const char* what,
                               const char* argument) {
  const int64_t extent = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    if (!plan.require(extent % size == 0, [&] {
          return fmt::format(
              "dim 0 of the {} is {}, which {} ranks cannot share equally; pass "
              "split sizes",
              what, extent, size);
        })) {
      return {};
    }
    return std::vector<int64_t>(static_cast<size_t>(size), extent / size);
  }
  const std::string problem = check_extents(argument, splits, extent, size);
  if (!plan.require(problem.empty(), [&] { return problem; })) return {};
  return splits;
}

int64_t row_bytes(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  return static_cast<int64_t>(tensor.nbytes()) / (tensor.dim() == 0 ? 1 : tensor.size(0));
}

// What a rank sends to itself.
bool own_pieces_match(UcxBackend::Plan& plan, int rank) {
  const int64_t sent = plan.inputs[static_cast<size_t>(rank)].layout.bytes();
  const int64_t received = plan.outputs[static_cast<size_t>(rank)].layout.bytes();
  return plan.require(sent == received, [&] {
    return fmt::format("it sends {} bytes to itself and expects {}", sent, received);
  });
}

void plan_all_gather(UcxBackend::Plan& plan, const Tensors& outputs, const at::Tensor& input,
                     int rank, int size) {
  if (!plan.takes(input, "the input") || !takes_list(plan, outputs, size, true, "output") ||
      !agree_on_sizes(plan, outputs, input, rank, "input", "output")) {
    return;
  }
  plan.read(input, Form::kRows);
  for (const at::Tensor& output : outputs) plan.write(output, Form::kRows);
  const StridedSpan& own = plan.outputs[static_cast<size_t>(rank)];
  plan.in_place = plan.inputs[0].data == own.data && plan.inputs[0].layout.is_contiguous() &&
                  own.layout.is_contiguous();
}

}  // namespace

UcxBackend::WorkPtr UcxBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  const bool is_one = outputs.size() == 1 && inputs.size() == 1;
  auto plans =
      Plans::of_one(spec_of(Kind::kAllGather, options),
                    is_one ? at::ArrayRef<at::Tensor>(outputs[0]) : at::ArrayRef<at::Tensor>());
  Plan& plan = plans->front();
  if (takes_one_of_each(plan, outputs.size(), inputs.size())) {
    plan_all_gather(plan, outputs[0], inputs[0], rank_, size_);
  }
  return submit(std::move(plans), OpType::ALLGATHER);
}

UcxBackend::WorkPtr UcxBackend::allgather_coalesced(std::vector<Tensors>& output_lists,
                                                    Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  // output_lists[rank][i] is what `rank` passes as inputs[i].
  bool fits = !inputs.empty() && output_lists.size() == static_cast<size_t>(size_);
  for (const Tensors& list : output_lists) fits = fits && list.size() == inputs.size();
  const CollectiveSpec spec = spec_of(Kind::kAllGather, options);
  auto plans = std::make_shared<Plans>();
  for (size_t i = 0; fits && i < inputs.size(); ++i) {
    Tensors outputs;
    for (const Tensors& list : output_lists) outputs.push_back(list[i]);
    plan_all_gather(plans->emplace_back(CollectiveSpec(spec), outputs), outputs, inputs[i], rank_,
                    size_);
  }
  if (!fits) {
    plans->emplace_back(CollectiveSpec(spec))
        .wrong(fmt::format(
            "{} lists of outputs were passed for {} inputs in a group of {} ranks; pass a "
            "list for each rank, with an output for each input",
            output_lists.size(), inputs.size(), size_));
  }
  return submit(std::move(plans), OpType::ALLGATHER_COALESCED);
}

UcxBackend::WorkPtr UcxBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  auto plans = Plans::of_one(spec_of(Kind::kGather, options),
                             outputs.empty() ? at::ArrayRef<at::Tensor>() : outputs[0]);
  Plan& plan = plans->front();
  plan.is_rank(options.rootRank, size_, "the root");
  const bool is_root = rank_ == options.rootRank;
  const bool fits = inputs.size() == 1 && outputs.size() == (is_root ? 1 : outputs.size()) &&
                    (is_root || outputs.empty() || outputs[0].empty());
  if (!plan.is_wrong() &&
      plan.require(fits,
                   [&] {
                     return fmt::format(
                         "{} inputs and {} lists of outputs were passed; pass one input, and one "
                         "list at the root alone",
                         inputs.size(), outputs.size());
                   }) &&
      plan.takes(inputs[0], "the input")) {
    plan.agree_on_equal_parts(inputs[0], size_);
    if (is_root && takes_list(plan, outputs[0], size_, true, "output") &&
        all_have(plan, outputs[0], inputs[0], "output")) {
      for (const at::Tensor& output : outputs[0]) plan.write(output, Form::kRows);
    }
    if (!plan.is_wrong()) plan.read(inputs[0], Form::kRows);
  }
  return submit(std::move(plans), OpType::GATHER);
}

UcxBackend::WorkPtr UcxBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  auto plans = Plans::of_one(spec_of(Kind::kScatter, options), outputs);
  Plan& plan = plans->front();
  plan.is_rank(options.rootRank, size_, "the root");
  const bool is_root = rank_ == options.rootRank;
  const bool fits = outputs.size() == 1 && inputs.size() == (is_root ? 1 : inputs.size()) &&
                    (is_root || inputs.empty() || inputs[0].empty());
  if (!plan.is_wrong() &&
      plan.require(fits,
                   [&] {
                     return fmt::format(
                         "{} outputs and {} lists of inputs were passed; pass one output, and "
                         "one list at the root alone",
                         outputs.size(), inputs.size());
                   }) &&
      plan.takes_output(outputs[0], "the output")) {
    plan.agree_on_equal_parts(outputs[0], size_);
    if (is_root && takes_list(plan, inputs[0], size_, false, "input") &&
        all_have(plan, inputs[0], outputs[0], "input")) {
      for (const at::Tensor& input : inputs[0]) plan.read(input, Form::kRows);
    }
    if (!plan.is_wrong()) plan.write(outputs[0], Form::kRows);
  }
  return submit(std::move(plans), OpType::SCATTER);
}

UcxBackend::WorkPtr UcxBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  auto plans = Plans::of_one(spec_of(Kind::kReduceScatter, options), outputs);
  Plan& plan = plans->front();
  if (takes_one_of_each(plan, outputs.size(), inputs.size()) &&
      plan.takes_output(outputs[0], "the output") &&
      takes_list(plan, inputs[0], size_, false, "input") &&
      agree_on_sizes(plan, inputs[0], outputs[0], rank_, "output", "input")) {
    plan.reduces(size_);
  }
  if (!plan.is_wrong()) {
    for (const at::Tensor& input : inputs[0]) plan.read(input, Form::kRows);
    plan.write(outputs[0], Form::kRows);
  }
  return submit(std::move(plans), OpType::REDUCE_SCATTER);
}

UcxBackend::WorkPtr UcxBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits,
                                              std::vector<int64_t>& input_splits,
                                              const c10d::AllToAllOptions& options) {
  auto plans = Plans::of_one(spec_of(Kind::kAllToAll, options), output);
  Plan& plan = plans->front();
  if (plan.takes(input, "the input") && plan.takes_output(output, "the output")) {
    const std::vector<int64_t> to =
        splits_of(plan, input, input_splits, size_, "input", "input_split_sizes");
    const std::vector<int64_t> from =
        splits_of(plan, output, output_splits, size_, "output", "output_split_sizes");
    if (!plan.is_wrong()) {
      plan.shape.assign(input.sizes().begin(), input.sizes().end());
      const ConstStridedSpan sent = plan.whole_to_read(input, Form::kContiguous);
      const StridedSpan received = plan.whole_to_write(output, Form::kContiguous);
      const int64_t sent_row = row_bytes(input), received_row = row_bytes(output);
      plan.require(sent.data == nullptr || sent.data != received.data,
                   [] { return std::string("input and output are the same memory"); });
      int64_t sent_at = 0, received_at = 0;
      for (int rank = 0; rank < size_; ++rank) {
        const auto r = static_cast<size_t>(rank);
        const int64_t sent_bytes = to[r] * sent_row, received_bytes = from[r] * received_row;
        plan.add_input(
            {sent_bytes > 0 ? sent.data + sent_at : nullptr, {1, sent_bytes, sent_bytes}});
        plan.add_output({received_bytes > 0 ? received.data + received_at : nullptr,
                         {1, received_bytes, received_bytes}});
        sent_at += sent_bytes;
        received_at += received_bytes;
      }
      own_pieces_match(plan, rank_);
      const auto element = static_cast<int64_t>(input.element_size());
      plan.own_sizes.sent.assign(to.begin(), to.end());
      plan.own_sizes.expected.assign(from.begin(), from.end());
      plan.own_sizes.sent_slice = sent_row / element;
      plan.own_sizes.expected_slice = received_row / element;
    }
  }
  return submit(std::move(plans), OpType::ALLTOALL_BASE);
}

UcxBackend::WorkPtr UcxBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  auto plans = Plans::of_one(spec_of(Kind::kAllToAll, options), outputs);
  Plan& plan = plans->front();
  if (takes_list(plan, inputs, size_, false, "input") &&
      takes_list(plan, outputs, size_, true, "output")) {
    for (const at::Tensor& input : inputs) {
      plan.shape.push_back(input.numel());
      plan.own_sizes.sent.push_back(input.numel());
      plan.read(input, Form::kRows);
    }
    for (const at::Tensor& output : outputs) {
      plan.own_sizes.expected.push_back(output.numel());
      plan.write(output, Form::kRows);
    }
    plan.own_sizes.sent_slice = plan.own_sizes.expected_slice = 1;
    own_pieces_match(plan, rank_);
  }
  return submit(std::move(plans), OpType::ALLTOALL);
}

}  // namespace meshrun
