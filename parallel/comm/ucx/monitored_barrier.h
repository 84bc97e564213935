// A barrier that names the ranks that have not come, over a c10d store: it needs no connection
// between ranks, so it also works where collectives hang.
//
//   <number>/<rank>   a rank has come
//   <number>/verdict  rank 0's: empty, or what went wrong
//
// Rank 0 asks the store for the others, which ask it for the verdict. Each rank counts its calls: a
// rank that left one out gets that one's verdict at its next call.
//
// Threads: any; one call waits for the one before it. The store is never held while a call waits.
// Errors: CollectiveTimeoutError on every rank that came; GroupAbortedError after end(); the
// store's.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "c10/util/intrusive_ptr.h"
#include "core/mutex.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

class MonitoredBarrier {
 public:
  // Keys of `store` are this barrier's own. `group`: its name, for errors.
  MonitoredBarrier(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string group);

  // wait_all_ranks: the error names all ranks that have not come, not the first alone.
  void wait(std::chrono::milliseconds timeout, bool wait_all_ranks) MESHRUN_EXCLUDES(calls_);
  // Lets go of the store, whose server would else live as long as a handle of the group does.
  void end() MESHRUN_EXCLUDES(mu_);

 private:
  void wait_for_others(c10d::Store& store, std::chrono::milliseconds timeout, bool wait_all_ranks)
      MESHRUN_REQUIRES(calls_);
  void wait_for_verdict(c10d::Store& store, std::chrono::milliseconds timeout)
      MESHRUN_REQUIRES(calls_);
  std::string key(int64_t number, int rank) const;
  std::string verdict_key(int64_t number) const;

  const int rank_;
  const int size_;
  const std::string group_;
  Mutex mu_;
  c10::intrusive_ptr<c10d::Store> store_ MESHRUN_GUARDED_BY(mu_);
  Mutex calls_;
  int64_t number_ MESHRUN_GUARDED_BY(calls_) = 0;  // of this call
};

}  // namespace meshrun
