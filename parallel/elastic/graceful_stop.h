// A loop that ends at the same step on all ranks when one of them is asked to stop: by SIGTERM, by
// SIGINT, or by meshrun (cancel, preemption, a drained node).
//
//   GracefulStop stop;  // after DistributedManager::initialize()
//   for (int64_t step = first; step < last; ++step) {
//     train(step);
//     if (step % 10 == 9 && stop.agreed()) {
//       checkpoints.save(*network, optimizer, {step + 1});
//       DistributedManager::cleanup(true);
//       return stop.exit_code();  // after SIGTERM: 143 on every rank, signalled or not
//     }
//   }
//
// The same signal again, a second later or more, ends the process at once; after agreed() SIGTERM
// does not, since launchers send it to ranks whose peer has ended first. Signals are this
// process's: one GracefulStop at a time.
// Threads: one at a time.
#pragma once

#include "parallel/manager/group_argument.h"

namespace meshrun {

class GracefulStop {
 public:
  // Catches the signals from now on, and listens to the rank's daemon.
  GracefulStop();

  // This rank has been asked. Not collective.
  bool requested() const;
  // Some rank of `group` has been asked: the same answer on all of them. Collective; one message of
  // one number. Not inside ElasticState::update(). Errors: those of collectives.
  bool agreed(const GroupArgument& group = {});
  // 128 + the signal, SIGTERM's where another rank got it; 0 while nobody asked.
  int exit_code() const;
};

}  // namespace meshrun
