// A Work after which something is left to do on this rank: a box to unpack, a sum to divide.
//
// The first wait() does it. Threads: any, also for copies of a tensor that wait at once.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <utility>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

class DeferredWork : public c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // `rest` must own what it uses.
  DeferredWork(WorkPtr transfer, std::function<void()> rest)
      : transfer_(std::move(transfer)), rest_(std::move(rest)) {}

  // State of the transfer alone: wait() does the rest.
  bool isCompleted() override { return transfer_->isCompleted(); }
  bool isSuccess() const override { return transfer_->isSuccess(); }
  std::exception_ptr exception() const override { return transfer_->exception(); }

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    const std::lock_guard lock(mutex_);
    transfer_->wait(timeout);
    if (rest_) std::exchange(rest_, nullptr)();
    return true;
  }

 private:
  const WorkPtr transfer_;
  std::mutex mutex_;
  std::function<void()> rest_;
};

}  // namespace meshrun
