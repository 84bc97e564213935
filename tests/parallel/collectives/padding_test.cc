#include "parallel/collectives/padding.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/collectives/split_tensor.h"

namespace meshrun {
namespace {

using at::Tensor;
using c10::complex;

Tensor numbers(std::vector<double> values) { return at::tensor(values, at::kDouble); }

Tensor spectrum() { return at::complex(numbers({1, 2, 3}), numbers({0.5, -1, 4})); }

TEST(PaddingTest, ZerosGoToTheEndOfTheDimensionAskedFor) {
  const Tensor x = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_TRUE(at::equal(pad_helper(x, 1, 5), at::constant_pad_nd(x, {0, 2})));
  EXPECT_TRUE(at::equal(pad_helper(x, -1, 5), at::constant_pad_nd(x, {0, 2})));
  EXPECT_TRUE(at::equal(pad_helper(x, 0, 3), at::constant_pad_nd(x, {0, 0, 0, 1})));
  EXPECT_TRUE(at::equal(pad_helper(x, -2, 3), at::constant_pad_nd(x, {0, 0, 0, 1})));
  EXPECT_TRUE(at::equal(pad_helper(x, 0, 2), x));
  EXPECT_EQ(pad_helper(at::empty({0, 2}, at::kInt), 0, 2).abs().sum().item<int64_t>(), 0);
}

TEST(PaddingTest, ConjugatesCompleteTheSpectrumOfRealData) {
  const Tensor x = spectrum();
  const Tensor mirrored = x.conj().resolve_conj();
  EXPECT_TRUE(at::equal(pad_helper(x, 0, 4, "conj"), at::cat({x, mirrored.narrow(0, 1, 1)})));
  EXPECT_TRUE(
      at::equal(pad_helper(x, 0, 5, "conj"), at::cat({x, mirrored.narrow(0, 1, 2).flip(0)})));
  // What a transform of real data has indeed, of odd and of even length.
  for (const int64_t length : {5, 6}) {
    const Tensor full = at::fft_fft(at::arange(length, at::kDouble).square());
    const Tensor half = truncate_helper(full, 0, length / 2 + 1);
    EXPECT_TRUE(at::allclose(pad_helper(half, 0, length, "conj"), full)) << length;
  }
}

TEST(PaddingTest, ConjugatesGoAlongAnyDimension) {
  const Tensor x = at::complex(at::randn({3, 2}), at::randn({3, 2}));
  const Tensor padded = pad_helper(x, -2, 5, "conj");
  for (int64_t column = 0; column < 2; ++column) {
    EXPECT_TRUE(at::equal(padded.select(1, column),
                          pad_helper(x.select(1, column).contiguous(), 0, 5, "conj")));
  }
  EXPECT_TRUE(at::equal(pad_helper(numbers({1, 2, 3}), 0, 5, "conj"), numbers({1, 2, 3, 3, 2})));
}

TEST(PaddingTest, GradientsAreTheAdjoint) {
  const Tensor weights = numbers({1, 2, 3, 4, 5});
  Tensor x = numbers({1, 2, 3}).requires_grad_();
  (pad_helper(x, 0, 5) * weights).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), numbers({1, 2, 3})));

  x = numbers({1, 2, 3}).requires_grad_();
  (pad_helper(x, 0, 5, "conj") * weights).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), numbers({1, 2 + 5, 3 + 4})));

  Tensor z = spectrum().requires_grad_();
  (at::imag(pad_helper(z, 0, 5, "conj")) * weights).sum().backward();
  EXPECT_TRUE(at::equal(at::imag(z.grad()), numbers({1, 2 - 5, 3 - 4})));
  EXPECT_TRUE(at::equal(at::real(z.grad()), numbers({0, 0, 0})));

  x = numbers({1, 2, 3}).requires_grad_();
  (truncate_helper(x, 0, 2) * numbers({7, 8})).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), numbers({7, 8, 0})));
}

