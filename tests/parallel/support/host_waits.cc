#include "tests/parallel/support/host_waits.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>

namespace {

std::atomic<int64_t> waits{0};

}  // namespace

namespace meshrun {

int64_t host_waits() { return waits; }

}  // namespace meshrun

#define MESHRUN_COUNTED(name, parameters, arguments)                                     \
  cudaError_t CUDARTAPI name parameters {                                                \
    static const auto next = reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name)); \
    ++waits;                                                                             \
    return next arguments;                                                               \
  }

extern "C" {
MESHRUN_COUNTED(cudaDeviceSynchronize, (), ())
MESHRUN_COUNTED(cudaStreamSynchronize, (cudaStream_t stream), (stream))
MESHRUN_COUNTED(cudaEventSynchronize, (cudaEvent_t event), (event))
MESHRUN_COUNTED(cudaMemcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind),
                (to, from, bytes, kind))
MESHRUN_COUNTED(cudaFree, (void* memory), (memory))
}

#undef MESHRUN_COUNTED
