#include "parallel/fft/distributed_fft.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "jobs/geoid/gtx.h"
#include "parallel/base/split.h"
#include "parallel/fft/distributed_fftn.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/gradcheck.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

// On ucx in all worlds; on Gloo, which has another all-to-all below, in one.
void run_in_most_worlds(const std::string& function) {
  run_in_worlds(function, {1, 2, 3, 4}, {"ucx"});
  run_in_worlds(function, {3}, {"gloo"});
}

using at::Tensor;
using Sizes = std::vector<int64_t>;

bool is_whole() { return std::getenv("MESHRUN_TEST_WHOLE") != nullptr; }

uint64_t seed() {
  const char* const given = std::getenv("MESHRUN_TEST_SEED");
  return given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
}

Sizes random_pieces(int64_t extent, int world, std::mt19937_64& random) {
  if (random() % 2 == 0) return compute_split_shapes(extent, world);
  Sizes sizes(static_cast<size_t>(world), 0);
  for (size_t rank = 0; rank + 1 < sizes.size(); ++rank) {
    sizes[rank] = static_cast<int64_t>(random() % static_cast<uint64_t>(extent + 1));
    extent -= sizes[rank];
  }
  sizes.back() = extent;
  return sizes;
}

Tensor piece_of(const Tensor& whole, int64_t dim, const Sizes& sizes, int rank) {
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += sizes[static_cast<size_t>(r)];
  return whole.narrow(dim, begin, sizes[static_cast<size_t>(rank)]);
}

// A case of the matrix: the same on all ranks.
struct Case {
  int64_t height = 0;
  int64_t width = 0;
  int64_t s0 = 0;
  int64_t s1 = 0;
  std::string norm;
  FftLayout layout = FftLayout::kCanonical;
  at::ScalarType dtype = at::kDouble;
  Sizes columns;  // pieces of the field
  Sizes rows;     // of the spectrum
  bool sizes_given = false;
  bool fewest_bytes = false;

  double tolerance() const { return dtype == at::kDouble ? 1e-12 : 1e-5; }
  bool is_paired() const { return layout == FftLayout::kPaired; }
  std::string text() const {
    return c10::str(height, " x ", width, " s ", s0, " x ", s1, " ", norm,
                    is_paired() ? " paired " : " canonical ", c10::toString(dtype), " columns ",
                    at::IntArrayRef(columns), " rows ", at::IntArrayRef(rows));
  }
  // Transform of the unsharded tensor: torch's dims in the order of the layout.
  Tensor forward(const Tensor& x) const {
    if (is_paired()) return at::fft_rfft2(x, Sizes{s1, s0}, Sizes{-1, -2}, norm);
    return at::fft_rfft2(x, Sizes{s0, s1}, Sizes{-2, -1}, norm);
  }
  Tensor inverse(const Tensor& x) const {
    if (is_paired()) return at::fft_irfft2(x, Sizes{s1, s0}, Sizes{-1, -2}, norm);
    return at::fft_irfft2(x, Sizes{s0, s1}, Sizes{-2, -1}, norm);
  }
  FftOptions options(bool is_forward) const {
    FftOptions options{.s = {s0, s1}, .norm = norm, .group = {}, .layout = layout};
    if (sizes_given) options.input_sizes = is_forward ? columns : rows;
    options.output_sizes = is_forward ? rows : columns;
    options.fewest_bytes = fewest_bytes;
    return options;
  }
};

