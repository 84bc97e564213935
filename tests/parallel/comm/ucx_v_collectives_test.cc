// The ucx backend's collectives on pieces of uneven size: real rank processes, every one against
// slices taken in one process.
#include <algorithm>
#include <numeric>

#include "parallel/base/collective_errors.h"
#include "tests/parallel/comm/ucx_world.h"
#include "tests/parallel/support/v_calls.h"
#include "third_party/libtorch/shims.h"

namespace meshrun {
namespace {

using Sizes = std::vector<int64_t>;

int64_t sum_of_sizes(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

// Every rank's tensor of the same shape.
Tensor tensor_of(int rank, std::vector<int64_t> shape, at::ScalarType type) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return content(rank, 0, count, type).view(shape);
}

Tensor slice(const Tensor& tensor, const Sizes& sizes, int64_t dim, int rank) {
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
  return tensor.narrow(dim, begin, sizes[static_cast<size_t>(rank)]);
}

struct Case {
  const World& world;
  at::ScalarType type;
  std::vector<int64_t> extents;  // beside dim
  int64_t dim;
  Sizes sizes;
  // How a tensor lies: contiguous, or a slice of a larger one.
  bool strided = false;

  std::vector<int64_t> shape(int64_t extent) const {
    std::vector<int64_t> all = extents;
    all[static_cast<size_t>(dim)] = extent;
    return all;
  }
  Tensor whole(int rank) const { return tensor_of(rank, shape(sum_of_sizes(sizes)), type); }
  Tensor laid_out(const Tensor& tensor) const {
    if (!strided) return tensor.contiguous();
    std::vector<int64_t> larger = tensor.sizes().vec();
    larger.back() += 3;
    return at::zeros(larger, tensor.options()).narrow(-1, 1, tensor.size(-1)).copy_(tensor);
  }
  Tensor unwritten(std::vector<int64_t> its_shape) const {
    return laid_out(at::full(its_shape, type == at::kBool ? 1 : 77, type));
  }
  int64_t own() const { return sizes[static_cast<size_t>(world.rank)]; }

  void expect_same(const Tensor& actual, const Tensor& expected, const char* what) const {
    EXPECT_TRUE(at::equal(actual, expected))
        << what << " of " << c10::toString(type) << ", sizes " << c10::IntArrayRef(sizes)
        << ", dim " << dim << (strided ? ", strided" : "") << ", rank " << world.rank << ":\n"
        << actual.sizes() << "\n"
        << (actual.numel() < 100 ? actual : Tensor()) << "\ninstead of\n"
        << (expected.numel() < 100 ? expected : Tensor());
  }

  void run() const {
    all_gather();
    reduce_scatter();
    for (int root = 0; root < world.size; ++root) gather_and_scatter(root);
    all_to_all();
  }

  void all_gather() const {
    const Tensor piece = laid_out(slice(whole(0), sizes, dim, world.rank));
    const Tensor output = unwritten(shape(sum_of_sizes(sizes)));
    all_gather_v(world.backend(), output, piece, sizes, dim, {})->wait();
    expect_same(output, whole(0), "all_gather_v");
    if (strided) return;
    // Where the own piece is already where it belongs.
    const Tensor in_place = unwritten(shape(sum_of_sizes(sizes)));
    const Tensor own_slice = slice(in_place, sizes, dim, world.rank).copy_(piece);
    all_gather_v(world.backend(), in_place, own_slice, sizes, dim, {})->wait();
    expect_same(in_place, whole(0), "all_gather_v in place");
  }

  void reduce_scatter() const {
    const Tensor output = unwritten(shape(own()));
    reduce_scatter_v(world.backend(), output, laid_out(whole(world.rank)), sizes, dim, {})->wait();
    Tensors of_ranks;
    for (int rank = 0; rank < world.size; ++rank) {
      of_ranks.push_back(slice(whole(rank), sizes, dim, world.rank));
    }
    expect_same(output, sum_in_rank_order(of_ranks), "reduce_scatter_v");
  }

  void gather_and_scatter(int root) const {
    const Tensor piece = laid_out(slice(whole(0), sizes, dim, world.rank));
    const bool is_root = world.rank == root;
    const Tensor gathered = is_root ? unwritten(shape(sum_of_sizes(sizes))) : Tensor();
    gather_v(world.backend(), gathered, piece, sizes, dim, root, {})->wait();
    if (is_root) expect_same(gathered, whole(0), "gather_v");
    const Tensor output = unwritten(shape(own()));
    scatter_v(world.backend(), output, is_root ? laid_out(whole(0)) : Tensor(), sizes, dim, root,
              {})
        ->wait();
    expect_same(output, piece, "scatter_v");
  }

