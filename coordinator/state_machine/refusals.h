// Hosts that could not prepare a generation of a job, and what follows. It is the host's fault: the
// job goes back to the queue uncharged, and is placed there again only where no other host could
// ever take it. A command that cannot run is the job's fault once a second host says so, or where
// no other host could be asked. Functions over one job; no errors.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/state_machine/jobs.h"

namespace meshrun::coordinator {

// Notes it in the job's record, which keeps the newest kMostRefusals hosts.
inline constexpr int kMostRefusals = 256;
void NoteRefusal(Job& job, const std::string& node_id, const v1::PrepareResult& result);

// How often the node has refused the job; 0: never.
uint32_t TimesRefused(const Job& job, const std::string& node_id);

// `nodes`: those that take jobs. Whether those among them that have not refused the job could take
// it if nothing else ran.
bool OthersCouldTake(const Job& job, std::vector<const v1::Node*> nodes);

// What becomes of a job after the refusal that was noted last.
struct AfterRefusal {
  // When the job may be placed again; absent: it fails.
  std::optional<std::chrono::nanoseconds> again_in;
  // OthersCouldTake.
  bool others = false;
  // Node that says the same of the command as the last one; empty: none does.
  std::string agrees;
};
AfterRefusal After(const Job& job, const std::string& node_id, const v1::PrepareResult& last,
                   const std::vector<const v1::Node*>& nodes);

}  // namespace meshrun::coordinator
