// What an AFNO's sizes must satisfy, and which Fourier modes it keeps. Pure functions of what every
// rank knows, without LibTorch. Internal to parallel/nn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/base/split.h"

namespace meshrun::detail {

struct AfnoShape {
  std::vector<int64_t> inp_shape;
  std::vector<int64_t> patch_size;
  int64_t in_chans = 0;
  int64_t out_chans = 0;
  int64_t embed_dim = 0;
  int64_t depth = 0;
  double mlp_ratio = 4.0;
  double drop_rate = 0.0;
  double drop_path_rate = 0.0;
  int64_t num_blocks = 0;
  double sparsity_threshold = 0.01;
  double hard_thresholding_fraction = 1.0;
  bool input_is_parallel = false;
  bool output_is_parallel = false;

  // Patches along each dimension of the field.
  int64_t rows() const { return inp_shape[0] / patch_size[0]; }
  int64_t columns() const { return inp_shape[1] / patch_size[1]; }
  int64_t hidden() const {
    return static_cast<int64_t>(static_cast<double>(embed_dim) * mlp_ratio);
  }
};

// One line; what all ranks must have alike.
std::string describe(const AfnoShape& shape);

// The first thing that is wrong, with its numbers; empty: nothing. `ranks`: of the channel-parallel
// group, 1 without one.
std::string problem_of_network(const AfnoShape& shape, int64_t ranks);
std::string problem_of_mlp(int64_t in_features, int64_t hidden_features, int64_t out_features,
                           double drop, int64_t ranks);
std::string problem_of_patch_embed(const std::vector<int64_t>& inp_shape,
                                   const std::vector<int64_t>& patch_size, int64_t in_chans,
                                   int64_t embed_dim, bool input_is_parallel,
                                   bool output_is_parallel, int64_t ranks);
std::string problem_of_filter(int64_t hidden_size, int64_t num_blocks, double sparsity_threshold,
                              double hard_thresholding_fraction, int64_t hidden_size_factor,
                              int64_t ranks);

// The part of a half spectrum [height, width / 2 + 1] that AFNO transforms; it sets the rest to
// zero. As PhysicsNeMo's: both extents follow from the height, so a field wider than high loses
// modes even at fraction 1, and a smaller fraction keeps the rows of high wave numbers.
struct ModeWindow {
  SplitRange rows;
  SplitRange columns;
};
ModeWindow mode_window(int64_t height, int64_t width, double fraction);

// The overlap of two ranges, counted from the start of `within`; may be empty.
SplitRange relative_overlap(const SplitRange& range, const SplitRange& within);

}  // namespace meshrun::detail
