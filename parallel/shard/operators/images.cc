// Gradients of samples of each image of a batch, and distances of each pair of sets.
#include <vector>

#include "parallel/shard/operators/batchwise.h"

namespace meshrun {
namespace {

std::vector<BatchwiseRule> image_rules() {
  return {
      {"aten::_cdist_forward", {2, 2}, {{2}}},
      {"aten::_cdist_backward", {2, 2, 2, 2}, {{2}}, false, false, true},
      {"aten::grid_sampler_2d_backward", {3, 3, 3}, {{3}, {3}}},
      {"aten::grid_sampler_3d_backward", {4, 4, 4}, {{4}, {4}}},
  };
}

const bool kRegistered = register_batchwise("images", image_rules());

}  // namespace
}  // namespace meshrun
