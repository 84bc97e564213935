// Calls with a tensor for each rank, and all-to-all.
#include <string>
#include <utility>

#include "fmt/format.h"
#include "parallel/base/extents.h"
#include "parallel/comm/ucx/backend_call.h"

namespace meshrun {

using c10d::OpType;
using ucx::OperationKind;
using Form = UcxBackend::Call::Form;

namespace {

using Tensors = UcxBackend::Tensors;

// As many as ranks, each usable. `what`: "output", "input".
bool takes_list(UcxBackend::Call& call, const Tensors& list, int size, bool is_output,
                const char* what) {
  if (call.is_wrong() || !call.require(list.size() == static_cast<size_t>(size), [&] {
        return fmt::format("the list of {}s has {} tensors in a group of {} ranks", what,
                           list.size(), size);
      })) {
    return false;
  }
  for (size_t rank = 0; rank < list.size(); ++rank) {
    const std::string name = fmt::format("{} {}", what, rank);
    if (!(is_output ? call.takes_output(list[rank], name) : call.takes(list[rank], name))) {
      return false;
    }
  }
  return true;
}

// Pieces that all ranks know: `list` has one for each, of which `own` is this rank's.
bool agree_on_sizes(UcxBackend::Call& call, const Tensors& list, const at::Tensor& own, int rank,
                    const char* own_name, const char* list_name) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : list) {
    call.sizes.push_back(tensor.numel());
    elements += tensor.numel();
  }
  call.sizes_agree = true;
  call.bytes = elements * static_cast<int64_t>(own.element_size());
  return call.require(own.numel() == call.sizes[static_cast<size_t>(rank)], [&] {
    return fmt::format("the {} has {} elements, and {} {} has {}", own_name, own.numel(), list_name,
                       rank, call.sizes[static_cast<size_t>(rank)]);
  });
}

bool takes_one_of_each(UcxBackend::Call& call, size_t outputs, size_t inputs) {
  return call.require(outputs == 1 && inputs == 1, [&] {
    return fmt::format("{} outputs and {} inputs were passed; pass one of each", outputs, inputs);
  });
}

// Pieces of the same size on all ranks, which only the root sees.
bool agree_on_one_size(UcxBackend::Call& call, const at::Tensor& own, int size) {
  call.shape = {own.numel()};
  call.shape_agrees = true;
  call.bytes = static_cast<int64_t>(own.nbytes()) * size;
  return true;
}

bool all_have(UcxBackend::Call& call, const Tensors& list, const at::Tensor& own,
              const char* what) {
  for (size_t rank = 0; rank < list.size(); ++rank) {
    if (!call.require(list[rank].numel() == own.numel(), [&] {
          return fmt::format("{} {} has {} elements, the own tensor {}: all must have as many",
                             what, rank, list[rank].numel(), own.numel());
        })) {
      return false;
    }
  }
  return true;
}

