#include "parallel/nn/afno_plan.h"

#include <algorithm>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun::detail {
namespace {

bool is_fraction(double value) { return value >= 0 && value <= 1; }

std::string problem_of_grid(const std::vector<int64_t>& inp_shape,
                            const std::vector<int64_t>& patch_size) {
  if (inp_shape.size() != 2) {
    return fmt::format("inp_shape should be a list of length 2, got [{}]",
                       fmt::join(inp_shape, ", "));
  }
  if (patch_size.size() != 2) {
    return fmt::format("patch_size should be a list of length 2, got [{}]",
                       fmt::join(patch_size, ", "));
  }
  if (std::min({inp_shape[0], inp_shape[1], patch_size[0], patch_size[1]}) < 1) {
    return fmt::format("inp_shape and patch_size must be positive, got [{}] and [{}]",
                       fmt::join(inp_shape, ", "), fmt::join(patch_size, ", "));
  }
  if (inp_shape[0] % patch_size[0] != 0 || inp_shape[1] % patch_size[1] != 0) {
    return fmt::format("input shape [{}] should be divisible by patch_size [{}]",
                       fmt::join(inp_shape, ", "), fmt::join(patch_size, ", "));
  }
  return "";
}

std::string must_divide(const char* what, const char* ranks_are, int64_t size, int64_t ranks) {
  if (size % ranks == 0) return "";
  return fmt::format("Error, {} needs to be divisible by {}: {} and {}", what, ranks_are, size,
                     ranks);
}

constexpr char kGroup[] = "matmul_parallel_size";

}  // namespace

std::string describe(const AfnoShape& shape) {
  return fmt::format(
      "inp_shape=[{}] patch_size=[{}] in_chans={} out_chans={} embed_dim={} depth={} mlp_ratio={} "
      "drop_rate={} drop_path_rate={} num_blocks={} sparsity_threshold={} "
      "hard_thresholding_fraction={} input_is_parallel={} output_is_parallel={}",
      fmt::join(shape.inp_shape, ", "), fmt::join(shape.patch_size, ", "), shape.in_chans,
      shape.out_chans, shape.embed_dim, shape.depth, shape.mlp_ratio, shape.drop_rate,
      shape.drop_path_rate, shape.num_blocks, shape.sparsity_threshold,
      shape.hard_thresholding_fraction, shape.input_is_parallel, shape.output_is_parallel);
}

std::string problem_of_network(const AfnoShape& shape, int64_t ranks) {
  if (shape.out_chans < 1 || shape.depth < 1) {
    return fmt::format("out_channels and depth must be positive, got {} and {}", shape.out_chans,
                       shape.depth);
  }
  // Only a product that fits an integer is a size.
  const double hidden = static_cast<double>(shape.embed_dim) * shape.mlp_ratio;
  if (!(hidden >= 1 && hidden < 1e15)) {
    return fmt::format("embed_dim * mlp_ratio must be at least 1, got {} * {}", shape.embed_dim,
                       shape.mlp_ratio);
  }
  if (!is_fraction(shape.drop_path_rate)) {
    return fmt::format("drop_path_rate must be between 0 and 1, got {}", shape.drop_path_rate);
  }
  for (const std::string& problem :
       {problem_of_patch_embed(shape.inp_shape, shape.patch_size, shape.in_chans, shape.embed_dim,
                               shape.input_is_parallel, true, ranks),
        problem_of_filter(shape.embed_dim, shape.num_blocks, shape.sparsity_threshold,
                          shape.hard_thresholding_fraction, 1, ranks),
        problem_of_mlp(shape.embed_dim, shape.hidden(), shape.embed_dim, shape.drop_rate, ranks)}) {
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string problem_of_mlp(int64_t in_features, int64_t hidden_features, int64_t out_features,
                           double drop, int64_t ranks) {
  if (std::min({in_features, hidden_features, out_features}) < 1) {
    return fmt::format(
        "in_features, hidden_features and out_features must be positive, got {}, {} and {}",
        in_features, hidden_features, out_features);
  }
  if (!is_fraction(drop)) return fmt::format("drop must be between 0 and 1, got {}", drop);
  return must_divide("hidden_features", kGroup, hidden_features, ranks);
}

std::string problem_of_patch_embed(const std::vector<int64_t>& inp_shape,
                                   const std::vector<int64_t>& patch_size, int64_t in_chans,
                                   int64_t embed_dim, bool input_is_parallel,
                                   bool output_is_parallel, int64_t ranks) {
  std::string problem = problem_of_grid(inp_shape, patch_size);
  if (!problem.empty()) return problem;
  if (in_chans < 1 || embed_dim < 1) {
    return fmt::format("in_chans and embed_dim must be positive, got {} and {}", in_chans,
                       embed_dim);
  }
  if (input_is_parallel) problem = must_divide("the in_chans", kGroup, in_chans, ranks);
  if (!problem.empty() || !output_is_parallel) return problem;
  return must_divide("the embed_dim", kGroup, embed_dim, ranks);
}

std::string problem_of_filter(int64_t hidden_size, int64_t num_blocks, double sparsity_threshold,
                              double hard_thresholding_fraction, int64_t hidden_size_factor,
                              int64_t ranks) {
  if (std::min({hidden_size, num_blocks, hidden_size_factor}) < 1) {
    return fmt::format(
        "hidden_size, num_blocks and hidden_size_factor must be positive, got {}, {} and {}",
        hidden_size, num_blocks, hidden_size_factor);
  }
  if (hidden_size % num_blocks != 0) {
    return fmt::format("hidden_size {} should be divisible by num_blocks {}", hidden_size,
                       num_blocks);
  }
  if (!(sparsity_threshold >= 0)) {
    return fmt::format("sparsity_threshold must not be negative, got {}", sparsity_threshold);
  }
  if (!is_fraction(hard_thresholding_fraction)) {
    return fmt::format("hard_thresholding_fraction must be between 0 and 1, got {}",
                       hard_thresholding_fraction);
  }
  return must_divide("num_blocks", kGroup, num_blocks, ranks);
}

ModeWindow mode_window(int64_t height, int64_t width, double fraction) {
  const int64_t total = height / 2 + 1;
  const auto kept = static_cast<int64_t>(static_cast<double>(total) * fraction);
  return {{total - kept, std::max(total - kept, std::min(total + kept, height))},
          {0, std::min(kept, width / 2 + 1)}};
}

SplitRange relative_overlap(const SplitRange& range, const SplitRange& within) {
  const int64_t begin = std::clamp(range.begin, within.begin, within.end);
  return {begin - within.begin, std::clamp(range.end, begin, within.end) - within.begin};
}

}  // namespace meshrun::detail
