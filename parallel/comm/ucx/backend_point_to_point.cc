// Messages between two ranks. They have no header: a wrong argument is an error of the rank that
// passed it, and the other one's time runs up.
#include <utility>

#include "fmt/format.h"
#include "parallel/comm/ucx/backend_plan.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun {

using c10d::OpType;

// `peer` -1: any rank.
std::shared_ptr<UcxBackend::Plans> UcxBackend::message(bool is_send, const Tensors& tensors,
                                                       int peer, int tag) const {
  CollectiveSpec spec;
  spec.kind = is_send ? OperationKind::kSend : OperationKind::kReceive;
  spec.async = true;
  auto plans = Plans::of_one(std::move(spec), tensors);
  Plan& plan = plans->front();
  plan.peer = peer;
  plan.user_tag = tag;
  if (!plan.require(
          tensors.size() == 1,
          [&] { return fmt::format("{} tensors were passed; pass one", tensors.size()); }) ||
      !plan.require(
          peer < size_,
          [&] { return fmt::format("the other rank is {} in a group of {}", peer, size_); }) ||
      !plan.require(tag >= 0 && tag <= ucx::kMaxUserTag, [&] {
        return fmt::format("the tag {} is not between 0 and {}", tag, ucx::kMaxUserTag);
      })) {
    return plans;
  }
  const at::Tensor& tensor = tensors[0];
  if (!(is_send ? plan.takes(tensor, "the tensor") : plan.takes_output(tensor, "the tensor"))) {
    return plans;
  }
  plan.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  plan.bytes = static_cast<int64_t>(tensor.nbytes());
  if (is_send) {
    plan.read(tensor, Plan::Form::kContiguous);
  } else {
    plan.write(tensor, Plan::Form::kContiguous);
  }
  return plans;
}

UcxBackend::WorkPtr UcxBackend::send(Tensors& tensors, int dst, int tag) {
  auto plans = message(true, tensors, dst, tag);
  plans->front().require(dst >= 0, [&] { return fmt::format("the other rank is {}", dst); });
  return submit(std::move(plans), OpType::SEND);
}

UcxBackend::WorkPtr UcxBackend::recv(Tensors& tensors, int src, int tag) {
  auto plans = message(false, tensors, src, tag);
  plans->front().require(src >= 0, [&] {
    return fmt::format("the other rank is {}; recvAnysource() receives from any", src);
  });
  return submit(std::move(plans), OpType::RECV);
}

UcxBackend::WorkPtr UcxBackend::recvAnysource(Tensors& tensors, int tag) {
  return submit(message(false, tensors, -1, tag), OpType::RECVANYSOURCE);
}

ucx::PointToPointSpec UcxBackend::message_of(Plan&& given) const {
  const auto plan = std::make_shared<Plan>(std::move(given));
  ucx::PointToPointSpec spec;
  spec.is_send = plan->spec.kind == OperationKind::kSend;
  spec.peer = plan->peer;
  spec.user_tag = static_cast<uint32_t>(plan->user_tag);
  if (spec.is_send) {
    const ConstStridedSpan& memory = plan->inputs[0];
    // A send only reads it.
    spec.memory = {const_cast<std::byte*>(memory.data), memory.layout};
  } else {
    spec.memory = plan->outputs[0];
  }
  ucx::FlightRecord& record = spec.record;
  record.scope = plan->scope.text;
  record.dtype = *plan->dtype;
  record.ndim = static_cast<uint8_t>(std::min<size_t>(plan->shape.size(), record.kSizes));
  std::copy_n(plan->shape.begin(), record.ndim, record.shape.begin());
  spec.timeout = timeout_of(plan->spec.timeout);
  spec.keep_alive = plan;
  return spec;
}

}  // namespace meshrun
