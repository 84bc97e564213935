// Scores, targets and weights of a loss over classes, as parts of one layout.
//
// Internal to parallel/shard/operators. All ranks of the mesh call alike.
#pragma once

#include <cstdint>
#include <optional>

#include "ATen/core/Tensor.h"
#include "parallel/shard/dispatch/local_map.h"

namespace meshrun {

struct ClassArguments {
  const char* name;
  const at::Tensor& self;
  const at::Tensor& target;
  const std::optional<at::Tensor>& weight;
  int64_t ignore_index;
  // Cross entropy: `self` has no logarithms of probabilities yet, and the target may have
  // probabilities.
  bool is_cross_entropy;
  double label_smoothing;
};

struct ClassOperands {
  SpecPtr spec;       // of the scores
  int64_t dim;        // of the classes: 1, or 0 of a vector
  at::Tensor scores;  // logarithms of probabilities where classes are cut
  at::Tensor target;
  std::optional<at::Tensor> weight;  // of this rank's classes
  bool has_indices;                  // the target's elements are classes, not probabilities

  bool has_cut_classes() const { return spec->is_sharded(dim); }
  // Number of all classes.
  int64_t num_classes() const { return spec->global_shape()[static_cast<size_t>(dim)]; }
  // In a shape that broadcasts with the scores.
  at::Tensor weight_along_classes() const;
};

// Raises on all ranks what LibTorch would raise on some, an index out of bounds aside.
ClassOperands read_classes(const ClassArguments& arguments);

}  // namespace meshrun
