// The c10d::Work of calls that belong together, and of what is left to do when they are through:
// putting received pieces into place, adding them up. The result comes about whether or not anybody
// waits for it.
//
//   CPU (Gloo)   wait() waits for the parts and finishes. Parts do not complete by themselves: the
//                first isCompleted() starts a thread that waits for them, and the destructor waits
//                too, except where an exception has ended the calling code
//   GPU (NCCL)   the constructor queues the rest behind the parts: on the current stream where the
//                caller waits at once, else on another one, so that what the caller queues next
//                waits for nothing. wait() makes the current stream wait, every time; the host
//                waits only where it is given a timeout
//
// Memory that another stream than the call's uses is recorded there: the allocator gives it to
// nobody else before that stream is done with it.
//
// Threads: any. Errors: wait() throws the first part's, or finish's, every time. On the CPU a wait
// with a timeout that passes ends the Work.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Event.h"
#include "c10/core/Stream.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

class PointToPointWork : public c10d::Work {
 public:
  using Parts = std::vector<c10::intrusive_ptr<c10d::Work>>;

  struct Rest {
    // Where the tensors are, on ranks without a result too.
    c10::Device device = c10::Device(c10::DeviceType::CPU);
    std::function<void()> finish;
    std::vector<at::Tensor> kept;  // what travels, and what finish() reads
    at::Tensor result;             // undefined: none on this rank
    // On the CPU: the parts' timeout if wait() is called without one; not positive: the parts' own.
    std::chrono::milliseconds timeout = kNoTimeout;
    // Somebody waits later, or nobody.
    bool async = false;
  };

  PointToPointWork(c10d::OpType type, Parts parts, Rest rest);
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
  bool is_on_cpu() const { return rest_.device.is_cpu(); }
  // On the CPU: waits, finishes.
  void settle(std::chrono::milliseconds timeout);
  // On a GPU: from the constructor; from wait().
  void queue();
  void join(std::chrono::milliseconds timeout);
  bool has_passed() const;

  std::mutex settling_;  // one at a time; never with mutex_ held
  Parts parts_;
  Rest rest_;
  const int exceptions_;         // under way on the calling thread
  const c10::Stream called_on_;  // the current stream at the call
  // On a GPU, with something to finish: where that is queued, and on another stream than the call's
  // when it is done. Constant after the constructor.
  std::optional<c10::Stream> finished_on_;
  std::optional<c10::Event> finished_;
  std::exception_ptr queue_error_;
  std::thread waiter_;  // guarded by mutex_
};

}  // namespace meshrun
