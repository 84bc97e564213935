// Short texts between the ranks, through the store in which the world met: what they say of a
// collective must not need that collective.
//
// All ranks make the same calls in the same order. Threads: one, except awaited(). Errors: those of
// the store; in a world that has lost a rank they come when the daemon tells of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun::verify {

class Exchange {
 public:
  // For the present world: make another in each world.
  Exchange();

  int rank() const { return rank_; }
  int size() const { return size_; }
  // The texts of all ranks on rank 0, by rank; elsewhere empty.
  std::vector<std::string> gather(const std::string& text);
  // Rank 0's text on all ranks.
  std::string tell(const std::string& text);
  // Returns when all ranks have called it.
  void meet() { any(false); }
  // On all ranks: whether one of them has said so.
  bool any(bool own);
  // For rank 0, from any thread: the ranks whose text gather() waits for; empty: it does not wait.
  std::vector<int> awaited() const;

 private:
  static std::string key(int64_t call, int rank);

  const int rank_;
  const int size_;
  const c10::intrusive_ptr<c10d::Store> store_;
  int64_t calls_ = 0;
  // Number of the call in which rank 0 waits; 0: in none.
  std::atomic<int64_t> waits_in_ = 0;
};

}  // namespace meshrun::verify
