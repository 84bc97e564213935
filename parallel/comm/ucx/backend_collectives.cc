// Calls with one tensor, or one for input and one for output.
#include <utility>

#include "fmt/format.h"
#include "parallel/comm/ucx/backend_call.h"

namespace meshrun {

using c10d::OpType;
using ucx::OperationKind;
using Form = UcxBackend::Call::Form;

namespace {

// The tensor that a call is about. c10d's lists are for several devices in a process, which this
// backend has not.
bool takes_one(UcxBackend::Call& call, const UcxBackend::Tensors& tensors) {
  return call.require(tensors.size() == 1, [&] {
    return fmt::format("{} tensors were passed; pass one, or call the coalesced function",
                       tensors.size());
  });
}

// What all ranks have of the same shape.
void agree_on(UcxBackend::Call& call, const at::Tensor& tensor) {
  call.shape = at::DimVector(tensor.sizes());
  call.shape_agrees = true;
  call.bytes = static_cast<int64_t>(tensor.nbytes());
}

// One extent for all ranks' pieces.
void agree_on_pieces(UcxBackend::Call& call, int64_t elements, int64_t element_size, int size) {
  call.shape = {elements};
  call.shape_agrees = true;
  call.bytes = elements * element_size * size;
}

template <class Span>
Span part_of(const Span& whole, int64_t offset, int64_t bytes) {
  if (bytes == 0) return {};
  return Span{whole.data + offset, Layout{1, bytes, bytes}};
}

}  // namespace

UcxBackend::WorkPtr UcxBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  Call call(OpType::BROADCAST, OperationKind::kBroadcast, options.timeout, options.asyncOp);
  call.results.assign(tensors.begin(), tensors.end());
  if (takes_one(call, tensors) && call.takes_root(options.rootRank, size_) &&
      call.require(options.rootTensor == 0, [] { return "the root tensor is not number 0"; }) &&
      call.takes_output(tensors[0], "the tensor")) {
    agree_on(call, tensors[0]);
    if (rank_ == call.root) {
      call.read(tensors[0], Form::kRows);
    } else {
      call.write(tensors[0], Form::kRows);
    }
  }
  return submit(std::move(call));
}

UcxBackend::Call UcxBackend::all_reduce_call(const at::Tensor& tensor,
                                             const c10d::AllreduceOptions& options,
                                             Accumulate accumulate) const {
  Call call(OpType::ALLREDUCE, OperationKind::kAllReduce, options.timeout, options.asyncOp);
  call.results = {tensor};
  if (call.takes_output(tensor, "the tensor")) {
    agree_on(call, tensor);
    call.reduces_by(options.reduceOp, size_, accumulate);
  }
  if (!call.is_wrong()) call.add_output(call.update(tensor));
  return call;
}

UcxBackend::WorkPtr UcxBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1) return submit(all_reduce_call(tensors[0], options));
  Call call(OpType::ALLREDUCE, OperationKind::kAllReduce, options.timeout, options.asyncOp);
  takes_one(call, tensors);
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::all_reduce_rounded(const at::Tensor& tensor) {
  return submit(all_reduce_call(tensor, c10d::AllreduceOptions(), Accumulate::kWideInLevels));
}

UcxBackend::WorkPtr UcxBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  Calls calls;
  for (const at::Tensor& tensor : tensors) calls.push_back(all_reduce_call(tensor, options));
  if (tensors.empty()) {
    Call call(OpType::ALLREDUCE_COALESCED, OperationKind::kAllReduce, options.timeout,
              options.asyncOp);
    call.wrong("the list of tensors is empty");
    calls.push_back(std::move(call));
  }
  return submit(std::move(calls), OpType::ALLREDUCE_COALESCED);
}

UcxBackend::WorkPtr UcxBackend::allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) {
  C10_THROW_ERROR(NotImplementedError,
                  "the ucx backend does not reduce sparse tensors: call to_dense(), or gather "
                  "indices and values");
}

UcxBackend::WorkPtr UcxBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Call call(OpType::REDUCE, OperationKind::kReduce, options.timeout, options.asyncOp);
  call.results.assign(tensors.begin(), tensors.end());
  if (takes_one(call, tensors) && call.takes_root(options.rootRank, size_) &&
      call.takes_output(tensors[0], "the tensor")) {
    agree_on(call, tensors[0]);
    call.reduces_by(options.reduceOp, size_);
  }
  if (!call.is_wrong()) {
    if (rank_ == call.root) {
      const StridedSpan span = call.update(tensors[0]);
      call.add_input(span);
      call.add_output(span);
    } else {
      call.read(tensors[0], Form::kContiguous);
    }
  }
  return submit(std::move(call));
}

