// Memory for the results of collectives: peers on this host can write into it, and it is used
// again.
//
// Pages that the kernel has to map and clear anew for each result cost about as much as the
// transfer itself. So CPU tensors from 8 KiB on take a block that an earlier result has given back,
// of the same size to within 4 KiB. Up to 64 MiB, blocks come from the process's shared heap
// (parallel/base/shared_heap.h), into which senders write without the kernel's help, as long as
// there is room in its MESHRUN_SHARED_MEMORY_MIB (1024); else from c10's CPU allocator. Blocks that
// nobody uses are kept up to MESHRUN_OUTPUT_CACHE_MIB (256), the longest unused ones are let go
// first. 0: none are kept.
//
// All results of this room come from here. Outputs that are passed to a backend's own methods may:
// it is what makes them as fast.
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

// Lets all unused blocks go.
void release_output_memory();

// Of tensors that were made here and live; the peak since release_output_memory().
struct OutputMemory {
  size_t used_bytes = 0;
  size_t peak_bytes = 0;
};
OutputMemory output_memory();

}  // namespace meshrun
