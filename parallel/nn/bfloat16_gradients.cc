#include "parallel/nn/bfloat16_gradients.h"

#include <ATen/ops/div.h>

#include <utility>
#include <vector>

#include "parallel/collectives/call/output_memory.h"
#include "parallel/comm/interface/rounded_sum.h"

namespace meshrun::detail {
namespace {

using at::Tensor;

class Bfloat16Hook final : public c10d::CommHookInterface {
 public:
  explicit Bfloat16Hook(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    Tensor share = bucket.getBuffer() / group_->getSize();
    if (share.layout() == at::kStrided) {
      const Tensor rounded = empty_output(share.sizes(), share.options().dtype(at::kBFloat16));
      return all_reduce_rounded(*group_, rounded.copy_(share))->getFuture();
    }
    std::vector<Tensor> shares = {std::move(share)};
    return group_->allreduce(shares)->getFuture();
  }

  // On the thread of the backward pass, not on the one that moves messages.
  Tensor parseHookResult(const c10::IValue& result) override {
    const Tensor average = c10d::detail::parseCppCommHookResult(result);
    return average.layout() == at::kStrided ? average.to(at::kFloat) : average;
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<c10d::CommHookInterface> make_bfloat16_hook(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return std::make_unique<Bfloat16Hook>(group);
}

}  // namespace meshrun::detail