std::vector<Case> cases(int world) {
  const Sizes extents = {1, 2, 3, 5, 8, 16, 45, 90, 97, 180, 720, 721};
  const bool whole = is_whole();
  std::mt19937_64 random(seed() * 4 + static_cast<uint64_t>(world));
  std::vector<Case> all;
  for (const int64_t height : extents) {
    for (const int64_t width : extents) {
      if (!whole && random() % 10 != 0) continue;
      for (const FftLayout layout : {FftLayout::kCanonical, FftLayout::kPaired}) {
        for (const char* norm : {"backward", "ortho", "forward"}) {
          // The large ones once each, unless all are asked for.
          if (!whole && height * width > 20'000 && random() % 3 != 0) continue;
          Case c{height, width, height, width, norm, layout};
          const uint64_t resize = random() % 3;
          if (resize == 1) {
            c.s0 += static_cast<int64_t>(1 + random() % 4);
            c.s1 += static_cast<int64_t>(1 + random() % 4);
          } else if (resize == 2) {
            c.s0 = std::max<int64_t>(1, c.s0 - static_cast<int64_t>(random() % 3));
            c.s1 = std::max<int64_t>(1, c.s1 - static_cast<int64_t>(1 + random() % 3));
          }
          c.dtype = random() % 2 == 0 ? at::kDouble : at::kFloat;
          c.columns = random_pieces(width, world, random);
          c.rows = random_pieces(c.is_paired() ? c.s0 / 2 + 1 : c.s0, world, random);
          c.sizes_given = random() % 2 == 0;
          c.fewest_bytes = random() % 2 == 0;
          all.push_back(std::move(c));
        }
      }
    }
  }
  return all;
}

// In relative L2 against the unsharded tensor's norm, so that small pieces count as what they are.
double error(const Tensor& piece, const Tensor& expected, const Tensor& whole) {
  EXPECT_EQ(piece.sizes(), expected.sizes());
  if (piece.sizes() != expected.sizes()) return 1;
  const double norm = whole.numel() == 0 ? 0 : at::linalg_vector_norm(whole).item<double>();
  const double off =
      piece.numel() == 0 ? 0 : at::linalg_vector_norm(piece - expected).item<double>();
  return norm > 0 ? off / norm : off;
}

Tensor values(at::IntArrayRef shape, at::ScalarType dtype) { return at::randn(shape, dtype); }

const bool kForward = register_rank_function("fft_forward", [] {
  const JoinedWorld world;
  double worst[2] = {0, 0};
  for (const Case& c : cases(world.size)) {
    SCOPED_TRACE(c.text());
    at::manual_seed(c.height * 1000 + c.width);
    const Tensor whole = values({2, c.height, c.width}, c.dtype).requires_grad_();
    const Tensor expected = c.forward(whole);
    const Tensor x = piece_of(whole.detach(), 2, c.columns, world.rank).clone().requires_grad_();
    const Tensor y = distributed_rfft2(x, c.options(true));
    const double off = error(y, piece_of(expected, 1, c.rows, world.rank), expected);
    EXPECT_LE(off, c.tolerance());
    const Tensor cotangent = values(expected.sizes(), expected.scalar_type());
    const Tensor gradient = torch::autograd::grad({expected}, {whole}, {cotangent})[0];
    const Tensor own = torch::autograd::grad(
        {y}, {x}, {piece_of(cotangent, 1, c.rows, world.rank).contiguous()})[0];
    const double off_gradient = error(own, piece_of(gradient, 2, c.columns, world.rank), gradient);
    EXPECT_LE(off_gradient, c.tolerance());
    double& highest = worst[c.dtype == at::kDouble];
    highest = std::max({highest, off, off_gradient});
  }
  if (world.rank == 0) {
    std::printf("rfft2: %zu cases, worst relative L2 error %.2g (f32), %.2g (f64)\n",
                cases(world.size).size(), worst[0], worst[1]);
  }
});

TEST(DistributedFftTest, ForwardAndItsGradientEqualTheUnshardedTransform) {
  run_in_most_worlds("fft_forward");
}

const bool kInverse = register_rank_function("fft_inverse", [] {
  const JoinedWorld world;
  double worst[2] = {0, 0};
  for (const Case& c : cases(world.size)) {
    SCOPED_TRACE(c.text());
    at::manual_seed(c.height * 1000 + c.width + 1);
    // Any spectrum, not only a real field's; its extents are those of the field, s another one.
    const Sizes shape =
        c.is_paired() ? Sizes{2, c.height / 2 + 1, c.width} : Sizes{2, c.height, c.width / 2 + 1};
    Case own = c;
    std::mt19937_64 random(static_cast<uint64_t>(c.height * 7 + c.width));
    own.rows = random_pieces(shape[1], world.size, random);
    own.columns = random_pieces(c.s1, world.size, random);
    const Tensor whole = values(shape, at::toComplexType(c.dtype)).requires_grad_();
    const Tensor expected = c.inverse(whole);
    const Tensor x = piece_of(whole.detach(), 1, own.rows, world.rank).clone().requires_grad_();
    const Tensor y = distributed_irfft2(x, own.options(false));
    const double off = error(y, piece_of(expected, 2, own.columns, world.rank), expected);
    EXPECT_LE(off, c.tolerance());
    const Tensor cotangent = values(expected.sizes(), expected.scalar_type());
    const Tensor gradient = torch::autograd::grad({expected}, {whole}, {cotangent})[0];
    const Tensor got = torch::autograd::grad(
        {y}, {x}, {piece_of(cotangent, 2, own.columns, world.rank).contiguous()})[0];
    const double off_gradient = error(got, piece_of(gradient, 1, own.rows, world.rank), gradient);
    EXPECT_LE(off_gradient, c.tolerance());
    double& highest = worst[c.dtype == at::kDouble];
    highest = std::max({highest, off, off_gradient});
  }
  if (world.rank == 0) {
    std::printf("irfft2: %zu cases, worst relative L2 error %.2g (f32), %.2g (f64)\n",
                cases(world.size).size(), worst[0], worst[1]);
  }
});

TEST(DistributedFftTest, InverseAndItsGradientEqualTheUnshardedTransform) {
  run_in_most_worlds("fft_inverse");
}

const bool kRoundTrip = register_rank_function("fft_round_trip", [] {
  const JoinedWorld world;
  for (const Case& c : cases(world.size)) {
    SCOPED_TRACE(c.text());
    at::manual_seed(3);
    const Tensor whole = values({c.height, c.width}, c.dtype);
    const Tensor x = piece_of(whole, 1, c.columns, world.rank);
    FftOptions options{.norm = c.norm, .group = {}, .layout = c.layout};
    const Tensor spectrum = distributed_rfft2(x, options);
    options.s = {c.height, c.width};
    options.output_sizes = c.columns;
    EXPECT_LE(error(distributed_irfft2(spectrum, options), x, whole), c.tolerance());
  }
});

TEST(DistributedFftTest, InverseUndoesForward) { run_in_most_worlds("fft_round_trip"); }

const bool kModes = register_rank_function("fft_modes", [] {
  const JoinedWorld world;
  for (const auto& [height, width, m0, m1] :
       {std::array<int64_t, 4>{16, 12, 3, 4}, {9, 7, 5, 3}, {8, 8, 5, 4}, {45, 90, 12, 12}}) {
    SCOPED_TRACE(c10::str(height, " x ", width, " modes ", m0, " ", m1));
    at::manual_seed(5);
    const Tensor whole = at::randn({3, 2, height, width}, at::kDouble).requires_grad_();
    const Sizes columns = compute_split_shapes(width, world.size);
    const Sizes rows = compute_split_shapes(m0, world.size);
    const Tensor all = at::fft_rfft2(whole, std::nullopt, Sizes{-1, -2}, "ortho").narrow(-2, 0, m0);
    const Tensor kept = at::cat({all.narrow(-1, 0, m1), all.narrow(-1, width - m1, m1)}, -1);
    const Tensor x = piece_of(whole.detach(), 3, columns, world.rank).clone().requires_grad_();
    FftOptions options{.group = {}, .layout = FftLayout::kPaired, .modes = {m0, m1}};
    const Tensor y = distributed_rfft2(x, options);
    EXPECT_LE(error(y, piece_of(kept, 2, rows, world.rank), kept), 1e-12);

    // Back, zeros where nothing is kept; and the gradient of both.
    const Tensor padded = at::zeros_like(all.detach());
    Tensor full =
        at::cat({kept.narrow(-1, 0, m1), at::zeros({3, 2, m0, width - 2 * m1}, kept.options()),
                 kept.narrow(-1, m1, m1)},
                -1);
    full = at::constant_pad_nd(full, {0, 0, 0, height / 2 + 1 - m0});
    const Tensor expected = at::fft_irfft2(full, Sizes{width, height}, Sizes{-1, -2}, "ortho");
    options.s = {height, width};
    const Tensor z = distributed_irfft2(y, options);
    EXPECT_LE(error(z, piece_of(expected, 3, columns, world.rank), expected), 1e-12);
    const Tensor cotangent = at::randn(expected.sizes(), at::kDouble);
    const Tensor gradient = torch::autograd::grad({expected}, {whole}, {cotangent})[0];
    const Tensor own =
        torch::autograd::grad({z}, {x}, {piece_of(cotangent, 3, columns, world.rank)})[0];
    EXPECT_LE(error(own, piece_of(gradient, 3, columns, world.rank), gradient), 1e-12);
  }
});

TEST(DistributedFftTest, ModesAreWhatANeuralOperatorKeeps) { run_in_most_worlds("fft_modes"); }

const bool kDims = register_rank_function("fft_dims", [] {
  const JoinedWorld world;
  at::manual_seed(6);
  // Batches of any rank, dims in any order.
  const Tensor whole = at::randn({5, 2, 7, 3}, at::kDouble);
  const Sizes pieces = compute_split_shapes(5, world.size);
  const Sizes rows = compute_split_shapes(7, world.size);
  const Tensor expected = at::fft_rfft2(whole, std::nullopt, Sizes{2, 0}, "ortho");
  const Tensor x = piece_of(whole, 0, pieces, world.rank);
  const Tensor y = distributed_rfft2(x, {.dim = {2, -4}, .group = {}});
  EXPECT_LE(error(y, piece_of(expected, 2, rows, world.rank), expected), 1e-12);
  const Tensor again = distributed_irfft2(y, {.s = {std::nullopt, 5}, .dim = {2, 0}, .group = {}});
  EXPECT_LE(error(again, x, whole), 1e-12);
  // Without a batch, and with an empty one.
  const Tensor flat = at::randn({4, 6}, at::kDouble);
  const Tensor own = piece_of(flat, 1, compute_split_shapes(6, world.size), world.rank);
  const Tensor spectrum = at::fft_rfft2(flat, std::nullopt, Sizes{0, 1}, "ortho");
  EXPECT_LE(error(distributed_rfft2(own, {.group = {}}),
                  piece_of(spectrum, 0, compute_split_shapes(4, world.size), world.rank), spectrum),
            1e-12);
  EXPECT_EQ(distributed_rfft2(own.expand({0, 4, own.size(1)}), {.group = {}}).size(0), 0);
});

TEST(DistributedFftTest, TakesAnyDimensionsAndBatches) {
  run_in_worlds("fft_dims", {1, 3}, {"ucx"});
}

// Three dimensions: torch's own order of them.
const bool kSlabs = register_rank_function("fft_slabs", [] {
  const JoinedWorld world;
  for (const auto& [depth, height, width] :
       {std::array<int64_t, 3>{6, 4, 5}, {3, 7, 4}, {1, 2, 1}, {8, 8, 8}}) {
    for (const char* norm : {"backward", "ortho", "forward"}) {
      for (const int64_t resize : {-1, 0, 2}) {
        const Sizes s = {std::max<int64_t>(1, depth + resize),
                         std::max<int64_t>(1, height + resize),
                         std::max<int64_t>(1, width + resize)};
        SCOPED_TRACE(c10::str(depth, " x ", height, " x ", width, " s ", at::IntArrayRef(s), norm));
        at::manual_seed(11);
        const Tensor whole = at::randn({2, depth, height, width}, at::kDouble).requires_grad_();
        const Tensor expected = at::fft_rfftn(whole, s, Sizes{1, 2, 3}, norm);
        const Sizes columns = compute_split_shapes(height, world.size);
        const Sizes rows = compute_split_shapes(s[0], world.size);
        const Tensor x = piece_of(whole.detach(), 2, columns, world.rank).clone().requires_grad_();
        const FftOptions options{
            .s = {s[0], s[1], s[2]}, .dim = {-3, -2, -1}, .norm = norm, .group = {}};
        const Tensor y = distributed_rfftn(x, options);
        EXPECT_LE(error(y, piece_of(expected, 1, rows, world.rank), expected), 1e-12);
        const Tensor cotangent = at::randn(expected.sizes(), expected.options());
        const Tensor gradient = torch::autograd::grad({expected}, {whole}, {cotangent}, true)[0];
        const Tensor own = torch::autograd::grad(
            {y}, {x}, {piece_of(cotangent, 1, rows, world.rank).contiguous()}, true)[0];
        EXPECT_LE(error(own, piece_of(gradient, 2, columns, world.rank), gradient), 1e-12);

        const Tensor back = at::fft_irfftn(expected.detach(), s, Sizes{1, 2, 3}, norm);
        const Tensor z = distributed_irfftn(y.detach(), options);
        EXPECT_LE(
            error(z, piece_of(back, 2, compute_split_shapes(s[1], world.size), world.rank), back),
            1e-12);
      }
    }
  }
  // Low modes alone.
  const Tensor whole = at::randn({2, 6, 8, 5}, at::kDouble);
  const Tensor all = at::fft_rfftn(whole, std::nullopt, Sizes{1, 2, 3}, "ortho").narrow(3, 0, 2);
  Tensor kept = at::cat({all.narrow(1, 0, 2), all.narrow(1, 4, 2)}, 1);
  kept = at::cat({kept.narrow(2, 0, 3), kept.narrow(2, 5, 3)}, 2);
  const Sizes columns = compute_split_shapes(8, world.size);
  FftOptions options{.dim = {1, 2, 3}, .group = {}, .modes = {2, 3, 2}};
  const Tensor y = distributed_rfftn(piece_of(whole, 2, columns, world.rank), options);
  EXPECT_LE(error(y, piece_of(kept, 1, compute_split_shapes(4, world.size), world.rank), kept),
            1e-12);
  options.s = {6, 8, 5};
  const Tensor z = distributed_irfftn(y, options);
  const auto all_waves = [](const Tensor& low, int64_t dim, int64_t extent) {
    const int64_t modes = low.size(dim) / 2;
    Sizes between = low.sizes().vec();
    between[static_cast<size_t>(dim)] = extent - 2 * modes;
    return at::cat({low.narrow(dim, 0, modes), at::zeros(between, low.options()),
                    low.narrow(dim, modes, modes)},
                   dim);
  };
  const Tensor back = at::fft_irfftn(all_waves(all_waves(kept, 1, 6), 2, 8), Sizes{6, 8, 5},
                                     Sizes{1, 2, 3}, "ortho");
  EXPECT_LE(error(z, piece_of(back, 2, columns, world.rank), back), 1e-12);
  expect_error_on_all_ranks(
      [&] {
        distributed_rfftn(at::ones({2, 2, 2}), {.dim = {0, 1, 1}, .group = {}});
      },
      "twice");
  expect_error_on_all_ranks(
      [&] {
        distributed_rfftn(at::ones({2, 2, 2}), {.dim = {0, 1}, .group = {}});
      },
      "needs 3");
});

TEST(DistributedFftTest, SlabsEqualTheUnshardedTransform) { run_in_most_worlds("fft_slabs"); }

const bool kGradcheck = register_rank_function("fft_gradcheck", [] {
  const JoinedWorld world;
  const auto group = DistributedManager::get().world();
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{3, 4}, {4, 3}, {2, 5}}) {
    for (const FftLayout layout : {FftLayout::kCanonical, FftLayout::kPaired}) {
      for (const char* norm : {"backward", "ortho", "forward"}) {
        SCOPED_TRACE(c10::str(height, " x ", width, " ", norm, " ", static_cast<int>(layout)));
        at::manual_seed(7 + world.rank);
        const Sizes columns = compute_split_shapes(width, world.size);
        const Tensor x = at::randn({height, columns[static_cast<size_t>(world.rank)]}, at::kDouble)
                             .requires_grad_();
        const RankFunction forward = [&](const std::vector<Tensor>& inputs) {
          return std::vector<Tensor>{distributed_rfft2(
              inputs[0], {.norm = norm, .group = {}, .layout = layout, .input_sizes = columns})};
        };
        EXPECT_EQ(gradcheck(group, forward, {x}), "");
        const Tensor spectrum = distributed_rfft2(
            x.detach(), {.norm = norm, .group = {}, .layout = layout, .input_sizes = columns});
        const Tensor start = spectrum.detach().clone().requires_grad_();
        const RankFunction inverse = [&](const std::vector<Tensor>& inputs) {
          return std::vector<Tensor>{distributed_irfft2(
              inputs[0], {.s = {height, width}, .norm = norm, .group = {}, .layout = layout})};
        };
        EXPECT_EQ(gradcheck(group, inverse, {start}), "");
      }
    }
  }
});

