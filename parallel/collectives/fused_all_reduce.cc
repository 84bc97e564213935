#include "parallel/collectives/fused_all_reduce.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/base/no_collectives.h"
#include "parallel/base/sharded_key.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/comm/v_collectives_of.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::detail {
namespace {

using at::Tensor;
using c10d::ReduceOp;

constexpr const char* kNoWeight = "fused_all_reduce: the weights of all ranks are zero";

// Null where there is nobody to reduce with.
ProcessGroupPtr group_of(const GroupArgument& argument) {
  try {
    return argument.get();
  } catch (const UninitializedError&) {
    return {};
  }
}

bool is_floating_or_complex(at::ScalarType type) {
  return at::isFloatingType(type) || at::isComplexType(type);
}

// At least float32. Bools are counted: a sum of bools in a byte would wrap around.
at::ScalarType accumulation_type(at::ScalarType type) {
  if (type == at::kBool) return at::kInt;
  if (at::isReducedFloatingType(type)) return at::kFloat;
  if (type == at::kComplexHalf) return at::kComplexFloat;
  return type;
}

std::string problem_of_leaves(const std::vector<FusedLeaf>& leaves) {
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Tensor& tensor = leaves[i].tensor;
    if (is_sharded(tensor)) return kTakesLocalTensors;
    if (tensor.defined() && tensor.layout() == at::kStrided) continue;
    return fmt::format("fused_all_reduce: tensor {} (\"{}\") is {}", i, leaves[i].key,
                       tensor.defined() ? "not dense" : "undefined");
  }
  return "";
}

// Sets `type` to the buffer's.
std::string problem_of_types(const std::vector<FusedLeaf>& leaves,
                             const std::optional<at::ScalarType>& asked, at::ScalarType& type) {
  bool has_floating = false, has_integer = false, has_complex = false;
  std::optional<at::ScalarType> common;
  for (const FusedLeaf& leaf : leaves) {
    const at::ScalarType own = leaf.tensor.scalar_type();
    (is_floating_or_complex(own) ? has_floating : has_integer) = true;
    has_complex = has_complex || at::isComplexType(own);
    if (!asked) {
      common = common ? c10::promoteTypes(accumulation_type(*common), accumulation_type(own)) : own;
    }
  }
  type = asked ? *asked : accumulation_type(common.value_or(at::kFloat));
  if (has_complex && !at::isComplexType(type)) {
    return fmt::format("fused_all_reduce: complex tensors do not fit a buffer of {}",
                       c10::toString(type));
  }
  if (!asked && has_floating && has_integer) {
    return fmt::format(
        "fused_all_reduce: integer or bool tensors among floating-point ones would be rounded in a "
        "buffer of {}; reduce them apart, or pass buffer_dtype",
        c10::toString(type));
  }
  return "";
}

std::string problem_of_options(const FusedAllReduceOptions& options, at::ScalarType type) {
  switch (options.op) {
    case ReduceOp::SUM:
      break;
    case ReduceOp::AVG:
      if (is_floating_or_complex(type)) break;
      return fmt::format(
          "fused_all_reduce: an average needs a floating-point or complex buffer, not {}; pass "
          "buffer_dtype",
          c10::toString(type));
    case ReduceOp::MIN:
    case ReduceOp::MAX:
      if (!at::isComplexType(type)) break;
      return "fused_all_reduce: complex numbers have no order, so no MIN or MAX";
    default:
      return fmt::format("fused_all_reduce: op {} is not SUM, AVG, MIN or MAX",
                         static_cast<int>(options.op));
  }
  if (!options.weight) return "";
  if (options.op != ReduceOp::AVG) return "fused_all_reduce: a weight goes with the op AVG";
  if (std::isfinite(*options.weight) && *options.weight >= 0) return "";
  return fmt::format("fused_all_reduce: the weight is {}; it must be finite and not negative",
                     *options.weight);
}

std::string words_of(const std::vector<FusedLeaf>& leaves, bool weighted) {
  std::string text = weighted ? " (weighted mean of" : " (of";
  for (const FusedLeaf& leaf : leaves) {
    text +=
        fmt::format(" {}{}{} [{}]", leaf.key, leaf.key.empty() ? "" : ": ",
                    c10::toString(leaf.tensor.scalar_type()), fmt::join(leaf.tensor.sizes(), ", "));
  }
  return text + ")";
}

// Stands for keys, dtypes and shapes; never 0.
uint64_t digest_of(const std::vector<FusedLeaf>& leaves, bool weighted) {
  uint64_t digest = weighted ? 2 : 1;
  const auto add = [&](uint64_t value) { digest = (digest ^ value) * 0x100'0000'01b3; };
  for (const FusedLeaf& leaf : leaves) {
    add(Fingerprint(leaf.key));
    add(static_cast<uint64_t>(leaf.tensor.scalar_type()));
    for (const int64_t extent : leaf.tensor.sizes()) add(static_cast<uint64_t>(extent));
    add(static_cast<uint64_t>(leaf.tensor.dim()) << 32);
  }
  return digest | 1;
}

}  // namespace