UcxBackend::Call UcxBackend::all_gather_base_call(const at::Tensor& output, const at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) const {
  Call call(OpType::_ALLGATHER_BASE, OperationKind::kAllGather, options.timeout, options.asyncOp);
  call.results = {output};
  if (!call.takes(input, "the input") || !call.takes_output(output, "the output") ||
      !call.require(output.numel() == input.numel() * size_, [&] {
        return fmt::format("the output has {} elements, and the inputs of {} ranks have {}",
                           output.numel(), size_, input.numel() * size_);
      })) {
    return call;
  }
  agree_on_pieces(call, input.numel(), static_cast<int64_t>(input.element_size()), size_);
  const auto bytes = static_cast<int64_t>(input.nbytes());
  const ConstStridedSpan own = call.whole_to_read(input, Form::kRows);
  const StridedSpan whole = call.whole_to_write(output, Form::kContiguous);
  call.add_input(own);
  for (int rank = 0; rank < size_; ++rank) {
    call.add_output(part_of(whole, rank * bytes, bytes));
  }
  call.in_place = own.data == call.outputs[rank_].data && own.layout.is_contiguous();
  return call;
}

UcxBackend::WorkPtr UcxBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  return submit(all_gather_base_call(output, input, options));
}

UcxBackend::WorkPtr UcxBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  Calls calls;
  if (outputs.size() == inputs.size()) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      calls.push_back(all_gather_base_call(outputs[i], inputs[i], options));
    }
  }
  if (calls.empty()) {
    calls.emplace_back(OpType::ALLGATHER_COALESCED, OperationKind::kAllGather, options.timeout,
                       options.asyncOp);
    calls[0].wrong(fmt::format("{} outputs and {} inputs were passed; pass as many, at least one",
                               outputs.size(), inputs.size()));
  }
  return submit(std::move(calls), OpType::ALLGATHER_COALESCED);
}

UcxBackend::Call UcxBackend::reduce_scatter_base_call(
    const at::Tensor& output, const at::Tensor& input,
    const c10d::ReduceScatterOptions& options) const {
  Call call(OpType::_REDUCE_SCATTER_BASE, OperationKind::kReduceScatter, options.timeout,
            options.asyncOp);
  call.results = {output};
  if (!call.takes(input, "the input") || !call.takes_output(output, "the output") ||
      !call.require(input.numel() == output.numel() * size_, [&] {
        return fmt::format("the input has {} elements, and the outputs of {} ranks have {}",
                           input.numel(), size_, output.numel() * size_);
      })) {
    return call;
  }
  agree_on_pieces(call, output.numel(), static_cast<int64_t>(output.element_size()), size_);
  call.reduces_by(options.reduceOp, size_);
  if (call.is_wrong()) return call;
  const auto bytes = static_cast<int64_t>(output.nbytes());
  const ConstStridedSpan whole = call.whole_to_read(input, Form::kContiguous);
  for (int rank = 0; rank < size_; ++rank) call.add_input(part_of(whole, rank * bytes, bytes));
  call.write(output, Form::kRows);
  return call;
}

UcxBackend::WorkPtr UcxBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  return submit(reduce_scatter_base_call(output, input, options));
}

UcxBackend::WorkPtr UcxBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  Calls calls;
  if (outputs.size() == inputs.size()) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      calls.push_back(reduce_scatter_base_call(outputs[i], inputs[i], options));
    }
  }
  if (calls.empty()) {
    calls.emplace_back(OpType::REDUCE_SCATTER, OperationKind::kReduceScatter, options.timeout,
                       options.asyncOp);
    calls[0].wrong(fmt::format("{} outputs and {} inputs were passed; pass as many, at least one",
                               outputs.size(), inputs.size()));
  }
  return submit(std::move(calls), OpType::COALESCED);
}

UcxBackend::WorkPtr UcxBackend::barrier(const c10d::BarrierOptions& options) {
  return submit(Call(OpType::BARRIER, OperationKind::kBarrier, options.timeout, options.asyncOp));
}

void UcxBackend::monitoredBarrier(const c10d::BarrierOptions&, bool) {
  C10_THROW_ERROR(NotImplementedError,
                  "the ucx backend needs no monitoredBarrier(): a barrier() that times out names "
                  "the ranks that have not called it");
}

}  // namespace meshrun
