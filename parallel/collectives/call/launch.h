// From a Collective and a tensor to a result: makes the output, makes the call on the group's
// backend, and waits. Internal to parallel/collectives.
#pragma once

#include "ATen/core/Tensor.h"
#include "parallel/collectives/call/collective.h"
#include "parallel/comm/interface/v_collectives.h"

namespace meshrun {

using WorkPtr = VCollectives::WorkPtr;

// Which of the two collectives that belong together: the one that was asked for, or the one that
// carries gradients back.
enum class Pass : bool { kForward, kBackward };

constexpr Pass opposite_of(Pass pass) {
  return pass == Pass::kForward ? Pass::kBackward : Pass::kForward;
}

// How a call is made this time.
struct Launch {
  Pass pass = Pass::kForward;
  bool requires_grad = false;  // compared between the ranks
  // Where an asynchronous call leaves its Work; null: it is waited for.
  WorkPtr* work = nullptr;
};

// Without a gradient. If the Collective is wrong, the call is made all the same, so that the other
// ranks get the problem too, and then the problem is thrown (or left to the Work).
at::Tensor launch(const Collective& collective, const at::Tensor& tensor, const Launch& how = {});

// What launch() does, for callers that make their tensors themselves. `problem`: thrown after the
// call, empty: none.
void call_backend(const GroupArgument::Handle& group, c10::DeviceType device,
                  const at::Tensor& output, const at::Tensor& input, CollectiveSpec spec,
                  const std::string& problem, const Launch& how);
// Waits, or leaves the Work.
void finish(WorkPtr work, const std::string& problem, const Launch& how);

// Uninitialised, contiguous, like `tensor` except its extent along `dim`.
at::Tensor empty_with_extent(const at::Tensor& tensor, int64_t dim, int64_t extent);

// Names the function that the caller knows, where a collective of another name does its work, for
// the errors of calls that this thread makes meanwhile: "backward of all_gather_v" for a
// reduce_scatter_v.
class CalledAs {
 public:
  explicit CalledAs(const char* name);
  ~CalledAs();
  CalledAs(const CalledAs&) = delete;
  CalledAs& operator=(const CalledAs&) = delete;

 private:
  const char* const before_;
};

}  // namespace meshrun