TEST(DistributedFftTest, GradientsAreThoseOfDifferences) {
  run_in_worlds("fft_gradcheck", {1, 2}, {"ucx"});
}

const bool kSecond = register_rank_function("fft_second", [] {
  const JoinedWorld world;
  const auto group = DistributedManager::get().world();
  at::manual_seed(8 + world.rank);
  const Sizes columns = compute_split_shapes(3, world.size);
  for (const FftLayout layout : {FftLayout::kCanonical, FftLayout::kPaired}) {
    const Tensor x =
        at::randn({2, columns[static_cast<size_t>(world.rank)]}, at::kDouble).requires_grad_();
    // Not linear, so that second derivatives are not zero.
    const RankFunction function = [&](const std::vector<Tensor>& inputs) {
      const Tensor y =
          distributed_rfft2(inputs[0], {.group = {}, .layout = layout, .input_sizes = columns});
      return std::vector<Tensor>{
          distributed_irfft2(y * y, {.s = {2, 3}, .group = {}, .layout = layout})};
    };
    EXPECT_EQ(gradgradcheck(group, function, {x}), "");
  }
});

TEST(DistributedFftTest, SecondDerivativesAreRight) {
  run_in_worlds("fft_second", {1, 2}, {"ucx"});
}

const bool kClosedForms = register_rank_function("fft_closed_forms", [] {
  const JoinedWorld world;
  const double pi = std::acos(-1.0);
  for (const auto& [height, width, a, b] :
       {std::array<int64_t, 4>{8, 12, 3, 5}, {9, 15, 2, 4}, {8, 12, 3, 0}, {8, 12, 3, 6}}) {
    const Tensor rows = at::arange(height, at::kDouble).unsqueeze(1) * (2 * pi * a / height);
    const Tensor columns = at::arange(width, at::kDouble) * (2 * pi * b / width);
    const Tensor wave = at::cos(rows + columns);
    const Sizes pieces = compute_split_shapes(width, world.size);
    const Sizes kept = compute_split_shapes(height, world.size);
    const Tensor y = distributed_rfft2(piece_of(wave, 1, pieces, world.rank), {.group = {}});
    Tensor expected = at::zeros({height, width / 2 + 1}, at::kComplexDouble);
    const double peak = std::sqrt(static_cast<double>(height * width)) / 2;
    expected.index_put_({at::tensor(a), at::tensor(b)},
                        at::scalar_tensor(peak, at::kComplexDouble));
    if (b == 0 || 2 * b == width) {
      expected.index_put_({at::tensor(height - a), at::tensor(b)},
                          at::scalar_tensor(peak, at::kComplexDouble));
    }
    EXPECT_LE(error(y, piece_of(expected, 0, kept, world.rank), expected), 1e-12);

    Tensor delta = at::zeros({height, width}, at::kDouble);
    delta[0][0] = 1;
    const Tensor flat = distributed_rfft2(piece_of(delta, 1, pieces, world.rank), {.group = {}});
    const Tensor constant = at::full_like(expected, 0.5 / peak);
    EXPECT_LE(error(flat, piece_of(constant, 0, kept, world.rank), constant), 1e-12);
  }
});

