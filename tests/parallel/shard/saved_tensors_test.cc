// What the program writes between forward and backward, into an operand or a result: the gradient
// is that of the values before, or LibTorch's error. No result has an operand's memory where
// LibTorch's has memory of its own. One rank; shared_memory_test.cc has several.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/shard/drawn_cases.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

struct SavedCounts {
  int64_t right = 0;     // the gradient of what was
  int64_t both = 0;      // LibTorch's error, as on the whole tensors
  int64_t stricter = 0;  // an error where LibTorch has none: what it saves is another tensor
};

void overwrite(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  at::Tensor written = tensor;
  if (at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type())) {
    written.mul_(3);
  } else {
    written.zero_();
  }
}

// LibTorch has one error for what it saved, and one for views of a call that gives several.
bool is_error_of_a_write(const std::string& text) {
  return text.find("modified by an inplace operation") != std::string::npos ||
         text.find("modified inplace") != std::string::npos;
}

// Absent where it ended in LibTorch's error.
std::optional<Tensors> gradients_of(const Tensors& outputs, const Tensors& inputs,
                                    const Tensors& cotangents) {
  try {
    return torch::autograd::grad(outputs, inputs, cotangents, std::nullopt, false, true);
  } catch (const c10::Error& error) {
    if (!is_error_of_a_write(error.what_without_backtrace())) throw;
    return std::nullopt;
  }
}

Tensors that_require_grad(const Tensors& tensors) {
  Tensors some;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.requires_grad()) some.push_back(tensor);
  }
  return some;
}

void expect_memory_of_their_own(const Tensors& got, const Tensors& expected,
                                const PlacedCase& placed) {
  for (size_t i = 0; i < got.size(); ++i) {
    for (size_t j = 0; j < placed.sharded.size(); ++j) {
      const at::Tensor& operand = placed.sharded[j];
      if (!is_shard_tensor(got[i]) || expected[i].is_alias_of(placed.whole[j])) continue;
      EXPECT_FALSE(
          local_of(got[i]).is_alias_of(is_shard_tensor(operand) ? local_of(operand) : operand))
          << "result " << i << " has the memory of operand " << j;
    }
  }
}

void check_saved(const OperatorCase& drawn, Draw& draw, const ShardMesh::Ptr& mesh,
                 c10::Device device, SavedCounts& counts) {
  if (!drawn.differentiable) return;
  const PlacedCase placed(drawn, draw, mesh, device);
  SCOPED_TRACE(placed.said);
  Tensors expected;
  try {
    expected = drawn.call(placed.whole);
  } catch (const c10::Error&) {
    return;  // LibTorch refuses some masks of attention whose queries have no batch
  }
  const Tensors got = drawn.call(placed.sharded);
  expect_memory_of_their_own(got, expected, placed);
  // Some ranks may have saved a copy: a piece with its halo, what matmul() folds, a kernel
  // that their shapes choose. These have the right gradient, and wait for the ranks with the error.
  if (mesh->size() > 1) return;
  Tensors whole_outputs;
  Tensors outputs;
  Tensors whole_cotangents;
  Tensors cotangents;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!expected[i].requires_grad()) continue;
    const at::Tensor cotangent = draw.normal(expected[i].sizes()).to(expected[i].options());
    whole_outputs.push_back(expected[i]);
    outputs.push_back(got[i]);
    whole_cotangents.push_back(cotangent);
    cotangents.push_back(is_shard_tensor(got[i])
                             ? ShardTensor(cotangent, replicated_spec(mesh, cotangent.sizes()))
                             : cotangent);
  }
  if (outputs.empty()) return;
  const Tensors whole_inputs = that_require_grad(placed.whole);
  const Tensors inputs = that_require_grad(placed.sharded);
  const Tensors should =
      torch::autograd::grad(whole_outputs, whole_inputs, whole_cotangents, true, false, true);

  const auto number =
      static_cast<size_t>(draw.integer(0, static_cast<int64_t>(got.size() + inputs.size()) - 1));
  const bool into_operand = number >= got.size();
  const size_t place =
      into_operand
          ? static_cast<size_t>(draw.integer(0, static_cast<int64_t>(placed.sharded.size()) - 1))
          : number;
  SCOPED_TRACE(fmt::format("written into {} {}", into_operand ? "operand" : "result", place));
  try {
    overwrite(into_operand ? placed.whole[place] : expected[place]);
  } catch (const c10::Error&) {
    return;  // rows of one memory
  }
  overwrite(into_operand ? placed.sharded[place] : got[place]);

  const bool whole_has_error = !gradients_of(whole_outputs, whole_inputs, whole_cotangents);
  const std::optional<Tensors> is = gradients_of(outputs, inputs, cotangents);
  if (!is) {
    ++(whole_has_error ? counts.both : counts.stricter);
    if (!whole_has_error && std::getenv("MESHRUN_SHARD_VERBOSE") != nullptr) {
      fmt::print(stderr, "stricter: {}, {} {}\n", drawn.name, into_operand ? "operand" : "result",
                 place);
    }
    return;
  }
  ++counts.right;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor a = (*is)[i].defined() ? whole_of((*is)[i]) : at::zeros_like(whole_inputs[i]);
    const at::Tensor b = should[i].defined() ? should[i].detach() : at::zeros_like(whole_inputs[i]);
    EXPECT_EQ(difference(a, b, Equality::kRounding), "") << "gradient " << i;
  }
}

const bool kRegistered = register_rank_function("saved tensors", [] {
  SavedCounts counts;
  for_each_drawn_case(std::getenv("MESHRUN_TEST_WHOLE") != nullptr ? 400 : 20,
                      [&](const OperatorCase& drawn, Draw& draw, const ShardMesh::Ptr& mesh,
                          c10::Device device) { check_saved(drawn, draw, mesh, device, counts); });
  if (std::getenv("MESHRUN_SHARD_VERBOSE") != nullptr) {
    fmt::print(stderr, "{} right, {} errors as LibTorch's, {} errors alone\n", counts.right,
               counts.both, counts.stricter);
  }
});

class SavedTensorsTest : public testing::TestWithParam<int> {};

TEST_P(SavedTensorsTest, AWriteBetweenThePassesIsNeverInAGradient) {
  run_drawn_cases("saved tensors", env_ranks(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Worlds, SavedTensorsTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace meshrun
