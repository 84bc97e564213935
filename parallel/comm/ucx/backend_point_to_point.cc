// Messages between two ranks. They have no header: a wrong argument is an error of the rank that
// passed it, and the other one's time runs up.
#include <utility>

#include "fmt/format.h"
#include "parallel/comm/ucx/backend_call.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun {

using c10d::OpType;
using ucx::OperationKind;

// `peer` -1: any rank.
UcxBackend::Call UcxBackend::point_to_point_call(bool is_send, const Tensors& tensors, int peer,
                                                 int tag) const {
  Call call(is_send ? OpType::SEND : (peer < 0 ? OpType::RECVANYSOURCE : OpType::RECV),
            is_send ? OperationKind::kSend : OperationKind::kReceive, c10d::kUnsetTimeout, true);
  call.peer = peer;
  call.user_tag = tag;
  call.results.assign(tensors.begin(), tensors.end());
  if (!call.require(
          tensors.size() == 1,
          [&] { return fmt::format("{} tensors were passed; pass one", tensors.size()); }) ||
      !call.require(
          peer < size_,
          [&] { return fmt::format("the other rank is {} in a group of {}", peer, size_); }) ||
      !call.require(tag >= 0 && tag <= ucx::kMaxUserTag, [&] {
        return fmt::format("the tag {} is not between 0 and {}", tag, ucx::kMaxUserTag);
      })) {
    return call;
  }
  const at::Tensor& tensor = tensors[0];
  if (!(is_send ? call.takes(tensor, "the tensor") : call.takes_output(tensor, "the tensor"))) {
    return call;
  }
  call.shape = at::DimVector(tensor.sizes());
  call.bytes = static_cast<int64_t>(tensor.nbytes());
  if (is_send) {
    call.read(tensor, Call::Form::kContiguous);
  } else {
    call.write(tensor, Call::Form::kContiguous);
  }
  return call;
}

UcxBackend::WorkPtr UcxBackend::send(Tensors& tensors, int dst, int tag) {
  Call call = point_to_point_call(true, tensors, dst, tag);
  call.require(dst >= 0, [&] { return fmt::format("the other rank is {}", dst); });
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::recv(Tensors& tensors, int src, int tag) {
  Call call = point_to_point_call(false, tensors, src, tag);
  call.require(src >= 0, [&] {
    return fmt::format("the other rank is {}; recvAnysource() receives from any", src);
  });
  return submit(std::move(call));
}

UcxBackend::WorkPtr UcxBackend::recvAnysource(Tensors& tensors, int tag) {
  return submit(point_to_point_call(false, tensors, -1, tag));
}

std::shared_ptr<ucx::Operation> UcxBackend::start_point_to_point(Call&& given) {
  const auto call = std::make_shared<Call>(std::move(given));
  ucx::PointToPointSpec spec;
  spec.is_send = call->kind == OperationKind::kSend;
  spec.peer = call->peer;
  spec.user_tag = static_cast<uint32_t>(call->user_tag);
  if (spec.is_send) {
    const ConstStridedSpan& memory = call->inputs[0];
    // A send only reads it.
    spec.memory = {const_cast<std::byte*>(memory.data), memory.layout};
  } else {
    spec.memory = call->outputs[0];
  }
  ucx::FlightRecord& record = spec.record;
  record.scope = call->scope.text;
  record.dtype = *call->dtype;
  record.ndim = static_cast<uint8_t>(std::min<size_t>(call->shape.size(), record.kSizes));
  std::copy_n(call->shape.begin(), record.ndim, record.shape.begin());
  spec.timeout = timeout_of(call->timeout);
  spec.keep_alive = call;
  return group_->submit(std::move(spec));
}

}  // namespace meshrun
