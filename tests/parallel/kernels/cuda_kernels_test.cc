// The CUDA kernels on a GPU against the CPU's path, and captured in a CUDA graph. Skipped where no
// GPU is seen; cuda_bodies_test checks the same arithmetic everywhere.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "parallel/kernels/piece_kernels.h"
#include "parallel/kernels/row_kernels.h"
#include "parallel/manager/device_choice.h"

namespace meshrun {
namespace {

using at::Tensor;

const std::vector<at::ScalarType> kTypes = {at::kFloat,    at::kDouble, at::kHalf,
                                            at::kBFloat16, at::kLong,   at::kInt,
                                            at::kByte,     at::kBool,   at::kComplexFloat};

const RowKernels& cpu() { return row_kernels(c10::DeviceType::CPU); }
const RowKernels& gpu() { return row_kernels(c10::DeviceType::CUDA); }

Tensor values(at::IntArrayRef shape, at::ScalarType type) {
  if (at::isIntegralType(type, /*includeBool=*/true)) return at::randint(0, 5, shape).to(type);
  return at::randn(shape).to(type);
}

// The same values on the GPU, `shift` elements behind an aligned address.
Tensor on_gpu(const Tensor& tensor, int64_t shift) {
  const Tensor memory = at::empty({tensor.numel() + shift}, tensor.options().device(at::kCUDA));
  return memory.narrow(0, shift, tensor.numel()).view(tensor.sizes()).copy_(tensor);
}

void expect_equal(const Tensor& actual, const Tensor& expected, const std::string& what) {
  EXPECT_TRUE(at::equal(actual.cpu(), expected)) << what;
}

std::string described(at::ScalarType type, at::IntArrayRef shape, int64_t dim, int64_t shift) {
  return std::string(c10::toString(type)) + " " + c10::str(shape) + " dim " + std::to_string(dim) +
         " shift " + std::to_string(shift);
}

class CudaKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "this process sees no GPU (nvidia-smi -L lists them)";
    at::manual_seed(3);
  }
};

struct Case {
  std::vector<int64_t> shape;
  int64_t dim;
};
// Rows of one element, odd, one access, many accesses; more than one grid's first round.
const std::vector<Case> kCases = {{{9}, 0},           {{9, 3}, 0},     {{9, 8}, 0},
                                  {{9, 4097}, 0},     {{3, 9}, 1},     {{2, 9, 5}, 1},
                                  {{4, 3, 9, 16}, 2}, {{1000, 64}, 0}, {{5, 700, 130}, 1}};

void for_each_case(const std::function<void(const Case&, at::ScalarType, int64_t)>& body) {
  for (const at::ScalarType type : kTypes) {
    for (const Case& c : kCases) {
      for (const int64_t shift : {0, 1}) body(c, type, shift);
    }
  }
}

std::vector<int64_t> with_extent(const Case& c, int64_t extent) {
  std::vector<int64_t> shape = c.shape;
  shape[static_cast<size_t>(c.dim)] = extent;
  return shape;
}

// One after another in the buffer of a tensor (outer, extent, inner) that is cut along dim 1.
std::vector<PackedPiece> pieces_of(const Tensor& tensor, at::IntArrayRef sizes) {
  std::vector<PackedPiece> pieces;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    pieces.push_back({begin, size, begin * tensor.size(0) * tensor.size(2)});
    begin += size;
  }
  return pieces;
}

TEST_F(CudaKernelsTest, GatheredRowsEqualTheCpus) {
  for_each_case([](const Case& c, at::ScalarType type, int64_t shift) {
    const Tensor input = values(c.shape, type);
    const Tensor index = at::randint(0, input.size(c.dim), {37}, at::kLong);
    const Tensor expected = at::empty(with_extent(c, 37), input.options());
    cpu().gather_rows(expected, input, index, c.dim);
    const Tensor output = on_gpu(at::zeros_like(expected), shift);
    gpu().gather_rows(output, on_gpu(input, shift), index.cuda(), c.dim);
    expect_equal(output, expected, described(type, c.shape, c.dim, shift));
    // An input of any strides.
    const Tensor transposed = on_gpu(input.movedim(0, -1).contiguous(), 0).movedim(-1, 0);
    gpu().gather_rows(output, transposed, index.cuda(), c.dim);
    expect_equal(output, expected, "transposed " + described(type, c.shape, c.dim, shift));
  });
}

TEST_F(CudaKernelsTest, GatheredRowsAreConverted) {
  const Tensor index = at::tensor({3, 3, 0}, at::kLong);
  for (const at::ScalarType from : {at::kFloat, at::kHalf, at::kBFloat16, at::kInt}) {
    for (const at::ScalarType to : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
      for (const int64_t inner : {5, 64}) {
        const Tensor input = values({4, inner}, from);
        const Tensor output = at::zeros({3, inner}, at::TensorOptions(at::kCUDA).dtype(to));
        gpu().gather_rows(output, input.cuda(), index.cuda(), 0);
        expect_equal(output, input.index_select(0, index).to(to), c10::toString(to));
      }
    }
  }
}

struct Segments {
  Tensor offsets, positions;
};
// None, one, a hot one of 500, none, and the rest.
Segments segments_over(int64_t positions) {
  return {at::tensor({0, 0, 1, 501, 501, 540}, at::kLong),
          at::randint(0, positions, {540}, at::kLong)};
}

