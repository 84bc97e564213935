// What the CUDA kernels compute, without a GPU: every thread of a launch run in a loop on the host,
// over the same choice of access widths, types and index arithmetic, against ATen.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "parallel/kernels/cuda/calls.h"
#include "parallel/kernels/cuda/dispatch.h"
#include "parallel/kernels/cuda/segments.h"
#include "parallel/kernels/cuda/threads.h"

namespace meshrun::cuda {
namespace {

using at::Tensor;

// A launch, thread by thread; remembers the width of its accesses.
template <int kLoads>
struct HostLaunch {
  size_t* width;

  template <typename Body>
  void operator()(const Body& body) const {
    *width = sizeof(typename Body::Value);
    const unsigned blocks = blocks_for<kLoads>(body.count);
    for (unsigned block = 0; block < blocks; ++block) {
      for (unsigned thread = 0; thread < kBlock; ++thread) {
        run_body<kLoads>(body, block, blocks, thread);
      }
    }
  }
  template <typename Body>
  void pieces(const Body& body, int number) const {
    *width = sizeof(typename Body::Value);
    const unsigned blocks = blocks_for<kLoads>(most_threads(body, number));
    for (int piece = 0; piece < number; ++piece) {
      for (unsigned block = 0; block < blocks; ++block) {
        for (unsigned thread = 0; thread < kBlock; ++thread) {
          run_piece<kLoads>(body, piece, block, blocks, thread);
        }
      }
    }
  }
  // All threads read a tile before the first adds what is in it. Two blocks in turn, as of a grid
  // that is too small; what a tile held before is not zero.
  template <typename Body>
  void segments(const Body& body) const {
    *width = sizeof(typename Body::Value);
    const auto tile = std::make_unique<typename Body::Tile>();
    for (uint64_t first = 0; first < 2; ++first) {
      std::memset(static_cast<void*>(tile.get()), 0xA5, sizeof(*tile));
      for (uint64_t block = first; block < body.blocks; block += 2) {
        std::vector<SegmentThread<Body>> threads;
        for (unsigned thread = 0; thread < kBlock; ++thread) {
          threads.emplace_back(body, block, thread);
        }
        for (const auto& thread : threads) thread.read_offsets(*tile);
        for (int64_t from = threads[0].begin(); from < threads[0].end();
             from += body.rows_of_tile) {
          for (const auto& thread : threads) thread.read(from, *tile);
          for (auto& thread : threads) thread.add(from, *tile);
        }
        for (const auto& thread : threads) thread.write();
      }
    }
  }
};

// Runs a call; the bytes that an access had.
template <int kLoads, typename Call>
size_t run_on_host(const Call& call) {
  size_t width = 0;
  EXPECT_TRUE(dispatch(call, HostLaunch<kLoads>{&width}));
  return width;
}

// Uninitialised memory between two guards, `shift` elements behind an aligned address.
class Guarded {
 public:
  Guarded(int64_t elements, at::ScalarType type, int64_t shift)
      : elements_(elements),
        shift_(shift),
        memory_(at::full({elements + 2 * kGuard + shift}, 77, at::TensorOptions().dtype(type))) {}
  Tensor tensor() const { return memory_.narrow(0, kGuard + shift_, elements_); }
  void expect_guards() const {
    EXPECT_TRUE((memory_.narrow(0, 0, kGuard + shift_) == kept()).all().item<bool>());
    EXPECT_TRUE(
        (memory_.narrow(0, kGuard + shift_ + elements_, kGuard) == kept()).all().item<bool>());
  }

 private:
  static constexpr int64_t kGuard = 64;
  Tensor kept() const {
    return at::full({1}, 77, at::TensorOptions().dtype(memory_.scalar_type()));
  }

  int64_t elements_;
  int64_t shift_;
  Tensor memory_;
};

Tensor values(at::IntArrayRef shape, at::ScalarType type) {
  return at::randint(-9, 10, shape).to(type);
}

// The same values, `shift` elements behind an aligned address.
Tensor shifted(const Tensor& tensor, int64_t shift) {
  const Tensor memory = at::empty({tensor.numel() + shift}, tensor.options());
  return memory.narrow(0, shift, tensor.numel()).view(tensor.sizes()).copy_(tensor);
}

// As bits, so that -0.0 is not 0.0; not of complex numbers, whose sums the compiler may order.
bool same_bits(const Tensor& a, const Tensor& b) {
  return at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
}

Strided around(const Tensor& tensor) {  // (outer, extent, inner)
  return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1)};
}