TEST(DistributedFftTest, PlaneWavesAndDeltasHaveTheirClosedForms) {
  run_in_most_worlds("fft_closed_forms");
}

// A batch so large that it travels in pieces.
const bool kChunks = register_rank_function("fft_chunks", [] {
  const JoinedWorld world;
  const int64_t planes = 18;
  at::manual_seed(12);
  const Tensor whole = at::randn({planes, 720, 1440}, at::kDouble);
  const Sizes columns = compute_split_shapes(1440, world.size);
  for (const FftLayout layout : {FftLayout::kCanonical, FftLayout::kPaired}) {
    const bool paired = layout == FftLayout::kPaired;
    const Tensor x = piece_of(whole, 2, columns, world.rank);
    DistributedRFFT2 forward({.group = {}, .layout = layout});
    const Tensor y = forward(x);
    EXPECT_NE(forward.describe().find("2 chunks"), std::string::npos) << forward.describe();
    // Planes of each piece, the first and last of them.
    for (const int64_t plane : {0, 8, 9, 17}) {
      const Tensor expected =
          at::fft_rfft2(whole[plane], std::nullopt, paired ? Sizes{1, 0} : Sizes{0, 1}, "ortho");
      const Sizes rows = compute_split_shapes(expected.size(0), world.size);
      EXPECT_LE(error(y[plane], piece_of(expected, 0, rows, world.rank), expected), 1e-12) << plane;
    }
    const Tensor again = distributed_irfft2(y, {.s = {720, 1440}, .group = {}, .layout = layout});
    EXPECT_LE(error(again, x, whole), 1e-12);
  }
});

