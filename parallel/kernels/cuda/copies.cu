#include "parallel/kernels/cuda/launch.cuh"

namespace meshrun::cuda {

bool launch(const GatherRows& call, CUstream_st* stream) {
  return dispatch(call, CudaLaunch<4>{stream});
}

bool launch(const Permute& call, CUstream_st* stream) {
  return dispatch(call, CudaLaunch<4>{stream});
}

}  // namespace meshrun::cuda
