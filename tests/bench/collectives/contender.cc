#include "tests/bench/collectives/contender.h"

#include <cstring>
#include <numeric>

#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"

namespace meshrun::bench {

int64_t& copied_bytes() {
  static int64_t bytes = 0;
  return bytes;
}

std::vector<int64_t> counts_of(const Problem& problem, const std::vector<int64_t>& extents) {
  const int64_t beside = problem.shape[1 - problem.dim];
  std::vector<int64_t> counts;
  for (const int64_t extent : extents) counts.push_back(extent * beside);
  return counts;
}

at::Tensor flat_for(const Problem& problem, const std::vector<int64_t>& extents) {
  const std::vector<int64_t> counts = counts_of(problem, extents);
  return at::empty({std::accumulate(counts.begin(), counts.end(), int64_t{0})},
                   problem.input.options());
}

std::vector<at::Tensor> pieces_of(const Problem& problem, const at::Tensor& flat,
                                  const std::vector<int64_t>& extents) {
  const std::vector<int64_t> counts = counts_of(problem, extents);
  std::vector<at::Tensor> pieces;
  int64_t offset = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    pieces.push_back(flat.narrow(0, offset, counts[i]).view(problem.shape_with(extents[i])));
    offset += counts[i];
  }
  return pieces;
}

void pack(const Problem& problem, const at::Tensor& whole, const std::vector<int64_t>& extents,
          const at::Tensor& flat) {
  int64_t offset = 0;
  for (const at::Tensor& piece : pieces_of(problem, flat, extents)) {
    const int64_t extent = piece.size(problem.dim);
    piece.copy_(whole.narrow(problem.dim, offset, extent));
    offset += extent;
  }
  copied_bytes() += static_cast<int64_t>(flat.nbytes());
}

void unpack(const Problem& problem, const at::Tensor& flat, const std::vector<int64_t>& extents,
            const at::Tensor& whole) {
  int64_t offset = 0;
  for (const at::Tensor& piece : pieces_of(problem, flat, extents)) {
    const int64_t extent = piece.size(problem.dim);
    whole.narrow(problem.dim, offset, extent).copy_(piece);
    offset += extent;
  }
  copied_bytes() += static_cast<int64_t>(flat.nbytes());
}

Contender plain_copy(const Problem& problem) {
  const at::Tensor from = at::ones({problem.bound_bytes}, at::kByte);
  const at::Tensor to = at::ones({problem.bound_bytes}, at::kByte);
  return {.name = "memcpy",
          .call =
              [=] {
                std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
                return at::Tensor();
              },
          .has_result = false};
}

}  // namespace meshrun::bench
