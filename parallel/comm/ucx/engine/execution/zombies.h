// Operations that have ended for their caller, and whose memory something may still touch: a
// request that the transport holds, or a peer to which memory is lent (offers.h), to write or to
// read.
//
// Such memory is freed when the last request is done and each borrower has said that it is through,
// or its process has ended: after news that a rank is gone, the kernel is asked. What is left when
// the transport closes is kept for ever.
//
// Threads: under the engine's lock. No errors.
#pragma once

#include <unordered_map>

#include "core/clock.h"
#include "parallel/comm/ucx/engine/execution/actions.h"
#include "parallel/comm/ucx/engine/execution/member_group.h"
#include "parallel/comm/ucx/engine/execution/scratch_pool.h"

namespace meshrun::ucx {

class Zombies {
 public:
  // Both outlive it.
  Zombies(ScratchPool& scratch, Actions& actions) : scratch_(scratch), actions_(actions) {}

  // An operation has ended: its memory is freed, or it is kept.
  void add(const OperationPtr& operation);
  // The transport is through with one more request of an operation that has ended.
  void request_done(RunningOperation& operation);
  // A member of a group says that it touches nothing any more.
  void give_back(uint32_t group, int borrower);
  // Some rank is gone: frees what is lent to processes that have ended. News of a death may come
  // before the kernel has ended the last of their threads, or be wrong, so it looks again.
  void look_for_the_dead(SteadyNanos now);
  // When to look again.
  SteadyNanos next_look() const { return next_look_; }
  // The transport is closed.
  void close();

  // Its caller's memory and its scratch memory: nothing touches them any more.
  void release(RunningOperation& operation);

 private:
  // Frees those of which nothing is left, if `is_changed`.
  template <typename Change>
  void free_if(Change is_changed);

  ScratchPool& scratch_;
  Actions& actions_;
  std::unordered_map<RunningOperation*, OperationPtr> kept_;
  SteadyNanos next_look_ = SteadyNanos::max();
};

}  // namespace meshrun::ucx