std::string described(at::ScalarType type, int64_t outer, int64_t inner, int64_t shift) {
  return std::string(c10::toString(type)) + " outer " + std::to_string(outer) + " inner " +
         std::to_string(inner) + " shift " + std::to_string(shift);
}

const std::vector<at::ScalarType> kTypes = {
    at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kByte,         at::kChar,
    at::kInt,  at::kShort,    at::kLong,  at::kBool,   at::kComplexFloat, at::kComplexDouble};

TEST(CudaBodiesTest, DividersDivide) {
  std::mt19937_64 random(1);
  const uint32_t most = (1u << 31) - 1;
  std::vector<uint32_t> numbers = {1, 2, 3, 5, 7, 255, 256, 257, 65535, 1u << 30, most - 1, most};
  for (int i = 0; i < 300; ++i) numbers.push_back(1 + static_cast<uint32_t>(random() % most));
  for (const uint32_t divisor : numbers) {
    const Divider<uint32_t> narrow(divisor);
    const Divider<uint64_t> wide(divisor);
    std::vector<uint32_t> tried = numbers;
    tried.insert(tried.end(), {0, divisor - 1, most / divisor * divisor,
                               most / divisor * divisor == 0 ? 0 : most / divisor * divisor - 1});
    for (const uint32_t value : tried) {
      EXPECT_EQ(narrow.divide(value).quotient, value / divisor) << value << " / " << divisor;
      EXPECT_EQ(narrow.divide(value).remainder, value % divisor) << value << " / " << divisor;
      EXPECT_EQ(wide.divide(value).quotient, value / divisor);
      EXPECT_EQ(wide.divide(value).remainder, value % divisor);
    }
  }
}

TEST(CudaBodiesTest, SizedDividersDivideValuesOfAnySize) {
  constexpr uint64_t kSmall = uint64_t{1} << 31;
  for (const uint64_t values : {uint64_t{1}, kSmall, kSmall + 1, uint64_t{1} << 40}) {
    for (const uint64_t divisor : {uint64_t{1}, uint64_t{7}, kSmall - 1, kSmall, kSmall * 3}) {
      const SizedDivider divider(divisor, values);
      for (const uint64_t value : {uint64_t{0}, values / 2, values - 1}) {
        EXPECT_EQ(divider.divide(value).quotient, value / divisor) << value << " / " << divisor;
        EXPECT_EQ(divider.divide(value).remainder, value % divisor) << value << " / " << divisor;
      }
    }
  }
}

TEST(CudaBodiesTest, EveryThreadOfEveryGridHasItsShareAndNoOther) {
  for (const uint32_t count : {1u, 255u, 256u, 257u, 1023u, 1024u, 1025u, 5000u}) {
    for (const unsigned blocks : {1u, 2u, 5u, blocks_for<4>(count)}) {
      std::vector<int> times(count, 0);
      for (unsigned block = 0; block < blocks; ++block) {
        for (unsigned thread = 0; thread < kBlock; ++thread) {
          run_threads<4, uint32_t>(
              block, blocks, thread, count, [](uint32_t at) { return at; },
              [&](uint32_t at, uint32_t value) { times[at] += value == at ? 1 : 100; });
        }
      }
      EXPECT_EQ(times, std::vector<int>(count, 1)) << count << " in " << blocks << " blocks";
    }
  }
}