// Extents of dim 0 by rank; empty, with a problem, where they are wrong.
std::vector<int64_t> splits_of(UcxBackend::Call& call, const at::Tensor& tensor,
                               const std::vector<int64_t>& splits, int size, const char* what,
                               const char* argument) {
  const int64_t extent = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    if (!call.require(extent % size == 0, [&] {
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
  if (!call.require(problem.empty(), [&] { return problem; })) return {};
  return splits;
}

int64_t row_bytes(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  return static_cast<int64_t>(tensor.nbytes()) / (tensor.dim() == 0 ? 1 : tensor.size(0));
}

// What a rank sends to itself.
bool own_pieces_match(UcxBackend::Call& call, int rank) {
  const int64_t sent = call.input_pieces[static_cast<size_t>(rank)].layout.bytes();
  const int64_t received = call.output_pieces[static_cast<size_t>(rank)].layout.bytes();
  return call.require(sent == received, [&] {
    return fmt::format("it sends {} bytes to itself and expects {}", sent, received);
  });
}

}  // namespace

UcxBackend::Call UcxBackend::all_gather_call(const Tensors& outputs, const at::Tensor& input,
                                             const c10d::AllgatherOptions& options) const {
  Call call(OpType::ALLGATHER, OperationKind::kAllGather, options.timeout, options.asyncOp);
  call.results.assign(outputs.begin(), outputs.end());
  if (!call.takes(input, "the input") || !takes_list(call, outputs, size_, true, "output") ||
      !agree_on_sizes(call, outputs, input, rank_, "input", "output")) {
    return call;
  }
  call.read(input, Form::kRows);
  for (const at::Tensor& output : outputs) call.write(output, Form::kRows);
  const StridedSpan& own = call.outputs[static_cast<size_t>(rank_)];
  call.in_place = call.inputs[0].data == own.data && call.inputs[0].layout.is_contiguous() &&
                  own.layout.is_contiguous();
  return call;
}

UcxBackend::WorkPtr UcxBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  if (outputs.size() == 1 && inputs.size() == 1) {
    return submit(all_gather_call(outputs[0], inputs[0], options));
  }
  Call call(OpType::ALLGATHER, OperationKind::kAllGather, options.timeout, options.asyncOp);
  takes_one_of_each(call, outputs.size(), inputs.size());
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::allgather_coalesced(std::vector<Tensors>& output_lists,
                                                    Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  // output_lists[rank][i] is what `rank` passes as inputs[i].
  bool fits = !inputs.empty() && output_lists.size() == static_cast<size_t>(size_);
  for (const Tensors& list : output_lists) fits = fits && list.size() == inputs.size();
  Calls calls;
  for (size_t i = 0; fits && i < inputs.size(); ++i) {
    Tensors outputs;
    for (const Tensors& list : output_lists) outputs.push_back(list[i]);
    calls.push_back(all_gather_call(outputs, inputs[i], options));
  }
  if (!fits) {
    calls.emplace_back(OpType::ALLGATHER_COALESCED, OperationKind::kAllGather, options.timeout,
                       options.asyncOp);
    calls[0].wrong(
        fmt::format("{} lists of outputs were passed for {} inputs in a group of {} ranks; pass a "
                    "list for each rank, with an output for each input",
                    output_lists.size(), inputs.size(), size_));
  }
  return submit(std::move(calls), OpType::ALLGATHER_COALESCED);
}

UcxBackend::WorkPtr UcxBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  Call call(OpType::GATHER, OperationKind::kGather, options.timeout, options.asyncOp);
  if (!outputs.empty()) call.results.assign(outputs[0].begin(), outputs[0].end());
  call.takes_root(options.rootRank, size_);
  const bool is_root = rank_ == call.root;
  const bool fits = inputs.size() == 1 && outputs.size() == (is_root ? 1 : outputs.size()) &&
                    (is_root || outputs.empty() || outputs[0].empty());
  if (!call.is_wrong() &&
      call.require(fits,
                   [&] {
                     return fmt::format(
                         "{} inputs and {} lists of outputs were passed; pass one input, and one "
                         "list at the root alone",
                         inputs.size(), outputs.size());
                   }) &&
      call.takes(inputs[0], "the input") && agree_on_one_size(call, inputs[0], size_)) {
    if (is_root && takes_list(call, outputs[0], size_, true, "output") &&
        all_have(call, outputs[0], inputs[0], "output")) {
      for (const at::Tensor& output : outputs[0]) call.write(output, Form::kRows);
    }
    if (!call.is_wrong()) call.read(inputs[0], Form::kRows);
  }
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  Call call(OpType::SCATTER, OperationKind::kScatter, options.timeout, options.asyncOp);
  call.results.assign(outputs.begin(), outputs.end());
  call.takes_root(options.rootRank, size_);
  const bool is_root = rank_ == call.root;
  const bool fits = outputs.size() == 1 && inputs.size() == (is_root ? 1 : inputs.size()) &&
                    (is_root || inputs.empty() || inputs[0].empty());
  if (!call.is_wrong() &&
      call.require(fits,
                   [&] {
                     return fmt::format(
                         "{} outputs and {} lists of inputs were passed; pass one output, and "
                         "one list at the root alone",
                         outputs.size(), inputs.size());
                   }) &&
      call.takes_output(outputs[0], "the output") && agree_on_one_size(call, outputs[0], size_)) {
    if (is_root && takes_list(call, inputs[0], size_, false, "input") &&
        all_have(call, inputs[0], outputs[0], "input")) {
      for (const at::Tensor& input : inputs[0]) call.read(input, Form::kRows);
    }
    if (!call.is_wrong()) call.write(outputs[0], Form::kRows);
  }
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  Call call(OpType::REDUCE_SCATTER, OperationKind::kReduceScatter, options.timeout,
            options.asyncOp);
  call.results.assign(outputs.begin(), outputs.end());
  if (takes_one_of_each(call, outputs.size(), inputs.size()) &&
      call.takes_output(outputs[0], "the output") &&
      takes_list(call, inputs[0], size_, false, "input") &&
      agree_on_sizes(call, inputs[0], outputs[0], rank_, "output", "input")) {
    call.reduces_by(options.reduceOp, size_);
  }
  if (!call.is_wrong()) {
    for (const at::Tensor& input : inputs[0]) call.read(input, Form::kRows);
    call.write(outputs[0], Form::kRows);
  }
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits,
                                              std::vector<int64_t>& input_splits,
                                              const c10d::AllToAllOptions& options) {
  Call call(OpType::ALLTOALL_BASE, OperationKind::kAllToAll, options.timeout, options.asyncOp);
  call.results = {output};
  if (call.takes(input, "the input") && call.takes_output(output, "the output")) {
    const std::vector<int64_t> to =
        splits_of(call, input, input_splits, size_, "input", "input_split_sizes");
    const std::vector<int64_t> from =
        splits_of(call, output, output_splits, size_, "output", "output_split_sizes");
    if (!call.is_wrong()) {
      call.shape = at::DimVector(input.sizes());
      const ConstStridedSpan sent = call.whole_to_read(input, Form::kContiguous);
      const StridedSpan received = call.whole_to_write(output, Form::kContiguous);
      const int64_t sent_row = row_bytes(input), received_row = row_bytes(output);
      call.require(sent.data == nullptr || sent.data != received.data,
                   [] { return std::string("input and output are the same memory"); });
      int64_t sent_at = 0, received_at = 0;
      for (int rank = 0; rank < size_; ++rank) {
        const auto r = static_cast<size_t>(rank);
        const int64_t sent_bytes = to[r] * sent_row, received_bytes = from[r] * received_row;
        call.add_input(
            {sent_bytes > 0 ? sent.data + sent_at : nullptr, {1, sent_bytes, sent_bytes}});
        call.add_output({received_bytes > 0 ? received.data + received_at : nullptr,
                         {1, received_bytes, received_bytes}});
        sent_at += sent_bytes;
        received_at += received_bytes;
      }
      own_pieces_match(call, rank_);
      const auto element = static_cast<int64_t>(input.element_size());
      call.own_sizes.sent.assign(to.begin(), to.end());
      call.own_sizes.expected.assign(from.begin(), from.end());
      call.own_sizes.sent_slice = sent_row / element;
      call.own_sizes.expected_slice = received_row / element;
    }
  }
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  Call call(OpType::ALLTOALL, OperationKind::kAllToAll, options.timeout, options.asyncOp);
  call.results.assign(outputs.begin(), outputs.end());
  if (takes_list(call, inputs, size_, false, "input") &&
      takes_list(call, outputs, size_, true, "output")) {
    for (const at::Tensor& input : inputs) {
      call.shape.push_back(input.numel());
      call.own_sizes.sent.push_back(input.numel());
      call.read(input, Form::kRows);
    }
    for (const at::Tensor& output : outputs) {
      call.own_sizes.expected.push_back(output.numel());
      call.write(output, Form::kRows);
    }
    call.own_sizes.sent_slice = call.own_sizes.expected_slice = 1;
    own_pieces_match(call, rank_);
  }
  return submit(std::move(call));
}

}  // namespace meshrun
