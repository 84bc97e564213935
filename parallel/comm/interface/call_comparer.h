// Backends that compare the ranks' calls before data moves, so that a wrong call is the same error
// on all ranks.
//
// A backend implements CallComparer beside c10d::Backend. It compares its own collectives always.
// For those of another backend of the group (CUDA tensors) it compares where it serves the group's
// CPU tensors and MESHRUN_CHECK_COLLECTIVES=1 asks for it, on all ranks alike.
//
// Threads: any. The look-ups are cheap: one in the group, one in the environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "c10/core/DeviceType.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/comm/interface/node_number.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/Types.hpp"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

// The elements that a rank sends to each rank and that it expects from each, which are compared
// pair by pair. Empty: the digest of a comparison says it all.
struct ComparedRow {
  const char* call = nullptr;  // "all_to_all_v"; static, and equal on all ranks
  std::vector<int64_t> sent, expected;
};

// What a rank is about to call.
struct Comparison {
  std::string what = {};  // in words, for the error
  uint64_t digest = 0;    // of all that must agree
  ComparedRow row = {};
  std::string problem = {};  // of this rank's arguments; empty: none
  bool async = false;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;  // 0 and less: the group's
};

class CallComparer {
 public:
  virtual ~CallComparer() = default;

  // Compares and moves nothing else. Raises, from the Work and on every rank, what differs or the
  // problem of one rank.
  virtual c10::intrusive_ptr<c10d::Work> compare(Comparison comparison) = 0;
  // For an autograd node that is being made.
  virtual NodeNumber next_node_number() = 0;
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

// For an autograd node that is being made, whose backward calls the group with tensors of `device`;
// none where nothing compares them.
NodeNumber number_of_node(c10d::ProcessGroup& group, c10::DeviceType device);

}  // namespace meshrun