TEST(CudaBodiesTest, GatheredRowsAreThoseOfTheIndex) {
  const Tensor index = at::tensor({3, 0, 0, 4, 2, 4, 1}, at::kLong);
  for (const at::ScalarType type : kTypes) {
    for (const int64_t outer : {1, 3}) {
      for (const int64_t inner : {1, 2, 3, 8, 16, 17, 33, 200}) {
        for (const int64_t shift : {0, 1}) {
          SCOPED_TRACE(described(type, outer, inner, shift));
          const Tensor input = shifted(values({outer, 5, inner}, type), shift);
          Guarded output(outer * 7 * inner, type, shift);
          const Tensor gathered = output.tensor().view({outer, 7, inner});
          const size_t width =
              run_on_host<4>(GatherRows{around(gathered), type, around(input), type,
                                        index.data_ptr<int64_t>(), outer, 7, inner});
          EXPECT_TRUE(at::equal(gathered, input.index_select(1, index)));
          output.expect_guards();
          if (shift == 0 && inner % 16 == 0) {
            EXPECT_EQ(width, 16);
          }
        }
      }
    }
  }
}

TEST(CudaBodiesTest, GatheredRowsMayBeConvertedAndLieApart) {
  const Tensor index = at::tensor({1, 3, 3}, at::kLong);
  const std::vector<at::ScalarType> floats = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
  for (const at::ScalarType from : floats) {
    for (const at::ScalarType to : floats) {
      for (const int64_t inner : {3, 8, 16, 29}) {
        for (const int64_t shift : {0, 1}) {
          SCOPED_TRACE(described(from, 2, inner, shift) + " to " + c10::toString(to));
          const Tensor input = shifted(at::randn({2, 4, inner}).to(from), shift);
          // Slices 2 to 4 of six.
          const Tensor whole = shifted(at::full({2, 6, inner}, 5, at::kFloat).to(to), shift);
          const Tensor output = whole.narrow(1, 2, 3);
          run_on_host<4>(GatherRows{around(output), to, around(input), from,
                                    index.data_ptr<int64_t>(), 2, 3, inner});
          EXPECT_TRUE(at::equal(output, input.index_select(1, index).to(to)));
          EXPECT_TRUE((whole.narrow(1, 0, 2) == 5).all().item<bool>());
          EXPECT_TRUE((whole.narrow(1, 5, 1) == 5).all().item<bool>());
        }
      }
    }
  }
  size_t width = 0;
  const GatherRows call{{}, at::kLong, {}, at::kInt, nullptr, 1, 1, 1};
  EXPECT_FALSE(dispatch(call, HostLaunch<4>{&width}));
}

TEST(CudaBodiesTest, IndicesBeyond32BitsAreCountedIn64) {
  const Tensor index = at::tensor({2, 0}, at::kLong);
  const Tensor input = values({2, 3, 6}, at::kFloat);
  const Tensor output = at::zeros({2, 2, 6});
  size_t width = 0;
  gather_with<float, float, 2, true, uint64_t>(
      GatherRows{around(output), at::kFloat, around(input), at::kFloat, index.data_ptr<int64_t>(),
                 2, 2, 6},
      HostLaunch<4>{&width});
  EXPECT_TRUE(at::equal(output, input.index_select(1, index)));
  EXPECT_TRUE(is_small((int64_t{1} << 31) - 1));
  EXPECT_FALSE(is_small(int64_t{1} << 31));
}

// One addition after another, as the kernels promise.
Tensor summed(const std::vector<Tensor>& slices, const Tensor& like, bool use_fp32) {
  if (slices.empty()) return at::zeros_like(like);
  const bool is_half = like.scalar_type() == at::kHalf || like.scalar_type() == at::kBFloat16;
  Tensor sum = slices[0].to(is_half && use_fp32 ? at::kFloat : like.scalar_type(), false, true);
  for (size_t i = 1; i < slices.size(); ++i) sum.add_(slices[i]);
  return sum.to(like.scalar_type());
}

