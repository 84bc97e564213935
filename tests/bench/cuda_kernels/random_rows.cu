#include "parallel/kernels/cuda/indexing.h"
#include "parallel/kernels/cuda/threads.h"
#include "tests/bench/cuda_kernels/random_rows.h"

namespace meshrun {
namespace {

using cuda::Divider;
using cuda::kBlock;

// The last mixing steps of MurmurHash3, whose bits are as good as random, scaled to the rows.
__device__ uint32_t random_row(uint32_t row, uint32_t rows) {
  row ^= row >> 16;
  row *= 0x85EBCA6Bu;
  row ^= row >> 13;
  row *= 0xC2B2AE35u;
  row ^= row >> 16;
  return static_cast<uint32_t>(uint64_t{row} * rows >> 32);
}

template <int kLoads, typename Unit>
__global__ void __launch_bounds__(kBlock)
    copy_kernel(Unit* output, const Unit* input, uint32_t rows, uint32_t units,
                Divider<uint32_t> by_row) {
  cuda::run_threads<kLoads, uint32_t>(
      blockIdx.x, gridDim.x, threadIdx.x, rows * units,
      [&](uint32_t thread) {
        const auto [row, unit] = by_row.divide(thread);
        return input[uint64_t{random_row(row, rows)} * units + unit];
      },
      [&](uint32_t thread, const Unit& value) { output[thread] = value; });
}

template <typename Unit>
void copy(void* output, const void* input, int64_t rows, int64_t bytes, int loads,
          cudaStream_t stream) {
  const auto units = static_cast<uint32_t>(bytes / static_cast<int64_t>(sizeof(Unit)));
  const auto launch = [&]<int kLoads>() {
    const auto count = static_cast<uint64_t>(rows) * units;
    copy_kernel<kLoads><<<cuda::blocks_for<kLoads>(count), kBlock, 0, stream>>>(
        static_cast<Unit*>(output), static_cast<const Unit*>(input), static_cast<uint32_t>(rows),
        units, Divider<uint32_t>(units));
  };
  loads == 8 ? launch.template operator()<8>() : launch.template operator()<4>();
}

}  // namespace

void copy_random_rows(void* output, const void* input, int64_t rows, int64_t bytes, int loads,
                      CUstream_st* stream) {
  if (bytes % 16 == 0) {
    copy<uint4>(output, input, rows, bytes, loads, stream);
  } else if (bytes % 4 == 0) {
    copy<uint32_t>(output, input, rows, bytes, loads, stream);
  } else {
    copy<uint16_t>(output, input, rows, bytes, loads, stream);
  }
}

}  // namespace meshrun
