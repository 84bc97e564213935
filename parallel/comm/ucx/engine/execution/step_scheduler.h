// Runs the schedules of operations: posts the steps that send and receive, copies and reduces what
// is ready within the bound of a round, and finishes steps, which makes others ready.
//
//   kWaiting --all it waits for is finished--> kReady --> kPosted --> kFinished
//                                                 \--copy, reduce----/
//
// A receive may be kReady again: to be unstaged, or read where the sender says; and kPosted again,
// where that is out of reach.
//
// A send or receive outside of a schedule is one posted step. Threads: under the engine's lock.
// Errors go to the listener.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "parallel/comm/ucx/engine/execution/group_config.h"
#include "parallel/comm/ucx/engine/execution/offers.h"
#include "parallel/comm/ucx/engine/execution/requests.h"

namespace meshrun::ucx {

class StepScheduler {
 public:
  // A round copies and reduces so much, or one step of a reduction, before it returns.
  static constexpr int64_t kRoundBytes = 512 << 10;

  // Told in the middle of the scheduler's calls: may begin and forget operations, not run().
  class Listener {
   public:
    virtual ~Listener() = default;
    // The last step is finished.
    virtual void steps_done(RunningOperation& operation) = 0;
    // A send failed as it was posted.
    virtual void send_failed(RunningOperation& operation, const Request& request) = 0;
  };

  // All outlive it.
  StepScheduler(Requests& requests, Offers& offers, Counters& counters, Listener& listener)
      : requests_(requests), offers_(offers), counters_(counters), listener_(listener) {}

  // Makes ready what waits for nothing in the schedule, if there is one.
  void begin(RunningOperation& operation);
  void post_point_to_point(RunningOperation& operation);
  // The message of a step is done; its connection did not break. False: its length is wrong.
  [[nodiscard]] bool message_done(RunningOperation& operation, const Request& request);
  // The offer for a step that sends is known, or the answer to what it has lent.
  void offer_known(RunningOperation& operation, StepId id);
  // An operation has ended: none of its steps is run any more.
  void forget(RunningOperation& operation);

  bool has_computations() const { return !computes_.empty(); }
  // Posts what can be posted, computes within the round's bound.
  void run();

 private:
  struct Ready {
    RunningOperation* operation;
    StepId step;
    int64_t done = 0;  // bytes, of a copy that a round has broken off
    // Target of what is copied: of a copy; in the receiver's memory, or in what is sent then; where
    // what was received, or is read from the sender's memory, belongs.
    StridedSpan to = {};
    int64_t to_offset = 0;
  };

  void make_ready(RunningOperation& operation, StepId id);
  void run_posts();
  void post(RunningOperation& operation, StepId id);
  void receive(RunningOperation& operation, StepId id);
  void send(RunningOperation& operation, StepId id);
  // `bytes`: none where they have been written into the receiver's memory.
  void send_data(RunningOperation& operation, StepId id, std::span<const std::byte> bytes);
  // Moves what a staged receive has brought to where it belongs.
  void unstage(RunningOperation& operation, StepId id);
  // Copies to where a receive's bytes belong, from its staging or from the sender's memory.
  void bring_home(RunningOperation& operation, StepId id);
  // Moves what the sender lends to where it belongs; where it cannot be reached, has it sent.
  void read(RunningOperation& operation, StepId id);
  // Tells the sender of a source. False: its connection broke.
  bool answer(RunningOperation& operation, StepId id, bool was_read);
  void finish(RunningOperation& operation, StepId id);

  void compute_later(const Ready& ready);
  // At most `budget` bytes of a copy, or all of a reduction; returns how many.
  int64_t compute(const Ready& ready, int64_t budget);
  int64_t copy_part(Ready ready, int64_t budget);
  int64_t reduce_all(const Ready& ready);

  Requests& requests_;
  Offers& offers_;
  Counters& counters_;
  Listener& listener_;
  std::deque<Ready> posts_, computes_;
  std::vector<const std::byte*> sources_;
};

}  // namespace meshrun::ucx
