// Memory for the results of collectives that is used again: pages that the kernel has to map and
// clear anew for each result cost about as much as the transfer itself.
//
// CPU tensors from 64 KiB on take a block that an earlier result has given back, of the same size
// to within 1 KiB. Blocks come from c10's CPU allocator; those that nobody uses are kept up to
// MESHRUN_OUTPUT_CACHE_MIB (256), the longest unused ones are let go first. 0: none are kept.
//
// Threads: any. Errors: c10's allocator's.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "c10/core/TensorOptions.h"

namespace meshrun {

// at::empty, contiguous.
at::Tensor empty_output(at::IntArrayRef shape, const at::TensorOptions& options);

// Lets all unused blocks go.
void release_output_memory();

}  // namespace meshrun
