// The world of a rank in the tests of collectives: the manager on the backend under test, groups of
// any ranks beside it.
//
//   const RankWorld world;                          joins, as the launcher's environment says
//   all_gather_v(x, {}, 0, true, world.group());
//   const auto pair = world.make_group({0, 2});     null on the others; every rank calls it
//
// MESHRUN_BACKEND: "ucx" (the default), "gloo" or, in programs that link it, "nccl". One at::Tensor
// thread a rank: ranks share the cores. The destructor waits for all ranks and leaves.
// Errors: the manager's.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "c10/core/Device.h"
#include "c10/util/intrusive_ptr.h"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

class RankWorld {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  RankWorld();
  ~RankWorld();
  RankWorld(const RankWorld&) = delete;
  RankWorld& operator=(const RankWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& backend() const { return backend_; }
  c10::Device device() const;
  // Group of all ranks.
  const Group& group() const { return group_; }
  // Makes a group of these ranks, in this order. The n-th call on every rank makes the same group.
  Group make_group(const std::vector<int>& ranks) const;
  // Ends collectives of that group which take longer.
  static void set_timeout(const Group& group, std::chrono::milliseconds timeout);
  // The destructor then waits for nobody: a peer is gone.
  void leave_alone() { leaves_together_ = false; }

 private:
  std::string backend_;
  int rank_ = 0;
  int size_ = 1;
  Group group_;
  mutable int groups_made_ = 0;
  bool leaves_together_ = true;
};

// Value of a variable of a rank's environment, else `otherwise`.
std::string variable(const char* name, const std::string& otherwise = "");

}  // namespace meshrun