TEST(DistributedFftTest, LargeBatchesTravelInPieces) {
  run_in_worlds("fft_chunks", {2}, {"ucx", "gloo"});
}

// Real data: the geoid's 721 x 1440 heights.
const bool kGeoid = register_rank_function("fft_geoid", [] {
  const JoinedWorld world;
  const geoid::GtxGrid grid = geoid::read_gtx(geoid::find_egm96("/proc/self/exe"));
  const Tensor whole =
      at::from_blob(const_cast<float*>(grid.metres.data()), {grid.rows, grid.columns}).clone();
  EXPECT_EQ(grid.rows, 721);
  const Sizes pieces = compute_split_shapes(grid.columns, world.size);
  for (const FftLayout layout : {FftLayout::kCanonical, FftLayout::kPaired}) {
    const bool paired = layout == FftLayout::kPaired;
    const Tensor expected =
        at::fft_rfft2(whole, std::nullopt, paired ? Sizes{1, 0} : Sizes{0, 1}, "ortho");
    const Tensor x = piece_of(whole, 1, pieces, world.rank);
    const Tensor y = distributed_rfft2(x, {.group = {}, .layout = layout});
    const Sizes rows = compute_split_shapes(expected.size(0), world.size);
    EXPECT_LE(error(y, piece_of(expected, 0, rows, world.rank), expected), 1e-5);
    const Tensor again =
        distributed_irfft2(y, {.s = {grid.rows, grid.columns}, .group = {}, .layout = layout});
    EXPECT_LE(error(again, x, whole), 1e-5);
  }
});

