// Runs bodies as kernels.
#pragma once

#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "parallel/kernels/cuda/dispatch.h"
#include "parallel/kernels/cuda/segments.h"
#include "parallel/kernels/cuda/threads.h"

namespace meshrun::cuda {

template <int kLoads, typename Body>
__global__ void __launch_bounds__(kBlock) body_kernel(const __grid_constant__ Body body) {
  run_body<kLoads>(body, blockIdx.x, gridDim.x, threadIdx.x);
}

template <int kLoads, typename Body>
__global__ void __launch_bounds__(kBlock) pieces_kernel(const __grid_constant__ Body body) {
  run_piece<kLoads>(body, static_cast<int>(blockIdx.y), blockIdx.x, gridDim.x, threadIdx.x);
}

template <typename Body>
__global__ void __launch_bounds__(kBlock) segments_kernel(const __grid_constant__ Body body) {
  __shared__ typename Body::Tile tile;
  for (uint64_t block = blockIdx.x; block < body.blocks; block += gridDim.x) {
    SegmentThread<Body> thread(body, block, threadIdx.x);
    thread.read_offsets(tile);
    for (int64_t from = thread.begin(); from < thread.end(); from += body.rows_of_tile) {
      thread.read(from, tile);
      __pipeline_commit();
      __pipeline_wait_prior(0);
      __syncthreads();
      thread.add(from, tile);
      __syncthreads();
    }
    thread.write();
  }
}

template <int kLoads>
struct CudaLaunch {
  cudaStream_t stream;

  template <typename Body>
  void operator()(const Body& body) const {
    body_kernel<kLoads><<<blocks_for<kLoads>(body.count), kBlock, 0, stream>>>(body);
  }
  template <typename Body>
  void pieces(const Body& body, int number) const {
    const dim3 grid(blocks_for<kLoads>(most_threads(body, number)), static_cast<unsigned>(number));
    pieces_kernel<kLoads><<<grid, kBlock, 0, stream>>>(body);
  }
  template <typename Body>
  void segments(const Body& body) const {
    const auto blocks = static_cast<unsigned>(std::min<uint64_t>(body.blocks, kMostBlocks));
    segments_kernel<<<blocks, kBlock, 0, stream>>>(body);
  }
};

}  // namespace meshrun::cuda