TEST_F(CudaKernelsTest, SumsOfSegmentsHaveTheCpusBits) {
  for_each_case([](const Case& c, at::ScalarType type, int64_t shift) {
    if (type == at::kByte) return;  // 500 of them wrap around, which the CPU's sum may not do alike
    const Tensor first = values(c.shape, type), second = values(with_extent(c, 4), type);
    const Segments segments = segments_over(first.size(c.dim) + 4);
    for (const bool use_fp32 : {true, false}) {
      const Tensor expected = at::empty(with_extent(c, 5), first.options());
      cpu().segmented_sum(expected, first, second, segments.offsets, segments.positions, c.dim,
                          use_fp32);
      const Tensor output = on_gpu(at::ones_like(expected), shift);
      gpu().segmented_sum(output, on_gpu(first, shift), on_gpu(second, shift),
                          segments.offsets.cuda(), segments.positions.cuda(), c.dim, use_fp32);
      expect_equal(output, expected, described(type, c.shape, c.dim, shift));
    }
  });
}

TEST_F(CudaKernelsTest, SumsInRankOrderHaveTheCpusBits) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t ranks : {1, 2, 5, 9}) {
      for (const int64_t elements : {1, 24, 1000, 100000}) {
        for (const bool use_fp32 : {true, false}) {
          const int64_t pitch = (elements + 15) / 16 * 16;
          const Tensor all = values({ranks, pitch}, type);
          const Tensor expected = at::empty({elements}, all.options());
          sum_in_order(expected, all.narrow(1, 0, elements), use_fp32);
          const Tensor output = on_gpu(at::zeros_like(expected), 0);
          sum_in_order(output, all.cuda().narrow(1, 0, elements), use_fp32);
          expect_equal(output, expected, described(type, {ranks, elements}, 0, 0));
        }
      }
    }
  }
}

TEST_F(CudaKernelsTest, SlicesArePackedAndUnpackedAsOnTheCpu) {
  for (const at::ScalarType type : kTypes) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{5, 0, 3, 8}, std::vector<int64_t>(70, 2)}) {
      for (const int64_t inner : {1, 4, 100}) {
        int64_t extent = 0;
        for (const int64_t size : sizes) extent += size;
        const Tensor tensor = values({6, extent, inner}, type);
        const Tensor expected = at::empty({tensor.numel()}, tensor.options());
        const std::vector<PackedPiece> pieces = pieces_of(tensor, sizes);
        pack_pieces(expected, tensor, 1, pieces);
        const Tensor blocks = at::empty({tensor.numel()}, tensor.options().device(at::kCUDA));
        pack_pieces(blocks, tensor.cuda(), 1, pieces);
        expect_equal(blocks, expected, described(type, tensor.sizes(), 1, 0));
        const Tensor back = at::zeros_like(tensor, tensor.options().device(at::kCUDA));
        unpack_pieces(back, 1, blocks, pieces);
        expect_equal(back, tensor, "back " + described(type, tensor.sizes(), 1, 0));
      }
    }
  }
}

TEST_F(CudaKernelsTest, AllCanBeCapturedInAGraphAndReplayed) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  const Tensor input = values({64, 33, 16}, at::kFloat).cuda();
  const Tensor index = at::randint(0, 33, {20}, at::kLong).cuda();
  const Tensor offsets = at::tensor({0, 7, 7, 20}, at::kLong).cuda();
  const Tensor rows = at::zeros({64, 20, 16}, input.options());
  const Tensor sums = at::zeros({64, 3, 16}, input.options());
  const Tensor blocks = at::zeros({input.numel()}, input.options());
  const Tensor back = at::zeros_like(input);
  const Tensor total = at::zeros({33 * 16}, input.options());
  const std::vector<PackedPiece> pieces = pieces_of(input, {10, 20, 3});
  const auto step = [&] {
    gpu().gather_rows(rows, input, index, 1);
    gpu().segmented_sum(sums, input, {}, offsets, index, 1, true);
    pack_pieces(blocks, input, 1, pieces);
    unpack_pieces(back, 1, blocks, pieces);
    sum_in_order(total, input.view({64, 33 * 16}), true);
  };
  const auto expect_step = [&](const std::string& what) {
    stream.synchronize();
    const Tensor host = input.cpu();
    expect_equal(rows, host.index_select(1, index.cpu()), what + " rows");
    const Tensor expected = at::empty({64, 3, 16});
    cpu().segmented_sum(expected, host, at::empty({64, 0, 16}), offsets.cpu(), index.cpu(), 1,
                        true);
    expect_equal(sums, expected, what + " sums");
    expect_equal(back, host, what + " slices");
    const Tensor added = at::empty({33 * 16});
    sum_in_order(added, host.view({64, 33 * 16}), true);
    expect_equal(total, added, what + " total");
  };
  step();
  expect_step("before");
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  step();
  graph.capture_end();
  for (int replay = 0; replay < 2; ++replay) {
    input.copy_(values({64, 33, 16}, at::kFloat));
    graph.replay();
    expect_step("replay " + std::to_string(replay));
  }
}

}  // namespace
}  // namespace meshrun
