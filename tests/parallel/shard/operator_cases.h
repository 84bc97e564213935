// Operators on sharded tensors against LibTorch's on the whole ones: a family of cases draws
// operators, shapes and values; the harness draws meshes, placements and uneven cuts for each
// argument, and compares results and gradients on every rank.
//
//   const bool kRegistered = register_operator_cases("joining", [](Draw& draw) {
//     const auto a = draw.normal({draw.extent(), 4});
//     return OperatorCase{"cat", {a, draw.normal({3, 4})},
//                         [](const auto& x) { return Tensors{at::cat({x[0], x[1]})}; }};
//   });
//
// All ranks draw the same. MESHRUN_SHARD_CASES: draws for each family and world (else 40);
// MESHRUN_SHARD_FAMILY: one family alone; MESHRUN_TEST_SEED.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/core/Tensor.h"
#include "tests/parallel/shard/drawn_layouts.h"

namespace meshrun {

using Tensors = std::vector<at::Tensor>;

inline Tensors both(const std::tuple<at::Tensor, at::Tensor>& results) {
  return {std::get<0>(results), std::get<1>(results)};
}

enum class Equality : uint8_t {
  kBits,      // moves and arithmetic
  kUlps,      // transcendental functions: 4 units in the last place of each element
  kRounding,  // sums: 1e-10 in relative L2 (float32: 1e-5)
};

struct OperatorCase {
  std::string name;
  // Whole tensors. Floating-point ones get gradients.
  Tensors inputs;
  std::function<Tensors(const Tensors&)> call;
  Equality equality = Equality::kRounding;
  bool differentiable = true;
  // Inputs that stay plain tensors; by index.
  std::vector<size_t> plain = {};
  // Inputs that are never cut (indices of embeddings, weights where a rule demands it).
  std::vector<size_t> never_sharded = {};
  // No argument is Partial.
  bool no_partial = false;
};

bool register_operator_cases(const std::string& family, std::function<OperatorCase(Draw&)> draw);

}  // namespace meshrun
