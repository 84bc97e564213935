// Counts the calls of CUDA's runtime that make the host wait for a GPU, from all threads and all
// libraries of a program that links this: its own functions of these names come before libcudart's.
//
//   cudaDeviceSynchronize, cudaStreamSynchronize, cudaEventSynchronize, cudaMemcpy, cudaFree
//
// c10's SyncDebugMode sees only waits that go through c10, not those of c10d's own events. Not seen
// here either: what NCCL does inside, which links the runtime statically, and cudaMemcpyAsync from
// or to pageable memory. Threads: any.
#pragma once

#include <cstdint>

namespace meshrun {

// So far in this process.
int64_t host_waits();

}  // namespace meshrun