TEST(DistributedFftTest, TransformsTheGeoid) { run_in_worlds("fft_geoid", {2, 4}, {"ucx"}); }

const bool kClasses = register_rank_function("fft_classes", [] {
  const JoinedWorld world;
  DistributedRFFT2 forward({.group = {}});
  DistributedIRFFT2 inverse({.s = {6, 9}, .group = {}});
  at::manual_seed(9);
  const Sizes pieces = compute_split_shapes(9, world.size);
  for (const int64_t batch : {1, 4}) {
    const Tensor whole = at::randn({batch, 6, 9});
    const Tensor x = piece_of(whole, 2, pieces, world.rank);
    EXPECT_LE(error(inverse(forward(x)), x, whole), 1e-5);
  }
  EXPECT_NE(forward.describe().find("4 transforms of 6 x 9, canonical"), std::string::npos)
      << forward.describe();
  EXPECT_NE(inverse.describe().find("bytes to other ranks"), std::string::npos);
  if (world.size > 1) {
    // The plan stays what it is.
    const int64_t own = pieces[static_cast<size_t>(world.rank)];
    expect_error_on_all_ranks(
        [&] {
          forward(at::ones({6, world.rank == 1 ? own + 1 : own}));
        },
        "first call");
  }
});

TEST(DistributedFftTest, ClassFormsKeepTheirPlan) { run_in_worlds("fft_classes", {1, 2}, {"ucx"}); }