TEST(PaddingTest, WrongArgumentsAreErrors) {
  const Tensor x = at::ones({3, 2});
  EXPECT_THROW(pad_helper(x, 0, 2), c10::ValueError);
  EXPECT_THROW(pad_helper(x, 0, 4, "reflect"), c10::ValueError);
  EXPECT_THROW(pad_helper(x, 0, 3, "reflect"), c10::ValueError);
  EXPECT_THROW(pad_helper(x, 0, 6, "conj"), c10::ValueError);
  EXPECT_THROW(pad_helper(Tensor(), 0, 6), c10::ValueError);
  EXPECT_THROW(pad_helper(x, 2, 4), c10::IndexError);
  EXPECT_THROW(pad_helper(x, -3, 4), c10::IndexError);
  EXPECT_THROW(pad_helper(at::ones({}), 0, 4), c10::IndexError);
  EXPECT_THROW(truncate_helper(x, 0, 4), c10::ValueError);
  EXPECT_THROW(truncate_helper(x, 0, -1), c10::ValueError);
  EXPECT_THROW(truncate_helper(x, 2, 1), c10::IndexError);
}

TEST(PaddingTest, TruncationKeepsTheBeginning) {
  const Tensor x = at::arange(6, at::kFloat).view({2, 3});
  const Tensor cut = truncate_helper(x, -1, 2);
  EXPECT_TRUE(at::equal(cut, x.narrow(1, 0, 2)));
  EXPECT_TRUE(cut.is_contiguous());
  EXPECT_TRUE(at::equal(truncate_helper(x, 0, 2), x));
  EXPECT_EQ(truncate_helper(x, 0, 0).numel(), 0);
}

TEST(SplitTensorTest, PiecesAreViewsByTheOneSplitRule) {
  struct Case {
    int64_t size, chunks;
    std::vector<int64_t> extents;
  };
  for (const Case& c : {Case{9, 4, {2, 2, 2, 3}}, Case{10, 8, {1, 1, 1, 1, 1, 1, 1, 3}},
                        Case{3, 4, {0, 0, 0, 3}}, Case{2345, 2, {1173, 1172}},
                        Case{1025, 4, {257, 257, 257, 254}}, Case{10, 4, {3, 3, 3, 1}}}) {
    const Tensor x = at::arange(2 * c.size).view({2, c.size});
    const std::vector<Tensor> pieces = split_tensor_along_dim(x, -1, c.chunks);
    ASSERT_EQ(pieces.size(), c.extents.size());
    for (size_t i = 0; i < pieces.size(); ++i) EXPECT_EQ(pieces[i].size(1), c.extents[i]);
    EXPECT_TRUE(at::equal(at::cat(pieces, 1), x));
    EXPECT_TRUE(pieces.back().is_alias_of(x));
  }
}

TEST(SplitTensorTest, GradientsGoToTheirPieces) {
  Tensor x = at::ones({5, 2}).requires_grad_();
  const std::vector<Tensor> pieces = split_tensor_along_dim(x, 0, 3);
  (pieces[0].sum() + 3 * pieces[2].sum()).backward();
  EXPECT_TRUE(at::equal(x.grad().select(1, 0), at::tensor({1., 1., 0., 0., 3.}, at::kFloat)));
}

TEST(SplitTensorTest, WrongArgumentsAreErrors) {
  const Tensor x = at::ones({3, 2});
  EXPECT_THROW(split_tensor_along_dim(x, 2, 2), c10::IndexError);
  EXPECT_THROW(split_tensor_along_dim(x, -3, 2), c10::IndexError);
  EXPECT_THROW(split_tensor_along_dim(at::ones({}), 0, 2), c10::IndexError);
  EXPECT_THROW(split_tensor_along_dim(x, 0, 0), c10::ValueError);
  EXPECT_THROW(split_tensor_along_dim(Tensor(), 0, 1), c10::ValueError);
}

}  // namespace
}  // namespace meshrun
