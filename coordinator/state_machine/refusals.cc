#include "coordinator/state_machine/refusals.h"

#include <algorithm>

#include "coordinator/state_machine/placement.h"
#include "coordinator/state_machine/restart_budget.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

// A host that no other can replace may say no so often before a job that has never run fails.
constexpr uint32_t kLastChances = 3;
constexpr size_t kLongestError = 1000;

bool CouldTake(const Job& job, std::vector<const v1::Node*> nodes) {
  PlacementRequest request = job.RequestOn(std::move(nodes));
  request.ignore_usage = true;
  return Place(request).placement.has_value();
}

}  // namespace

void NoteRefusal(Job& job, const std::string& node_id, const v1::PrepareResult& result) {
  const uint32_t times = TimesRefused(job, node_id);
  job.DropRefusal(node_id);
  auto& refusals = *job.record.mutable_refusals();
  if (refusals.size() == kMostRefusals) refusals.erase(refusals.begin());
  v1::PrepareRefusal& refusal = *refusals.Add();
  refusal.set_node_id(node_id);
  refusal.set_error(std::string(Utf8Prefix(result.error(), kLongestError)));
  refusal.set_bad_command(result.bad_command());
  refusal.set_times(times + 1);
}

uint32_t TimesRefused(const Job& job, const std::string& node_id) {
  const v1::PrepareRefusal* const refusal = job.RefusalOf(node_id);
  return refusal == nullptr ? 0 : refusal->times();
}

bool OthersCouldTake(const Job& job, std::vector<const v1::Node*> nodes) {
  std::erase_if(nodes,
                [&](const v1::Node* node) { return job.RefusalOf(node->node_id()) != nullptr; });
  return CouldTake(job, std::move(nodes));
}

AfterRefusal After(const Job& job, const std::string& node_id, const v1::PrepareResult& last,
                   const std::vector<const v1::Node*>& nodes) {
  AfterRefusal after;
  const bool has_run = job.view.has_started_at();
  if (last.bad_command()) {
    for (const v1::PrepareRefusal& refusal : job.record.refusals()) {
      if (refusal.bad_command() && refusal.node_id() != node_id) after.agrees = refusal.node_id();
    }
    if (!after.agrees.empty()) return after;
    // Hosts that have refused it for another reason may still find the program.
    std::vector<const v1::Node*> others = nodes;
    std::erase_if(others, [&](const v1::Node* node) { return node->node_id() == node_id; });
    if (!CouldTake(job, std::move(others)) && !has_run) return after;
  }
  after.again_in = std::chrono::nanoseconds(0);
  after.others = OthersCouldTake(job, nodes);
  if (after.others) return after;
  uint32_t most = 0;
  for (const v1::PrepareRefusal& refusal : job.record.refusals()) {
    most = std::max(most, refusal.times());
  }
  after.again_in = Backoff(most);
  // A job that has run waits as it does for any node: it has something to lose.
  if (job.record.refusals_size() == 1 && most >= kLastChances && !has_run) after.again_in.reset();
  return after;
}

}  // namespace meshrun::coordinator
