// What the v-collectives (parallel/collectives) need of a backend beyond c10d::Backend: uneven
// pieces along any dimension, written in place, and the check of arguments across ranks.
//
// Implemented by UcxBackend; for any other backend by CallsOnC10d (v_collectives_on_c10d.h), which
// says so where it must copy. Tensors are contiguous; outputs are allocated by the caller, once.
//
// A call whose arguments are wrong on this rank is made all the same, with `problem` set: it moves
// nothing, and every rank raises CollectiveArgumentError.
//
// Threads: as c10d::Backend. Errors come from the Work (collective_errors.h).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "ATen/core/Tensor.h"
#include "c10/util/ArrayRef.h"
#include "c10/util/intrusive_ptr.h"

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace meshrun {

struct VOptions {
  // Where this rank's arguments are wrong: what is, in words.
  std::string problem;
  // Whether the input takes part in autograd; must be the same on all ranks.
  bool requires_grad = false;
  // f16 and bf16 accumulate in f32.
  bool use_fp32 = true;
  // The caller goes on computing; false: it waits next.
  bool async_op = false;
  // Absent: the group's.
  std::chrono::milliseconds timeout{-1};
};

class VCollectives {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  virtual ~VCollectives() = default;

  // `sizes[r]`: extent of rank r's piece along `dim`. The output is the pieces in rank order.
  // input [.., sizes[rank], ..] -> output [.., sum(sizes), ..]
  virtual WorkPtr all_gather_v(at::Tensor output, const at::Tensor& input, c10::IntArrayRef sizes,
                               int64_t dim, const VOptions& options) = 0;
  // input [.., sum(sizes), ..] -> output [.., sizes[rank], ..]: the sum over ranks, in rank order.
  virtual WorkPtr reduce_scatter_v(at::Tensor output, const at::Tensor& input,
                                   c10::IntArrayRef sizes, int64_t dim,
                                   const VOptions& options) = 0;
  // As all_gather_v, at `dst` alone; elsewhere `output` is undefined.
  virtual WorkPtr gather_v(at::Tensor output, const at::Tensor& input, c10::IntArrayRef sizes,
                           int64_t dim, int64_t dst, const VOptions& options) = 0;
  // `input` is undefined but at `src`.
  virtual WorkPtr scatter_v(at::Tensor output, const at::Tensor& input, c10::IntArrayRef sizes,
                            int64_t dim, int64_t src, const VOptions& options) = 0;
  // Piece j of `input` along `input_dim` goes to rank j; what comes from rank i is piece i of
  // `output` along `output_dim`. A transposition where the dims differ.
  virtual WorkPtr all_to_all_v(at::Tensor output, const at::Tensor& input,
                               c10::IntArrayRef output_sizes, int64_t output_dim,
                               c10::IntArrayRef input_sizes, int64_t input_dim,
                               const VOptions& options) = 0;
};

// The backend's own (a cross-cast), or an adapter over its c10d calls, which holds the backend.
std::shared_ptr<VCollectives> v_collectives_of(const c10::intrusive_ptr<c10d::Backend>& backend);

}  // namespace meshrun
