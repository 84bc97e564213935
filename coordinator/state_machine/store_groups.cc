// What the rendezvous store knows of groups: their unique ids, what ranks announce of them, and the
// table of the world.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/state_machine/rendezvous_store.h"
#include "core/text.h"

namespace meshrun::coordinator {

void RendezvousStore::Publish(uint64_t call_id, const v1::PublishUniqueIdRequest& request) {
  Job* job = Admit(call_id, request.fence(), request.rank());
  if (job == nullptr) return;
  Generation& generation = Of(*job);
  const auto known = generation.unique_ids.find(request.group());
  if (known != generation.unique_ids.end() && known->second != request.unique_id()) {
    context_.Reply(call_id,
                   absl::AlreadyExistsError(fmt::format(
                       "group '{}' of job {} generation {} has a unique id already, and rank {} "
                       "publishes another",
                       request.group(), job->id(), generation.number, request.rank())));
    return;
  }
  if (known == generation.unique_ids.end()) {
    const size_t after = generation.bytes + request.group().size() + request.unique_id().size();
    absl::Status status = CheckRoom(generation, request.group(), after);
    if (request.unique_id().size() > kMaxUniqueIdBytes) {
      status = absl::ResourceExhaustedError(
          fmt::format("the unique id of group '{}' has {}, and {} are allowed", request.group(),
                      FormatBytes(request.unique_id().size()), FormatBytes(kMaxUniqueIdBytes)));
    }
    if (!status.ok()) {
      context_.Reply(call_id, status);
      return;
    }
    SetBytes(generation, after);
    generation.unique_ids[request.group()] = request.unique_id();
    context_.Put(v1::STATE_TABLE_VALUES, RowKey(*job, "u", request.group()), request.unique_id());
    const auto waiting = generation.id_waiters.find(request.group());
    if (waiting != generation.id_waiters.end()) Wake(*job, waiting->second);
  }
  context_.Reply(call_id, v1::PublishUniqueIdResponse());
}

void RendezvousStore::Register(uint64_t call_id, const v1::RegisterGroupRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr) return;
  const std::set<int> ranks(request.ranks().begin(), request.ranks().end());
  if (ranks.empty() || *ranks.begin() < 0 || *ranks.rbegin() >= job->view.ranks_size()) {
    context_.Reply(call_id,
                   absl::InvalidArgumentError(fmt::format(
                       "group '{}' is announced with ranks {} in a world of {}", request.name(),
                       FormatRanks({ranks.begin(), ranks.end()}), job->view.ranks_size())));
    return;
  }
  v1::GroupInfo announced;
  announced.set_name(request.name());
  *announced.mutable_ranks() = request.ranks();
  announced.set_backend(request.backend());
  auto& groups = *job->view.mutable_groups();
  // Ranks do not announce the groups of the mesh: these have the backend of the world.
  if (static_cast<int>(ranks.size()) == job->view.ranks_size()) {
    for (v1::GroupInfo& group : groups) {
      if (group.backend().empty()) group.set_backend(request.backend());
    }
  }
  // In the place of the first group that it replaces, so that a mesh keeps the order of its axes.
  v1::GroupInfo* place = nullptr;
  for (auto it = groups.begin(); it != groups.end();) {
    const bool replaced =
        it->name() == request.name() && std::any_of(it->ranks().begin(), it->ranks().end(),
                                                    [&](int rank) { return ranks.contains(rank); });
    if (!replaced) {
      ++it;
    } else if (place == nullptr) {
      place = &*it++;
    } else {
      it = groups.erase(it);
    }
  }
  if (place == nullptr) place = job->view.add_groups();
  *place = std::move(announced);
  jobs_.Changed(*job);
  context_.Reply(call_id, v1::RegisterGroupResponse());
}

void RendezvousStore::World(uint64_t call_id, const v1::GetWorldRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr) return;
  const auto it = job->worlds.find(job->view.generation());
  if (it == job->worlds.end()) {
    context_.Reply(call_id, absl::NotFoundError(fmt::format("job {} has no table for generation {}",
                                                            job->id(), job->view.generation())));
    return;
  }
  v1::GetWorldResponse response;
  *response.mutable_world() = *it->second;
  context_.Reply(call_id, std::move(response));
}

}  // namespace meshrun::coordinator