  // Rank r has sizes[r] slices of every dim beside `dim`... to rank j go j + 1 of them, or none.
  void all_to_all() const {
    for (size_t other = 0; other < extents.size(); ++other) {
      const auto output_dim = static_cast<int64_t>(other);
      // The transpose: cut along dim, joined along output_dim, which rank r has `sizes[r]` of.
      if (output_dim != dim) {
        constexpr int64_t kMost = 16;  // of the third dim: two are as long as all sizes together
        std::vector<int64_t> from;
        for (const int64_t extent : extents) from.push_back(std::min(extent, kMost));
        from[static_cast<size_t>(dim)] = from[other] = sum_of_sizes(sizes);
        const Tensor all = tensor_of(5, from, type);
        const Tensor input = laid_out(slice(all, sizes, output_dim, world.rank));
        const Tensor expected = slice(all, sizes, dim, world.rank);
        const Tensor output = unwritten(expected.sizes().vec());
        all_to_all_v(world.backend(), output, sizes, output_dim, input, sizes, dim, {})->wait();
        expect_same(output, expected, "all_to_all_v, transposing");
        continue;
      }
      // Rank i sends sizes[(i + j) % P] slices to rank j.
      const auto table = [&](int from_rank, int to_rank) {
        return sizes[static_cast<size_t>((from_rank + to_rank) % world.size)];
      };
      Sizes to, from;
      Tensors expected;
      for (int rank = 0; rank < world.size; ++rank) {
        to.push_back(table(world.rank, rank));
        from.push_back(table(rank, world.rank));
        Sizes its;
        for (int target = 0; target < world.size; ++target) its.push_back(table(rank, target));
        expected.push_back(slice(whole(rank), its, dim, world.rank));
      }
      const Tensor output = unwritten(shape(sum_of_sizes(from)));
      all_to_all_v(world.backend(), output, from, dim, laid_out(whole(world.rank)), to, dim, {})
          ->wait();
      expect_same(output, at::cat(expected, dim), "all_to_all_v");
    }
  }
};

MESHRUN_RANK_FUNCTION(ucx_moves_uneven_pieces) {
  const World world;
  const auto patterns = [&](int64_t unit) {
    std::vector<Sizes> sizes(5);
    for (int rank = 0; rank < world.size; ++rank) {
      sizes[0].push_back(2 * unit);
      sizes[1].push_back((2 * rank + 1) * unit);
      sizes[2].push_back(rank % 2 == 0 ? 0 : 3 * unit);
      sizes[3].push_back(rank == world.size / 2 ? 4 * unit : 0);
      sizes[4].push_back(0);
    }
    return sizes;
  };
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble,
                                    at::kComplexFloat, at::kLong, at::kBool}) {
    for (int64_t dim = 0; dim < 3; ++dim) {
      for (const Sizes& sizes : patterns(1)) {
        Case{world, type, {3, 2, 5}, dim, sizes}.run();
        if (type == at::kFloat) Case{world, type, {3, 2, 5}, dim, sizes, true}.run();
      }
    }
  }
  // Rows below and above what is a message of its own.
  for (int64_t dim = 0; dim < 3; ++dim) {
    for (const Sizes& sizes : patterns(37)) {
      Case{world, at::kFloat, {6, 5, 171}, dim, sizes}.run();
    }
  }
  for (const Sizes& sizes : patterns(3001)) {
    Case{world, at::kFloat, {4, 7}, 1, sizes}.all_gather();
    Case{world, at::kFloat, {4, 7}, 1, sizes}.reduce_scatter();
    Case{world, at::kFloat, {4, 7}, 1, sizes}.gather_and_scatter(0);
  }
}

class UcxVCollectivesTest : public ::testing::TestWithParam<int> {};
TEST_P(UcxVCollectivesTest, PiecesOfAnySizeAlongAnyDimAreWhatOneProcessSlices) {
  // Ranks that are executed have addresses of their own, forks equal ones.
  const RankStart start = GetParam() == 2 ? RankStart::kExec : RankStart::kForkAtMain;
  expect_success(run_ranks("ucx_moves_uneven_pieces", env_ranks(GetParam()), start));
}
INSTANTIATE_TEST_SUITE_P(Worlds, UcxVCollectivesTest, ::testing::Values(1, 2, 3, 4));

MESHRUN_RANK_FUNCTION(ucx_copies_no_more_than_its_own_piece) {
  const World world;
  const Sizes sizes = {3, 5};
  const Tensor whole = at::rand({8, 1024}), piece = slice(whole, sizes, 0, world.rank).contiguous();
  const auto copied_by = [&](const std::function<void()>& call) {
    const uint64_t before = world.backend().engine()->counters().copied_bytes;
    call();
    return world.backend().engine()->counters().copied_bytes - before;
  };
  const auto own = static_cast<uint64_t>(piece.nbytes());
  const Tensor output = at::empty_like(whole), part = at::empty_like(piece);
  auto& backend = world.backend();
  EXPECT_EQ(copied_by([&] { all_gather_v(backend, output, piece, sizes, 0, {})->wait(); }), own);
  EXPECT_EQ(copied_by([&] { scatter_v(backend, part, whole, sizes, 0, 0, {})->wait(); }),
            world.rank == 0 ? own : 0);
  EXPECT_EQ(copied_by([&] { gather_v(backend, output, piece, sizes, 0, 0, {})->wait(); }),
            world.rank == 0 ? own : 0);
  EXPECT_EQ(copied_by([&] { reduce_scatter_v(backend, part, whole, sizes, 0, {})->wait(); }), 0u);
}

