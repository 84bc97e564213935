#include "parallel/kernels/cuda/launch.cuh"

namespace meshrun::cuda {

bool launch(const SegmentedSum& call, CUstream_st* stream) {
  return dispatch(call, CudaLaunch<1>{stream});
}

// A thread's loads of one sum are under way together already.
bool launch(const SumInOrder& call, CUstream_st* stream) {
  return dispatch(call, CudaLaunch<1>{stream});
}

}  // namespace meshrun::cuda
