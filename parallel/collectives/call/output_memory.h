// Memory for the results of collectives: peers on this host can write into it, and blocks are
// reused.
//
// If the kernel had to map and clear new pages for each result, that would cost about as much as
// the transfer itself. So CPU tensors of 8 KiB and more take a block that an earlier result has
// given back, of the same size to within 4 KiB. Blocks of up to 64 MiB come from the process's
// shared heap (parallel/base/shared_heap.h), into which senders write without the kernel's help, as
// long as MESHRUN_SHARED_MEMORY_MIB (1024) leaves room; other blocks come from c10's CPU allocator.
// Unused blocks are kept up to MESHRUN_OUTPUT_CACHE_MIB (256); those unused longest are freed
// first. 0 keeps none.
//
// All results of parallel/collectives come from here. Outputs passed to a backend's own methods may
// come from here too, and are then as fast.
//
// Threads: any. A thread may fork while others allocate; the child may, too. Errors: c10's
// allocator's.
#pragma once

#include <cstddef>

#include "ATen/core/Tensor.h"
#include "c10/core/TensorOptions.h"

namespace meshrun {

// at::empty, contiguous.
at::Tensor empty_output(at::IntArrayRef shape, const at::TensorOptions& options);

// Frees all unused blocks.
void release_output_memory();

// Bytes of the live tensors that were made here; the peak since release_output_memory().
struct OutputMemory {
  size_t used_bytes = 0;
  size_t peak_bytes = 0;
};
OutputMemory output_memory();

}  // namespace meshrun