TEST(UcxVCollectivesTest, AlongDimZeroOnlyTheOwnPieceIsCopied) {
  expect_success(run_ranks("ucx_copies_no_more_than_its_own_piece", env_ranks(2)));
}

// Two calls of one layout differ in whether the own piece is already where it belongs: each copies
// what it has to, whichever comes first.
MESHRUN_RANK_FUNCTION(ucx_gathers_in_place_and_apart) {
  const World world;
  auto& backend = world.backend();
  const Sizes sizes = {4, 4};
  const auto gather = [&](bool is_v, int64_t columns, bool in_place) {
    const Tensor whole = tensor_of(0, {8, columns}, at::kFloat);
    const Tensor piece = slice(whole, sizes, 0, world.rank).clone();
    Tensor output = at::full({8, columns}, -99.0f);
    Tensor input = in_place ? slice(output, sizes, 0, world.rank).copy_(piece) : piece;
    const auto before = backend.engine()->counters().copied_bytes;
    if (is_v) {
      all_gather_v(backend, output, input, sizes, 0, {})->wait();
    } else {
      libtorch::all_gather_single(*world.group, output, input)->wait();
    }
    EXPECT_TRUE(at::equal(output, whole))
        << (is_v ? "all_gather_v" : "_allgather_base") << " of " << columns << " columns"
        << (in_place ? ", in place" : "") << ", rank " << world.rank;
    EXPECT_EQ(backend.engine()->counters().copied_bytes - before,
              in_place ? 0 : static_cast<int64_t>(piece.nbytes()));
  };
  for (const bool is_v : {true, false}) {
    // With the headers, and in messages of their own.
    for (const int64_t columns : {2, 1024}) {
      for (const bool in_place : {true, false, true}) gather(is_v, columns, in_place);
      for (const bool in_place : {false, true, false}) gather(is_v, columns + 1, in_place);
    }
  }
}

TEST(UcxVCollectivesTest, AnAllGatherInPlaceHasAScheduleOfItsOwn) {
  expect_success(run_ranks("ucx_gathers_in_place_and_apart", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(ucx_finds_wrong_v_calls) {
  const World world;
  auto& backend = world.backend();
  const bool is_odd = world.rank == 1;
  const Tensor piece = at::ones({2, 3});
  const auto gather = [&](Sizes sizes, int64_t dim, const Tensor& input, CollectiveSpec call) {
    std::vector<int64_t> shape = input.sizes().vec();
    if (dim < input.dim()) shape[static_cast<size_t>(dim)] = sum_of_sizes(sizes);
    all_gather_v(backend, at::empty(shape, input.options()), input, sizes, dim, std::move(call))
        ->wait();
  };
  expect_text([&] { gather({2, 2}, 0, piece, {.requires_grad = is_odd}); }, "with gradient");
  expect_text(
      [&] {
        gather({2, 2}, 0, piece, {.problem = is_odd ? "sizes are odd" : ""});
      },
      "wrong arguments on rank 1: sizes are odd");
  expect_text(
      [&] {
        gather({2, is_odd ? 2 : 4}, 0, piece, {});
      },
      "all_gather_v of float32 [*, 3], sizes [2, 4], dim 0");
  expect_text([&] { gather({2, 2}, 0, is_odd ? piece.to(at::kDouble) : piece, {}); }, "float64");
  expect_text([&] { gather({2, 2}, 0, is_odd ? at::ones({2, 4}) : piece, {}); }, "[*, 4]");
  expect_text([&] { gather({2, 2}, 0, is_odd ? at::ones({2, 3, 1}) : piece, {}); }, "[*, 3, 1]");
  expect_text(
      [&] {
        CollectiveSpec spec = {.agreed = is_odd ? 1u : 2u};
        spec.say([&] { return std::string(is_odd ? ", table B" : ", table A"); });
        gather({2, 2}, 0, piece, std::move(spec));
      },
      "table B");
  expect_text(
      [&] {
        backend.compare({.what = is_odd ? "one thing" : "another", .digest = is_odd})->wait();
      },
      "one thing");
  backend.compare({.what = "the same", .digest = 7})->wait();
  gather({2, 2}, 0, piece, {});
}

TEST(UcxVCollectivesTest, WrongCallsAreErrorsOnEveryRankAndTheGroupLivesOn) {
  expect_success(run_ranks("ucx_finds_wrong_v_calls", env_ranks(2)));
}

}  // namespace
}  // namespace meshrun
