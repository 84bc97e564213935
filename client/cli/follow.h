// Shows a job until it has ended: the lines of its ranks, its progress, and how it ended.
//
// One thread draws. Another watches the job, and one for each generation reads its output; they put
// what they get into a bounded queue (a flood of output waits in the ranks' files). Ctrl-C cancels
// the job, a second one kills it, a third one leaves. Ctrl-Z stops the ranks and this process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/cli/output_pipe.h"
#include "client/cli/signal_handling.h"
#include "client/client.h"

namespace meshrun::client {

struct FollowOptions {
  // Can the job be described when this command has ended? False for `run`.
  bool can_ask_later = true;
  // On SIGHUP: leave the job alone and go (true), or cancel it as on Ctrl-C.
  bool detach_on_hangup = true;
  // Its signals must be blocked before the process has threads.
  SignalHandling signals;
  std::chrono::nanoseconds patience = std::chrono::seconds(60);
  // Processes that the job needs: a descriptor that is readable once the process has ended, and a
  // sentence for that case.
  struct Needed {
    int ended_fd = -1;
    std::function<std::string()> describe_end;
  };
  std::vector<Needed> needed;
  OutputView view;
  // On one of several hosts: only the output of ranks on this node is shown, and `view` gets their
  // local ranks instead of their world ranks. Empty: all nodes.
  std::string only_node;
  // `only_node` can leave the job: the coordinator is elsewhere.
  bool can_leave = false;
  // What to say when the coordinator stays away, which is another host's; empty: what the client
  // says.
  std::function<std::string()> coordinator_lost;
  // The exit code tells of output that was lost before it could be shown.
  bool must_show_all = false;
  // All that is shown goes to standard error, and the job as it ended, or as it was last told, to
  // standard output.
  bool json = false;
};

// Returns the exit code.
int Follow(Client& client, const v1::Job& job, const FollowOptions& options);

}  // namespace meshrun::client
