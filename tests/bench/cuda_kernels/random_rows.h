// The bound for kernels that read rows at random places: as many rows, at places that arithmetic
// gives, written one after another. No index is read, so what is left is what the memory does with
// such an order of addresses.
//
// Rows of `bytes` bytes, contiguous, as many in as out; both aligned to 16 bytes. In accesses as
// wide as rows allow, 4 or 8 of them under way in a thread. Queued on `stream`; nothing is waited
// for. Errors: CUDA's, from cudaGetLastError().
#pragma once

#include <cstdint>

struct CUstream_st;

namespace meshrun {

void copy_random_rows(void* output, const void* input, int64_t rows, int64_t bytes, bool eight,
                      CUstream_st* stream);

}  // namespace meshrun