TEST(CudaBodiesTest, SegmentsAreAddedInTheirOrder) {
  // Segments: none, one, a hot one of 23, none, six of both tensors, none.
  std::vector<int64_t> positions = {4};
  for (int64_t i = 0; i < 23; ++i) positions.push_back(i * 5 % 9);
  positions.insert(positions.end(), {8, 0, 7, 1, 6, 6});
  const Tensor offsets = at::tensor({0, 0, 1, 24, 24, 30, 30}, at::kLong);
  const auto* offset = offsets.const_data_ptr<int64_t>();
  for (const at::ScalarType type : kTypes) {
    for (const bool use_fp32 : {true, false}) {
      for (const int64_t outer : {1, 2}) {
        // In one tile, in several; 300: a hot segment's slices in several; 1100: a slice in several
        // blocks.
        for (const int64_t inner : {1, 3, 8, 17, 32, 300, 1100, 1104}) {
          for (const int64_t shift : {0, 1}) {
            if (inner > 100 && (outer > 1 || !use_fp32)) continue;
            SCOPED_TRACE(described(type, outer, inner, shift) + (use_fp32 ? "" : " narrow"));
            const bool is_integral = at::isIntegralType(type, true);
            const auto some = [&](int64_t extent) {
              return shifted(is_integral ? at::randint(0, 4, {outer, extent, inner}).to(type)
                                         : at::randn({outer, extent, inner}).to(type),
                             shift);
            };
            const Tensor first = some(5), second = some(4);
            if (!is_integral) first.select(1, 4).mul_(-0.0);  // the segment of one
            const Tensor both = at::cat({first, second}, 1);
            Guarded memory(outer * 6 * inner, type, shift);
            const Tensor output = memory.tensor().view({outer, 6, inner});
            const size_t width = run_on_host<1>(
                SegmentedSum{around(output), around(first), around(second), 5, offset,
                             positions.data(), type, use_fp32, outer, 6, inner});
            for (int64_t segment = 0; segment < 6; ++segment) {
              std::vector<Tensor> slices;
              for (int64_t i = offset[segment]; i < offset[segment + 1]; ++i) {
                slices.push_back(both.select(1, positions[static_cast<size_t>(i)]));
              }
              const Tensor actual = output.select(1, segment);
              EXPECT_TRUE(same_bits(actual, summed(slices, actual, use_fp32))) << segment;
            }
            memory.expect_guards();
            if (shift == 0 && inner % 16 == 0) {
              EXPECT_EQ(width, 16);
            }
          }
        }
      }
    }
  }
}

// The widths of accesses follow the least aligned of the tensors; the host stops at others
// (access_at).
TEST(CudaBodiesTest, EachTensorMayBeShiftedByItself) {
  const Tensor index = at::tensor({3, 0, 4, 4}, at::kLong);
  const Tensor offsets = at::tensor({0, 3, 4}, at::kLong);
  const Tensor positions = at::tensor({1, 6, 2, 5}, at::kLong);
  for (const at::ScalarType type : {at::kByte, at::kHalf, at::kFloat, at::kDouble}) {
    for (const int64_t inner : {4, 16, 37, 96}) {
      for (int shifts = 0; shifts < 27; ++shifts) {
        const int64_t a = shifts % 3, b = shifts / 3 % 3, c = shifts / 9;
        SCOPED_TRACE(described(type, 1, inner, shifts));
        const Tensor first = shifted(values({2, 5, inner}, type), a);
        const Tensor second = shifted(values({2, 3, inner}, type), b);
        Guarded rows(2 * 4 * inner, type, c);
        const Tensor gathered = rows.tensor().view({2, 4, inner});
        size_t width = run_on_host<4>(GatherRows{around(gathered), type, around(first), type,
                                                 index.data_ptr<int64_t>(), 2, 4, inner});
        EXPECT_TRUE(at::equal(gathered, first.index_select(1, index)));
        rows.expect_guards();
        // Long rows move 16 bytes at a time wherever they begin.
        const auto bytes = inner * static_cast<int64_t>(first.element_size());
        if (bytes >= 32) {
          EXPECT_EQ(width, 16);
        }

        Guarded sums(2 * 2 * inner, type, c);
        const Tensor sum = sums.tensor().view({2, 2, inner});
        width = run_on_host<1>(
            SegmentedSum{around(sum), around(first), around(second), 5, offsets.data_ptr<int64_t>(),
                         positions.data_ptr<int64_t>(), type, true, 2, 2, inner});
        const Tensor both = at::cat({first, second}, 1);
        const Tensor expected =
            at::stack({summed({both.select(1, 1), both.select(1, 6), both.select(1, 2)},
                              sum.select(1, 0), true),
                       both.select(1, 5)},
                      1);
        EXPECT_TRUE(at::equal(sum, expected));
        sums.expect_guards();
        if (bytes >= 32) {
          EXPECT_EQ(width, 16);
        }

        // Columns [1, inner) of rows, to a buffer that begins anywhere.
        if (inner < 16) continue;
        Guarded packed(2 * 5 * (inner - 1), type, c);
        run_on_host<4>(Permute{true,
                               packed.tensor().data_ptr(),
                               first.data_ptr(),
                               static_cast<int64_t>(first.element_size()),
                               2 * 5,
                               inner,
                               1,
                               {{1, inner - 1, 0}}});
        EXPECT_TRUE(at::equal(packed.tensor(), first.narrow(2, 1, inner - 1).reshape({-1})));
        packed.expect_guards();
      }
    }
  }
}

