#include "parallel/comm/ucx/engine/execution/wait_reports.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

namespace meshrun::ucx {
namespace {

WaitCall wait_call(const RunningOperation& operation) {
  WaitCall call;
  const GroupConfig& config = *operation.config;
  call.group = config.name;
  std::vector<int> members;
  members.reserve(config.size);
  for (int rank = 0; rank < config.size; ++rank) members.push_back(config.world_rank(rank));
  call.members = std::move(members);
  call.sequence = operation.sequence();
  if (operation.is_point_to_point) {
    for (const int rank : operation.missing_ranks()) call.peers.push_back(config.world_rank(rank));
  }
  call.operation = operation.name();
  call.is_moving = operation.state == OperationState::kMoving || !config.check_headers;
  return call;
}

}  // namespace

WaitReport wait_report_of(const std::vector<const Operation*>& operations, const Groups& groups) {
  WaitReport report;
  for (const Operation* blocked : operations) {
    const auto& operation = static_cast<const RunningOperation&>(*blocked);
    report.rank = operation.config->world_rank(operation.config->rank);
    WaitCall call = wait_call(operation);
    const bool is_told =
        std::find(report.calls.begin(), report.calls.end(), call) != report.calls.end();
    if (!is_told) report.calls.push_back(std::move(call));
  }
  for (const auto& [number, g] : groups) {
    uint64_t& called = report.called[g->config->name];
    // Two groups with one name cannot be told apart: the larger number makes no verdict.
    called = std::max(called, g->last_sequence);
    for (const auto& [sequence, message] : g->point_to_point) {
      std::set<int>& ranks = message->is_send() ? report.sending_to : report.receiving_from;
      const int peer = message->point_to_point.peer;
      for (int rank = 0; rank < g->config->size; ++rank) {
        const bool may_be = peer < 0 ? rank != g->config->rank : rank == peer;
        if (may_be) ranks.insert(g->members[rank].world_rank);
      }
    }
  }
  return report;
}

}  // namespace meshrun::ucx
