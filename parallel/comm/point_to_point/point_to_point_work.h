// The c10d::Work of sends and receives that belong together, and of what is left to do when they
// are through: putting received pieces into place, adding them up.
//
// wait() waits for all of them and finishes; with NCCL both are only queued on the current stream.
// Where the parts do not complete by themselves (Gloo's), the first isCompleted() starts a thread
// that waits for them. The destructor joins it; a Work that nobody waits for is never finished.
//
// Threads: any. Errors: wait() throws the first part's, or finish's, every time. A wait with a
// timeout that passes ends the Work.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Stream.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

class PointToPointWork : public c10d::Work {
 public:
  using Parts = std::vector<c10::intrusive_ptr<c10d::Work>>;

  // `kept`: what finish() reads. On a stream other than the one of the call, its memory is kept
  // until that stream is done with it. `timeout`: of the parts where wait() has none; not positive:
  // theirs.
  PointToPointWork(c10d::OpType type, Parts parts, std::function<void()> finish,
                   std::vector<at::Tensor> kept, at::Tensor result,
                   std::chrono::milliseconds timeout);
  // One that has failed already.
  PointToPointWork(c10d::OpType type, std::exception_ptr error);
  ~PointToPointWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

 private:
  bool is_settled() const;
  void settle(std::chrono::milliseconds timeout);

  std::mutex settling_;  // one at a time; never with mutex_ held
  Parts parts_;
  std::function<void()> finish_;
  std::vector<at::Tensor> kept_;
  const at::Tensor result_;
  const std::chrono::milliseconds timeout_;
  const c10::Stream stream_;  // the current one at the call
  std::thread waiter_;        // guarded by mutex_
};

}  // namespace meshrun