// Rows at both ends of memory: accesses touch no page but theirs.
TEST(CudaBodiesTest, NothingIsReadBesideTheRowsPages) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* const memory = static_cast<char*>(
      mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(memory, page, PROT_NONE), 0);
  ASSERT_EQ(mprotect(memory + 2 * page, page, PROT_NONE), 0);
  const Tensor index = at::tensor({0}, at::kLong);
  const Tensor offsets = at::tensor({0, 1}, at::kLong);
  for (const at::ScalarType type : {at::kByte, at::kHalf, at::kFloat}) {
    const auto element = static_cast<int64_t>(c10::elementSize(type));
    for (const int64_t inner : {32, 33, 45, 64, 300}) {
      for (const bool is_last : {false, true}) {
        for (int64_t shift = 0; shift < 16 / element; ++shift) {
          SCOPED_TRACE(described(type, 1, inner, shift) + (is_last ? " last" : " first"));
          char* const begin =
              memory + page + (is_last ? page - static_cast<size_t>(inner * element) : size_t{0});
          const Tensor row = at::from_blob(begin, {1, 1, inner}, at::TensorOptions().dtype(type));
          row.copy_(values({1, 1, inner}, type));
          Guarded output(inner, type, shift);
          const Tensor made = output.tensor().view({1, 1, inner});
          run_on_host<4>(GatherRows{around(made), type, around(row), type,
                                    index.data_ptr<int64_t>(), 1, 1, inner});
          EXPECT_TRUE(at::equal(made, row));
          made.zero_();
          run_on_host<1>(SegmentedSum{around(made),
                                      around(row),
                                      {},
                                      1,
                                      offsets.data_ptr<int64_t>(),
                                      index.data_ptr<int64_t>(),
                                      type,
                                      true,
                                      1,
                                      1,
                                      inner});
          EXPECT_TRUE(at::equal(made, row));
          made.zero_();
          run_on_host<4>(
              Permute{false, begin, made.data_ptr(), element, 1, inner, 1, {{0, inner, 0}}});
          EXPECT_TRUE(at::equal(made, row));
          output.expect_guards();
        }
      }
    }
  }
  munmap(memory, 3 * page);
}

TEST(CudaBodiesTest, ManySegmentsAreSharedByBlocks) {
  // Segments have 0 to 4 slices; blocks have several chunks a thread, and the last block has fewer
  // segments.
  constexpr int64_t kSegments = 40001;
  std::vector<int64_t> offsets = {0}, positions;
  for (int64_t i = 0; i < kSegments; ++i) {
    for (int64_t k = 0; k < i * 7 % 5; ++k) positions.push_back((i * 31 + k * 17) % 400);
    offsets.push_back(static_cast<int64_t>(positions.size()));
  }
  for (const int64_t inner : {1, 13, 36}) {
    const Tensor first = at::randint(-9, 9, {1, 300, inner}).to(at::kInt);
    const Tensor second = at::randint(-9, 9, {1, 100, inner}).to(at::kInt);
    Guarded memory(kSegments * inner, at::kInt, 1);
    const Tensor output = memory.tensor().view({1, kSegments, inner});
    run_on_host<1>(SegmentedSum{around(output), around(first), around(second), 300, offsets.data(),
                                positions.data(), at::kInt, true, 1, kSegments, inner});
    const Tensor counts = at::tensor(offsets, at::kLong).diff();
    const Tensor expected = at::zeros({kSegments, inner}, at::kInt);
    expected.index_add_(
        0, at::repeat_interleave(counts),
        at::cat({first, second}, 1)[0].index_select(0, at::tensor(positions, at::kLong)));
    EXPECT_TRUE(at::equal(output[0], expected)) << inner;
    memory.expect_guards();
  }
}

