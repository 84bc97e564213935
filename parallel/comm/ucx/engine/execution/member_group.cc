#include "parallel/comm/ucx/engine/execution/member_group.h"

#include <utility>

#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {

MemberGroup::MemberGroup(const GroupConfig& c, uint32_t n)
    : config(std::make_shared<const GroupConfig>(c)),
      number(n),
      recorder(c.name),
      members(static_cast<size_t>(c.size)),
      known(1) {
  for (int rank = 0; rank < c.size; ++rank) members[rank].world_rank = c.world_rank(rank);
  members[c.rank].state = Member::kKnown;
  members[c.rank].group = number;
}

std::vector<OperationPtr> MemberGroup::unfinished() const {
  std::vector<OperationPtr> all = collectives;
  all.insert(all.end(), queued.begin(), queued.end());
  for (const auto& [sequence, operation] : point_to_point) all.push_back(operation);
  return all;
}

OperationPtr MemberGroup::start_next() {
  if (queued.empty()) return nullptr;
  // Tags tell kSequences operations apart (tag.h).
  const bool may_start =
      collectives.empty() ||
      (collectives.size() < kMaxActive &&
       queued.front()->sequence() - collectives.front()->sequence() < kSequences);
  if (!may_start) return nullptr;
  // Always in one of them, also where memory runs out.
  collectives.push_back(queued.front());
  queued.pop_front();
  return collectives.back();
}

void MemberGroup::remove(const OperationPtr& operation) {
  if (operation->is_point_to_point) {
    point_to_point.erase(operation->sequence());
  } else if (std::erase(collectives, operation) == 0) {
    std::erase(queued, operation);
  }
}

}  // namespace meshrun::ucx
