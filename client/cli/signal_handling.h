// What a command that shows a job does about the signals that come to it. Only Set() asks the
// system: it leaves out the signals that this process ignores.
#pragma once

#include <signal.h>

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun::client {

struct SignalHandling {
  // They end the job, or this command alone where it only watches.
  std::vector<int> ending = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  // Passed on to the ranks.
  std::vector<int> forwarded;
  // This node leaves the job, which goes on.
  std::vector<int> leaving;
  // SIGTSTP (Ctrl-Z) stops this node's ranks, then this process. When it goes on, so do they.
  bool pauses = false;

  bool Ends(int signal) const;
  bool Forwards(int signal) const;
  bool Leaves(int signal) const;
  // The same for a node that cannot leave the job, or has none yet: what would make it leave ends
  // the job. The signal of `meshrun leave` stays among `leaving`.
  SignalHandling WithoutLeaving() const;
  // All that must be blocked in all threads, so that a signalfd gets them. A signal that this
  // process was started to ignore is not among them.
  sigset_t Set() const;
};

// `names`: torchrun's --signals-to-handle, such as SIGTERM,SIGUSR1; empty: its default. A signal
// that is not named does what it does by default. INVALID_ARGUMENT: a name that cannot be handled.
absl::StatusOr<SignalHandling> HandlingOf(std::string_view names);

// What `meshrun leave` sends to a `meshrun run`, once the coordinator has agreed that its node
// leaves.
int LeaveSignal();

// As HandlingOf, for `meshrun run`: SIGUSR1 and SIGUSR2 go to the ranks unless they end the job.
// `leaves`: --leave-on-signal, by which SIGTERM makes this node leave.
absl::StatusOr<SignalHandling> HandlingOfRun(std::string_view names, bool leaves = false);

// What ranks get before SIGTERM when this signal ends their job, or 0. SIGINT lets Python raise
// KeyboardInterrupt; the user's own signals arrive as torchrun passes them on.
int FirstSignalOfRanks(int signal);

// Stops this process, as Ctrl-Z does by default, until it is continued.
void StopThisProcess();

}  // namespace meshrun::client