const bool kWrong = register_rank_function("fft_wrong", [] {
  const JoinedWorld world;
  const bool odd = world.rank == 1;
  const Tensor x = at::ones({4, 2});
  const Tensor spectrum = at::ones({2, 3}, at::kComplexFloat);
  const auto expect = [&](const std::function<void()>& call, const char* part) {
    expect_error_on_all_ranks(call, part);
  };
  const GroupArgument group;
  expect([&] { distributed_rfft2(odd ? spectrum : x, {.group = group}); }, "takes float32");
  expect([&] { distributed_irfft2(odd ? x : spectrum, {.group = group}); }, "takes complex64");
  expect([&] { distributed_rfft2(odd ? Tensor() : x, {.group = group}); }, "undefined");
  expect([&] { distributed_rfft2(x, {.s = {4}, .group = group}); }, "s has 1 elements");
  expect([&] { distributed_rfft2(x, {.s = {4, 0}, .group = group}); }, "s holds 0");
  expect([&] { distributed_rfft2(x, {.dim = {0}, .group = group}); }, "dim has 1");
  expect([&] { distributed_rfft2(x, {.dim = {0, 0}, .group = group}); }, "twice");
  expect([&] { distributed_rfft2(x, {.dim = {0, odd ? 2 : 1}, .group = group}); }, "out of range");
  expect([&] { distributed_rfft2(x, {.norm = odd ? "orto" : "ortho", .group = group}); },
         "norm is");
  expect([&] { distributed_rfft2(x, {.norm = odd ? "forward" : "ortho", .group = group}); },
         "disagree");
  expect([&] { distributed_rfft2(x, {.group = group, .modes = {2, 1}}); }, "kPaired");
  expect(
      [&] {
        distributed_rfft2(x, {.group = group, .layout = FftLayout::kPaired, .modes = {4, 1}});
      },
      "at most");
  expect(
      [&] {
        distributed_irfft2(spectrum,
                           {.group = group, .layout = FftLayout::kPaired, .modes = {4, 1}});
      },
      "needs s");
  const Sizes twos(static_cast<size_t>(world.size), 2);
  Sizes wrong = twos;
  wrong[1] = 3;
  expect([&] { distributed_rfft2(x, {.group = group, .input_sizes = wrong}); }, "input_sizes");
  expect([&] { distributed_rfft2(x, {.group = group, .output_sizes = wrong}); }, "output_sizes");
  expect([&] { distributed_rfft2(x, {.s = {odd ? 4 : 5, 4}, .group = group}); }, "disagree");
  // Pieces with equal extents.
  const Tensor square = at::ones({4, 4}), cube = at::ones({4, 4, 4});
  expect(
      [&] {
        distributed_rfft2(square, {.dim = {odd ? 1 : 0, odd ? 0 : 1}, .group = group});
      },
      "dim [-1, -2]");
  expect([&] { distributed_rfft2(square, {.norm = odd ? "forward" : "ortho", .group = group}); },
         "norm \"forward\"");
  expect(
      [&] {
        distributed_rfftn(cube, {.dim = {odd ? 2 : 0, 1, odd ? 0 : 2}, .group = group});
      },
      "dim [-1, -2, -3]");
  expect(
      [&] {
        distributed_rfftn(cube, {.dim = {0, 1, 2}, .group = group, .modes = {1, odd ? 1 : 2, 1}});
      },
      "modes [1, 1, 1]");
  // Nothing is left of all that.
  EXPECT_EQ(distributed_rfft2(x, {.group = group}).size(-1), world.size + 1);
});

TEST(DistributedFftTest, WrongCallsAreErrorsOnEveryRank) {
  run_in_worlds("fft_wrong", {2, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
