// The kernel of operators that compute each element of the result from those at the same place of
// their operands.
//
// If the operands have one layout (most calls), each costs one comparison of pointers, and
// operators of a common form (typed_pointwise.cc) need no stack. Otherwise the operands are brought
// to a common layout (layout/broadcast.h): a Replicate operand is cut where it lies, and an operand
// that is sharded differently moves. An operator in place keeps the layout and the memory of the
// written tensor. If that is Partial and the operator is not linear, one rank has the values
// afterwards. Internal to parallel/shard.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "ATen/core/boxing/OperatorKernel.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/layout/broadcast.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

// Whether operands are sharded alike, without a Partial that has to be reduced.
class PointwiseAgreement {
 public:
  void see(const c10::TensorImpl* operand, bool is_read = true) {
    if (!operand->key_set().has(kShardedKey)) {
      agree_ = false;
      return;
    }
    const SpecPtr& spec = static_cast<const ShardTensorImpl*>(operand)->spec();
    num_read_ += is_read ? 1 : 0;
    if (spec_ == nullptr) {
      spec_ = &spec;
    } else if (*spec_ != spec && !(**spec_ == *spec)) {
      agree_ = false;
    }
  }
  // The first operand's spec; null where they do not agree.
  const SpecPtr* spec(Linearity linearity) const {
    if (!agree_ || spec_ == nullptr) return nullptr;
    return !(*spec_)->has_partial() || partial_stays(linearity) ? spec_ : nullptr;
  }

 private:
  bool partial_stays(Linearity linearity) const;

  const SpecPtr* spec_ = nullptr;
  int num_read_ = 0;
  bool agree_ = true;
};

class PointwiseKernel : public c10::OperatorKernel {
 public:
  PointwiseKernel(const std::string& name, Linearity linearity);

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  const SpecPtr* agreed_spec(const torch::jit::Stack& stack) const;
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

// The same for an operator called by its name; typed where it has a common form.
torch::CppFunction pointwise_function(const std::string& name, Linearity linearity);

// Rows of pointwise operators (operator_table.h): all overloads of each, in place and out= too.
class PointwiseFamily {
 public:
  explicit PointwiseFamily(std::string name) : name_(std::move(name)) {}

  PointwiseFamily& named(std::initializer_list<const char*> ops, Linearity linearity,
                         const Movement& movement);
  bool registered() const { return true; }

 private:
  std::string name_;
};

}  // namespace meshrun
