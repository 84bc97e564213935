// The closed forms that the peers' tests hold, by their numbers: P ranks, r this one, N = sum of
// r + 2.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parallel/collectives/collectives.h"
#include "parallel/collectives/split.h"
#include "tests/parallel/collectives/conformance/cases.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

class Vectors {
 public:
  explicit Vectors(const RankWorld& world)
      : rank_(world.rank()), size_(world.size()), options_(world.device()) {
    for (int rank = 0; rank < size_; ++rank) sizes_.push_back(rank + 2);
    total_ = size_ * (size_ + 3) / 2;
  }

  void run() const {
    number_1_scatter_v();
    number_2_gather_v();
    number_3_all_gather_v();
    number_4_indexed_all_to_all_v();
  }

 private:
  Tensor rows(int64_t count, double value) const { return at::full({count, 4}, value, options_); }
  // Rows of block r are r + 1.
  Tensor blocks() const {
    Tensors blocks;
    for (int rank = 0; rank < size_; ++rank) blocks.push_back(rows(sizes_[rank], rank + 1));
    return at::cat(blocks);
  }
  static Tensor gradient(const Tensor& output, const Tensor& input) {
    return torch::autograd::grad({output}, {input}, {at::full_like(output, -1)})[0];
  }
  void expect_same(const Tensor& actual, const Tensor& expected, const char* vector) const {
    EXPECT_TRUE(actual.sizes() == expected.sizes() && at::equal(actual.cpu(), expected.cpu()))
        << "vector " << vector << ", rank " << rank_ << " of " << size_ << ":\n"
        << actual.cpu() << "\ninstead of\n"
        << expected.cpu();
  }

  void number_1_scatter_v() const {
    Tensor input = (rank_ == 0 ? blocks() : at::empty({0, 4}, options_)).set_requires_grad(true);
    const Tensor output = scatter_v(input, sizes_, 0, 0);
    expect_same(output.detach(), rows(rank_ + 2, rank_ + 1), "1, scatter_v");
    expect_same(gradient(output, input),
                rank_ == 0 ? rows(total_, -1) : at::zeros({0, 4}, options_),
                "1, gradient of scatter_v");
  }

  void number_2_gather_v() const {
    Tensor input = rows(rank_ + 2, rank_ + 1).set_requires_grad(true);
    const Tensor output = gather_v(input, sizes_, 0, 0);
    expect_same(output.detach(), rank_ == 0 ? blocks() : at::zeros({0, 4}, options_),
                "2, gather_v");
    expect_same(gradient(output, input), rows(rank_ + 2, -1), "2, gradient of gather_v");
  }

  void number_3_all_gather_v() const {
    Tensor input = rows(rank_ + 2, rank_ + 1).set_requires_grad(true);
    const Tensor output = all_gather_v(input, sizes_);
    expect_same(output.detach(), blocks(), "3, all_gather_v");
    expect_same(gradient(output, input), rows(rank_ + 2, -size_), "3, gradient of all_gather_v");
  }

  void number_4_indexed_all_to_all_v() const {
    Tensors values, indices;
    std::vector<std::vector<int64_t>> sizes;
    for (int rank = 0; rank < size_; ++rank) {
      values.push_back(rows(rank_ + 1, rank + 1));
      indices.push_back(at::arange(rank_ + 1, options_.dtype(at::kLong)) + rank * (rank_ + 1));
      sizes.emplace_back(size_, rank + 1);
    }
    Tensor input = at::cat(values).set_requires_grad(true);
    const Tensor output = indexed_all_to_all_v(input, indices, sizes);
    expect_same(output.detach(), rows(size_ * (size_ + 1) / 2, rank_ + 1),
                "4, indexed_all_to_all_v");
    expect_same(gradient(output, input), at::full_like(input, -1).detach(),
                "4, gradient of indexed_all_to_all_v");
  }

  const int rank_, size_;
  const at::TensorOptions options_;
  std::vector<int64_t> sizes_;
  int64_t total_ = 0;
};

}  // namespace

void check_vectors(const RankWorld& world) { Vectors(world).run(); }

}  // namespace meshrun
