// Backends that compare the ranks' calls before data moves, so that a wrong call is the same error
// on all ranks.
//
// A backend implements CallComparer beside c10d::Backend. It compares its own collectives always.
// For those of another backend of the group (CUDA tensors) it compares where it serves the group's
// CPU tensors and MESHRUN_CHECK_COLLECTIVES=1 asks for it, on all ranks alike.
//
// Threads: any. The look-ups are cheap: one in the group, one in the environment.
#pragma once

#include <cstdint>
#include <string>

#include "c10/util/intrusive_ptr.h"
#include "parallel/comm/interface/v_collectives.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

class CallComparer {
 public:
  virtual ~CallComparer() = default;

  // Compares a header and moves nothing else: `what` in words, `digest` of all that must agree.
  // Raises, from the Work and on every rank, what differs or the problem of one rank.
  virtual c10::intrusive_ptr<c10d::Work> compare(std::string what, uint64_t digest, VCall call) = 0;
};

// A comparer and the backend that it is; empty where there is none.
class ComparingBackend {
 public:
  ComparingBackend() = default;
  // Empty where `backend` does not compare, or is null.
  explicit ComparingBackend(c10::intrusive_ptr<c10d::Backend> backend);

  explicit operator bool() const { return comparer_ != nullptr; }
  CallComparer* operator->() const { return comparer_; }
  c10d::Backend& backend() const { return *backend_; }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  CallComparer* comparer_ = nullptr;
};

// The backend of the group's CPU tensors, where it compares.
ComparingBackend cpu_comparer_of(c10d::ProcessGroup& group);

// What compares calls of the group's other backends, where MESHRUN_CHECK_COLLECTIVES=1.
ComparingBackend comparer_of(c10d::ProcessGroup& group);

}  // namespace meshrun
