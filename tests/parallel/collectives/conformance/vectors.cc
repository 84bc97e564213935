// The closed forms that the peers' tests hold, by their numbers: P ranks, r this one, N = sum of
// r + 2.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parallel/base/split.h"
#include "parallel/collectives/collectives.h"
#include "parallel/collectives/fused_all_reduce.h"
#include "parallel/collectives/mappings.h"
#include "parallel/collectives/padding.h"
#include "parallel/collectives/reduce_loss.h"
#include "parallel/collectives/split_tensor.h"
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
      : rank_(world.rank()),
        size_(world.size()),
        options_(at::TensorOptions(world.device()).dtype(at::kFloat)) {
    for (int rank = 0; rank < size_; ++rank) sizes_.push_back(rank + 2);
    total_ = size_ * (size_ + 3) / 2;
  }

  void run() const {
    number_1_scatter_v();
    number_2_gather_v();
    number_3_all_gather_v();
    number_4_indexed_all_to_all_v();
    number_5_reduce_loss();
    number_6_mappings();
    number_7_fused_all_reduce();
    number_8_split_shapes();
    number_12_padding();
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

  void number_5_reduce_loss() const {
    const int last = size_ - 1;
    const std::optional<double> sum = reduce_loss(1.0, 0, /*mean=*/false);
    const std::optional<double> mean = reduce_loss(1.0, last, /*mean=*/true);
    EXPECT_EQ(sum, rank_ == 0 ? std::optional<double>(size_) : std::nullopt) << "vector 5, sum";
    EXPECT_EQ(mean, rank_ == last ? std::optional<double>(1.0) : std::nullopt) << "vector 5, mean";
    // float32 would make it 1.
    const std::optional<double> fine = reduce_loss(1.0 + 1e-9);
    EXPECT_NEAR(fine.value_or(1.0 + 1e-9), 1.0 + 1e-9, 1e-15) << "vector 5, float64";
  }

  void number_6_mappings() const {
    Tensor x = (at::arange(6, options_) + 1).reshape({2, 3}).set_requires_grad(true);
    const Tensor reduced = reduce_from_parallel_region(x * 0.5);
    expect_same(reduced.detach(), x.detach() * 0.5 * size_, "6, reduce_from_parallel_region");
    expect_same(torch::autograd::grad({reduced}, {x}, {at::ones_like(reduced)})[0],
                at::full_like(x, 0.5).detach(), "6, gradient of reduce_from_parallel_region");
    const Tensor copied = copy_to_parallel_region(x);
    expect_same(copied.detach(), x.detach(), "6, copy_to_parallel_region");
    const Tensor flow = x.detach() * 3;
    expect_same(torch::autograd::grad({copied}, {x}, {flow})[0], flow * size_,
                "6, gradient of copy_to_parallel_region");
    expect_same(x.detach(), (at::arange(6, options_) + 1).reshape({2, 3}), "6, the input");
  }

  void number_7_fused_all_reduce() const {
    const auto reduced = [&](c10d::ReduceOp::RedOpType op, std::optional<double> weight = {}) {
      const TensorMap own = {{"first", at::full({2}, rank_ + 1.0, options_)},
                             {"second", at::full({1, 3}, rank_ + 1.0, options_)}};
      return fused_all_reduce(own, {.op = op, .weight = weight});
    };
    const auto expect = [&](const TensorMap& actual, double value, double bound, const char* what) {
      ASSERT_EQ(actual.size(), 2u) << what;
      EXPECT_EQ(actual.at("second").sizes(), (at::IntArrayRef{1, 3})) << what;
      for (const auto& [key, tensor] : actual) {
        const double off = (tensor.cpu() - value).abs().max().item<double>();
        EXPECT_LE(off, bound * value) << "vector 7, " << what << ", " << key << ": " << tensor;
      }
    };
    const double size = size_;
    expect(reduced(c10d::ReduceOp::SUM), size * (size + 1) / 2, 0, "sum");
    expect(reduced(c10d::ReduceOp::AVG), (size + 1) / 2, 0, "average");
    expect(reduced(c10d::ReduceOp::MAX), size, 0, "maximum");
    expect(reduced(c10d::ReduceOp::MIN), 1, 0, "minimum");
    expect(reduced(c10d::ReduceOp::AVG, rank_ + 1.0), (2 * size + 1) / 3, 1e-6, "weighted mean");
  }

  void number_8_split_shapes() const {
    struct Row {
      int64_t size, chunks;
      std::vector<int64_t> pieces;
    };
    for (const Row& row : std::vector<Row>{{9, 4, {2, 2, 2, 3}},
                                           {10, 8, {1, 1, 1, 1, 1, 1, 1, 3}},
                                           {3, 4, {0, 0, 0, 3}},
                                           {2345, 2, {1173, 1172}},
                                           {1025, 4, {257, 257, 257, 254}},
                                           {10, 4, {3, 3, 3, 1}},
                                           {7, 1, {7}}}) {
      EXPECT_EQ(compute_split_shapes(row.size, row.chunks), row.pieces) << "vector 8, " << row.size;
      const Tensor tensor = at::arange(row.size * 2, options_).reshape({2, row.size});
      const Tensors pieces = split_tensor_along_dim(tensor, -1, row.chunks);
      int64_t offset = 0;
      for (int64_t i = 0; i < row.chunks; ++i) {
        const SplitRange range = split_range(row.size, row.chunks, i);
        EXPECT_EQ(range.begin, offset) << "vector 8, " << row.size << " in " << row.chunks;
        EXPECT_EQ(range.size(), row.pieces[i]) << "vector 8, " << row.size << " in " << row.chunks;
        expect_same(pieces.at(i), tensor.narrow(1, offset, row.pieces[i]), "8, pieces");
        offset += row.pieces[i];
      }
    }
  }

  void number_12_padding() const {
    const auto complex = [&](std::vector<double> real, std::vector<double> imaginary) {
      return at::complex(at::tensor(real), at::tensor(imaginary)).to(options_.device());
    };
    const Tensor abc = complex({1, 2, 3}, {10, 20, 30});
    const Tensor to_4 = complex({1, 2, 3, 2}, {10, 20, 30, -20});
    const Tensor to_5 = complex({1, 2, 3, 3, 2}, {10, 20, 30, -30, -20});
    const auto resolved = [](const Tensor& tensor) { return tensor.resolve_conj(); };
    expect_same(resolved(pad_helper(abc, 0, 4, "conj")), to_4, "12, conj to 4");
    expect_same(resolved(pad_helper(abc, -1, 5, "conj")), to_5, "12, conj to 5");
    expect_same(pad_helper(abc, 0, 5), complex({1, 2, 3, 0, 0}, {10, 20, 30, 0, 0}),
                "12, zero to 5");
    // Along another dimension than the last.
    const Tensor columns = at::stack({abc, abc * 2}, 1);
    expect_same(resolved(pad_helper(columns, -2, 5, "conj")), at::stack({to_5, to_5 * 2}, 1),
                "12, conj along dim -2");
    expect_same(truncate_helper(to_5, 0, 3), abc, "12, truncated");
  }

  const int rank_, size_;
  const at::TensorOptions options_;
  std::vector<int64_t> sizes_;
  int64_t total_ = 0;
};

}  // namespace

void check_vectors(const RankWorld& world) { Vectors(world).run(); }

}  // namespace meshrun