struct FusedReduction::State {
  std::vector<FusedLeaf> leaves;
  Tensor buffer;
  bool weighted = false;
  PendingAllReduce pending;
  bool is_alone = false;  // `leaves` are the results

  void pack(at::ScalarType type, const FusedAllReduceOptions& options);
  std::vector<Tensor> unpack();
};

void FusedReduction::State::pack(at::ScalarType type, const FusedAllReduceOptions& options) {
  int64_t count = weighted ? 1 : 0;
  for (const FusedLeaf& leaf : leaves) count += leaf.tensor.numel();
  const c10::Device device = leaves.empty() ? c10::Device(at::kCPU) : leaves[0].tensor.device();
  buffer = at::empty({count}, at::device(device).dtype(type));
  int64_t begin = 0;
  for (const FusedLeaf& leaf : leaves) {
    const int64_t size = leaf.tensor.numel();
    buffer.narrow(0, begin, size).view(leaf.tensor.sizes()).copy_(leaf.tensor);
    begin += size;
  }
  if (!weighted) return;
  if (*options.weight == 0) {
    buffer.zero_();  // not a product, which keeps what is not a number
    return;
  }
  buffer.mul_(*options.weight);
  buffer[count - 1].fill_(*options.weight);
}

std::vector<Tensor> FusedReduction::State::unpack() {
  int64_t count = buffer.numel();
  if (weighted) {
    const Tensor total = buffer[--count];
    if (total.abs().item<double>() == 0) {
      throw CollectiveArgumentError(kNoWeight);
    }
    buffer.narrow(0, 0, count).div_(total);
  }
  std::vector<Tensor> results;
  int64_t begin = 0;
  for (const FusedLeaf& leaf : leaves) {
    const Tensor& source = leaf.tensor;
    const Tensor piece = buffer.narrow(0, begin, source.numel()).view(source.sizes());
    begin += source.numel();
    // One leaf alone may have the buffer; detached it is no view, which a gradient must not be.
    const bool copy = leaves.size() > 1 || weighted;
    results.push_back(
        piece.to(source.device(), source.scalar_type(), /*non_blocking=*/false, copy).detach());
  }
  return results;
}

FusedReduction::FusedReduction(std::vector<FusedLeaf> leaves, std::string problem,
                               const FusedAllReduceOptions& options, bool async)
    : state_(std::make_unique<State>()) {
  const CallScope scope("fused_all_reduce");
  // Also where nothing will be sent: one process alone raises what several do.
  check_collectives_allowed([] { return "fused_all_reduce"; });
  const at::NoGradGuard no_grad;
  const ProcessGroupPtr group = group_of(options.group);
  at::ScalarType type = at::kFloat;
  if (problem.empty()) problem = problem_of_leaves(leaves);
  if (problem.empty()) problem = problem_of_types(leaves, options.buffer_dtype, type);
  if (problem.empty()) problem = problem_of_options(options, type);
  state_->weighted = options.weight.has_value();
  state_->is_alone = !group || group->getSize() == 1;
  if (state_->is_alone) {
    if (problem.empty() && options.weight && *options.weight == 0) problem = kNoWeight;
    if (!problem.empty()) throw CollectiveArgumentError(problem);
    for (FusedLeaf& leaf : leaves) {
      leaf.tensor = leaf.tensor.detach().clone(at::MemoryFormat::Contiguous);
    }
    state_->leaves = std::move(leaves);
    return;
  }
  if (!problem.empty()) {
    const auto known = std::find_if(leaves.begin(), leaves.end(),
                                    [](const FusedLeaf& leaf) { return leaf.tensor.defined(); });
    const Tensor example = known == leaves.end() ? Tensor() : known->tensor;
    raise_on_all_ranks(group, device_of(example, *group), problem);
  }
  state_->leaves = std::move(leaves);
  state_->pack(type, options);
  CollectiveSpec spec;
  spec.async = async;
  spec.agreed = digest_of(state_->leaves, state_->weighted);
  spec.say(
      [kept = state_->leaves, weighted = state_->weighted] { return words_of(kept, weighted); });
  state_->pending = all_reduce(group, state_->buffer, options.weight ? ReduceOp::SUM : options.op,
                               std::move(spec));
}

FusedReduction::~FusedReduction() = default;

bool FusedReduction::is_completed() const {
  return state_->is_alone || state_->pending.is_completed();
}

std::vector<Tensor> FusedReduction::wait() {
  check_collectives_allowed([] { return "wait() for a fused_all_reduce"; });
  const at::NoGradGuard no_grad;
  if (state_->is_alone) {
    std::vector<Tensor> results;
    for (const FusedLeaf& leaf : state_->leaves) results.push_back(leaf.tensor);
    return results;
  }
  state_->pending.wait();
  return state_->unpack();
}

}  // namespace meshrun::detail
