// The v-collectives of a backend, one function each, for tests that call it by hand. `given`: what
// the call says beside its tensors and sizes.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "ATen/core/Tensor.h"
#include "parallel/comm/interface/v_collectives.h"

namespace meshrun {

template <typename Type>
concept VBackend = std::derived_from<std::remove_cvref_t<Type>, VCollectives>;

VCollectives::WorkPtr run_cut(VBackend auto&& on, CollectiveSpec::Kind kind,
                              const at::Tensor& output, const at::Tensor& input,
                              at::IntArrayRef sizes, int64_t dim, int root, CollectiveSpec given) {
  given.kind = kind;
  given.cut = {dim, Extents(sizes.begin(), sizes.end())};
  given.root = root;
  return on.run(output, input, std::move(given));
}

VCollectives::WorkPtr all_gather_v(VBackend auto&& on, const at::Tensor& output,
                                   const at::Tensor& input, at::IntArrayRef sizes, int64_t dim,
                                   CollectiveSpec given = {}) {
  return run_cut(on, CollectiveSpec::Kind::kAllGatherV, output, input, sizes, dim, -1,
                 std::move(given));
}
VCollectives::WorkPtr reduce_scatter_v(VBackend auto&& on, const at::Tensor& output,
                                       const at::Tensor& input, at::IntArrayRef sizes, int64_t dim,
                                       CollectiveSpec given = {}) {
  return run_cut(on, CollectiveSpec::Kind::kReduceScatterV, output, input, sizes, dim, -1,
                 std::move(given));
}
VCollectives::WorkPtr gather_v(VBackend auto&& on, const at::Tensor& output,
                               const at::Tensor& input, at::IntArrayRef sizes, int64_t dim,
                               int root, CollectiveSpec given = {}) {
  return run_cut(on, CollectiveSpec::Kind::kGatherV, output, input, sizes, dim, root,
                 std::move(given));
}
VCollectives::WorkPtr scatter_v(VBackend auto&& on, const at::Tensor& output,
                                const at::Tensor& input, at::IntArrayRef sizes, int64_t dim,
                                int root, CollectiveSpec given = {}) {
  return run_cut(on, CollectiveSpec::Kind::kScatterV, output, input, sizes, dim, root,
                 std::move(given));
}
VCollectives::WorkPtr all_to_all_v(VBackend auto&& on, const at::Tensor& output,
                                   at::IntArrayRef output_sizes, int64_t output_dim,
                                   const at::Tensor& input, at::IntArrayRef input_sizes,
                                   int64_t input_dim, CollectiveSpec given = {}) {
  given.kind = CollectiveSpec::Kind::kAllToAllV;
  given.cut = {input_dim, Extents(input_sizes.begin(), input_sizes.end())};
  given.received = {output_dim, Extents(output_sizes.begin(), output_sizes.end())};
  return on.run(output, input, std::move(given));
}

}  // namespace meshrun
