// The kernel of operators that compute each element of the result from those at the same place of
// their operands.
//
// Operands of one layout (most calls) cost one comparison of pointers each. Else they are brought to
// a common layout (layout/broadcast.h): what is Replicate is cut where it lies, what is sharded
// otherwise moves. In place the written tensor keeps its layout and its memory; where it is Partial
// and the operator is not linear, one rank has the values then. Internal to parallel/shard.
#pragma once

#include <memory>
#include <string>

#include "ATen/core/boxing/OperatorKernel.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/layout/broadcast.h"

namespace meshrun {

class PointwiseKernel : public c10::OperatorKernel {
 public:
  PointwiseKernel(const std::string& name, Linearity linearity);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  // Whether all operands are sharded alike, without a Partial that has to be reduced.
  bool operands_agree(const torch::jit::Stack& stack) const;
  void run_aligned(const c10::OperatorHandle& op, torch::jit::Stack* stack) const;

  const OperatorSignature signature_;
  const Linearity linearity_;
};

// For OperatorFamily::boxed.
inline auto pointwise(Linearity linearity) {
  return [linearity](const std::string& name) {
    return std::make_unique<PointwiseKernel>(name, linearity);
  };
}

}  // namespace meshrun
