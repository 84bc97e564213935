// The bound for kernels that read rows at random places: copies as many rows from pseudo-random
// places and writes them in order. It reads no index, so its time is the memory's.
//
// `rows` rows of `bytes` bytes, contiguous, at both ends aligned to 16 bytes; in accesses of 16, 4
// or 2 bytes, the widest that divides `bytes`. Fewer than 2^31 accesses. loads: 4 or 8, of a thread
// at once. Queued on `stream`; nothing is waited for. Errors: CUDA's, from cudaGetLastError().
#pragma once

#include <cstdint>

struct CUstream_st;

namespace meshrun {

void copy_random_rows(void* output, const void* input, int64_t rows, int64_t bytes, int loads,
                      CUstream_st* stream);

}  // namespace meshrun
