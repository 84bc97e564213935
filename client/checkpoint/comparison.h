// Differences between the tensors of two paths.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun::client {

// An element is near if |a - b| <= absolute + relative * |b|. Absent: every bit counts, so that 0
// and -0 differ. NaN is near NaN of the same bits, and an infinity is near itself.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

struct TensorDifference {
  std::string name;
  TensorInfo a;
  TensorInfo b;
  // What follows is of tensors with equal dtypes and shapes.
  bool comparable = false;
  uint64_t elements = 0;
  uint64_t differing = 0;  // in a bit
  uint64_t outside = 0;    // that are not near
  uint64_t nans = 0;       // that differ, and one is NaN: not in the next two
  // The largest |a - b|.
  double largest = 0;
  // The L2 norm of a - b, divided by that of b's finite elements; infinite where only the latter is
  // 0.
  double relative_norm = 0;
};

struct Comparison {
  std::vector<std::string> only_in_a;
  std::vector<std::string> only_in_b;
  // In bits, in dtype or in shape.
  std::vector<TensorDifference> different;
  uint64_t bit_equal = 0;
  // Files of a checkpoint beside its model, which were not read: the other has nothing of the kind.
  std::vector<std::string> left_out;

  // Within the tolerance.
  bool equal() const;
};

struct CompareOptions {
  std::optional<Tolerance> tolerance = {};
  // Called for each block, with bytes of one side.
  std::function<void(uint64_t done, uint64_t all)> progress = {};
};

// Memory: two blocks.
absl::StatusOr<Comparison> Compare(const TensorSource& a, const TensorSource& b,
                                   const CompareOptions& options);
// The same for what lies at two paths. The optimizer and what the program kept are read where both
// have them.
absl::StatusOr<Comparison> Compare(const std::string& a, const std::string& b,
                                   const CompareOptions& options);

}  // namespace meshrun::client