TEST(CudaBodiesTest, PartsAreAddedInRankOrder) {
  for (const at::ScalarType type : kTypes) {
    for (const bool use_fp32 : {true, false}) {
      for (const int64_t number : {1, 2, 5, 8, 13}) {
        for (const int64_t elements : {1, 16, 1000, 1040}) {
          for (const int64_t shift : {0, 1}) {
            SCOPED_TRACE(described(type, number, elements, shift));
            const int64_t pitch = (elements + 15) / 16 * 16;
            const Tensor all =
                shifted(at::isIntegralType(type, true) ? at::randint(0, 9, {number, pitch}).to(type)
                                                       : at::randn({number, pitch}).to(type),
                        shift);
            const Tensor parts = all.narrow(1, 0, elements);
            Guarded memory(elements, type, shift);
            const Tensor output = memory.tensor();
            const size_t width = run_on_host<1>(SumInOrder{
                output.data_ptr(), parts.data_ptr(), pitch, number, elements, type, use_fp32});
            EXPECT_TRUE(at::equal(output, summed(parts.unbind(0), output, use_fp32)));
            memory.expect_guards();
            if (shift == 0 && elements == 1040) {
              EXPECT_EQ(width, 16);
            }
          }
        }
      }
    }
  }
}

TEST(CudaBodiesTest, HalvesAddedInFloat32AreRoundedOnce) {
  const Tensor parts = at::tensor({2048.0f, 1.0f, 1.0f, 1.0f, 1.0f}).to(at::kHalf).view({5, 1});
  const Tensor output = at::zeros({1}, at::kHalf);
  SumInOrder call{output.data_ptr(), parts.data_ptr(), 1, 5, 1, at::kHalf, true};
  run_on_host<1>(call);
  EXPECT_EQ(output.item<float>(), 2052);
  call.use_fp32 = false;
  run_on_host<1>(call);
  EXPECT_EQ(output.item<float>(), 2048);
}

TEST(CudaBodiesTest, SlicesAreMovedBetweenTensorAndBuffer) {
  // More than go into one launch, too.
  std::vector<int64_t> many(70);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i * 7 % 5);
  const std::vector<std::vector<int64_t>> patterns = {{5, 0, 3, 1}, {16}, {8, 8, 16}, many};
  for (const at::ScalarType type : kTypes) {
    for (const auto& sizes : patterns) {
      for (const int64_t outer : {1, 3}) {
        for (const int64_t inner : {1, 4, 16}) {
          for (const int64_t shift : {0, 1}) {
            SCOPED_TRACE(described(type, outer, inner, shift));
            std::vector<Permute::Piece> pieces;
            int64_t extent = 0, elements = 3 * shift;  // a buffer may begin anywhere
            for (const int64_t size : sizes) {
              pieces.push_back({extent, size, elements});
              extent += size;
              elements += outer * size * inner;
            }
            const Tensor tensor = shifted(values({outer, extent, inner}, type), shift);
            Guarded buffer(elements - 3 * shift, type, 3 * shift);
            const auto size = static_cast<int64_t>(tensor.element_size());
            Permute call{true,
                         static_cast<char*>(buffer.tensor().data_ptr()) - 3 * shift * size,
                         tensor.data_ptr(),
                         size,
                         outer,
                         extent,
                         inner,
                         pieces};
            const size_t width = run_on_host<4>(call);
            int64_t offset = 0;
            for (const Permute::Piece& piece : pieces) {
              const Tensor expected = tensor.narrow(1, piece.begin, piece.size).reshape({-1});
              EXPECT_TRUE(at::equal(buffer.tensor().narrow(0, offset, expected.numel()), expected));
              offset += expected.numel();
            }
            buffer.expect_guards();
            if (shift == 0 && inner == 16) {
              EXPECT_EQ(width, 16);
            }

            Guarded back(tensor.numel(), type, shift);
            call.packs = false;
            call.tensor = back.tensor().data_ptr();
            run_on_host<4>(call);
            EXPECT_TRUE(at::equal(back.tensor().view(tensor.sizes()), tensor));
            back.expect_guards();
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace meshrun::cuda
