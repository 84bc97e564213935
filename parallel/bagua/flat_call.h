// One call of a function of collectives.h on its way to a c10d backend, as a CollectiveSpec
// describes it. Internal to this library.
//
// The function checks its arguments first; a problem becomes a text, not an exception, since the
// other ranks wait. run() then makes the call, or tells the others of the problem:
//
//   ucx, CPU tensors  the ranks' headers are compared: every rank raises the same error
//   CUDA tensors      the same with MESHRUN_CHECK_COLLECTIVES=1, if the group has ucx for the CPU
//   Gloo, all-to-all  the same, by an all-gather before the call (gathered_comparison.h)
//   otherwise         raised on this rank alone, before anything is sent
//
// The backend gets flat tensors: views of contiguous memory, copies of any other. Copies are
// written back when the call has succeeded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/bagua/communicator.h"
#include "parallel/bagua/reduce_op.h"
#include "parallel/comm/interface/call_check.h"
#include "parallel/comm/interface/call_comparer.h"
#include "parallel/comm/interface/collective_spec.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/Types.hpp"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun::bagua::detail {

class FlatCall : public CallCheck {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  // `name` is static. Raises NotAMemberError, and GroupAbortedError after Communicator::abort().
  FlatCall(const Communicator& comm, const char* name, OperationKind kind);
  FlatCall(const FlatCall&) = delete;  // its words refer to it
  FlatCall& operator=(const FlatCall&) = delete;
  // Argument `name` must be a rank of the communicator.
  FlatCall& with_root(int64_t root, const char* name);
  FlatCall& with_op(ReduceOp op);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool is_root() const { return rank_ == spec_.root; }

  // A dense tensor, on a device that the communicator has a backend for.
  bool takes(const at::Tensor& tensor, std::string_view name);
  // Its elements must not share memory.
  bool takes_output(const at::Tensor& tensor, std::string_view name);
  // send_tensor and recv_tensor, of one dtype.
  bool takes_pair(const at::Tensor& send, const at::Tensor& recv);
  // A pair that has `sent` and `received` times as many elements as a part has; 1 or size().
  bool takes_both(const at::Tensor& send, int64_t sent, const at::Tensor& recv, int64_t received);
  bool has_elements(const at::Tensor& tensor, std::string_view name, int64_t count);
  bool can_be_shared_out(const at::Tensor& tensor, std::string_view name);
  // Whether the backend has the reduction, for a tensor that has been taken. Complex numbers are
  // pairs of real ones to a backend that does not compare headers itself.
  bool can_be_reduced(const at::Tensor& tensor);
  // What all ranks must have alike, beside kind, reduction and root, where the backend does not
  // compare it itself: a dtype, and a count (-1: none).
  void agree(const at::Tensor& tensor, int64_t count = -1);
  void agree(const Tensors& tensors);
  // An all-to-all's elements that go to each rank and that come from each. Where the backend does
  // not compare them itself, they are compared before the call.
  void exchanges(std::vector<int64_t> sent, std::vector<int64_t> expected);

  // Calls `start` on the communicator's stream, with gradients off, and returns when its Work is
  // done; a null Work is done. Raises what collective_errors.h has, or what the backend raises.
  void run(const std::function<WorkPtr(c10d::Backend&)>& start);

  // Within run():
  // c10d's options of this call, which is waited for at once.
  template <typename Options>
  Options options() const {
    Options options;
    options.asyncOp = false;
    if constexpr (requires { options.rootRank; }) options.rootRank = spec_.root;
    if constexpr (requires { options.reduceOp; }) options.reduceOp = spec_.op;
    return options;
  }
  at::Tensor flat_to_read(const at::Tensor& tensor) const;
  at::Tensor flat_to_write(const at::Tensor& tensor);
  at::Tensor flat_to_update(const at::Tensor& tensor);
  // What `recv` is after `send` has been copied to it; they may be the same tensor.
  at::Tensor flat_to_update(const at::Tensor& recv, const at::Tensor& send);
  // `input` itself, or a copy where `output` is, in part, the same memory.
  static at::Tensor apart(const at::Tensor& input, const at::Tensor& output);
  // The `size()` equal parts of a flat tensor.
  Tensors blocks(const at::Tensor& flat) const;
  // What only moves. NCCL and Gloo lack dtypes, so it goes as bytes; ucx has all, and compares
  // them.
  at::Tensor moved(const at::Tensor& flat) const;
  Tensors moved(Tensors parts) const;
  // A flat tensor as the backend can reduce it: itself, or what NCCL and Gloo know: complex numbers
  // as pairs, in the same memory; int16 as a copy in int32, of which the low 16 bits are what the
  // reduction in int16 gives. to_reduce_in writes that copy back after the call.
  at::Tensor to_reduce(const at::Tensor& flat) const;
  at::Tensor to_reduce_in(const at::Tensor& flat);
  // Whether the backend leaves inputs as they are in reductions in place.
  bool keeps_inputs() const;

 private:
  bool is_message() const {
    return spec_.kind == OperationKind::kSend || spec_.kind == OperationKind::kReceive;
  }
  c10::intrusive_ptr<c10d::Backend> backend_for(c10::DeviceType type) const;
  // Says which backend tells the others of a problem, also where the tensor is the problem.
  void note_device(const at::Tensor& tensor);
  void report_or_check();
  // For backends that compare nothing themselves.
  void compare(const ComparingBackend& comparer) const;

  const Communicator comm_;
  const char* const name_;
  int rank_;
  int size_;
  CollectiveSpec spec_;                // its words: what agree() was told
  std::optional<ReduceOp> op_;         // the same as spec_.op, for errors
  std::optional<c10::Device> device_;  // the first tensor's that has a backend
  ComparedRow row_;                    // its call is null in all but an all-to-all
  std::vector<std::pair<at::Tensor, at::Tensor>> to_copy_;  // to a tensor, from a flat one
};

}  // namespace meshrun::bagua::detail
