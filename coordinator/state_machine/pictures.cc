// Which nodes hold the pictures of a job's newest generation. The pictures themselves never pass
// through the state machine.
#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>

#include "coordinator/state_machine/privacy.h"
#include "coordinator/state_machine/state_machine.h"
#include "core/picture_name.h"

namespace meshrun::coordinator {

void StateMachine::ReadPictures(uint64_t call_id, const v1::ReadPicturesRequest& request) {
  Context& context = parts_->context;
  const std::string& name = request.name();
  if (!name.empty() && PictureType(name).empty()) {
    context.Reply(call_id, absl::InvalidArgumentError(NotAPictureName(name)));
    return;
  }
  const auto found = LookupVisible(context, parts_->jobs, request.job_id());
  if (!found.ok()) {
    context.Reply(call_id, found.status());
    return;
  }
  const Job& job = **found;
  OpenLogRelay relay;
  relay.call_id = call_id;
  if (job.worlds.empty()) {
    // It has not started.
    if (!name.empty()) {
      relay.end = absl::NotFoundError(fmt::format("job {} has no picture {}", job.id(), name));
    }
    context.Add(std::move(relay));
    return;
  }
  const auto& [generation, world] = *job.worlds.rbegin();
  const int world_size = world->ranks_size();
  if (!name.empty() && (request.rank() < 0 || request.rank() >= world_size)) {
    context.Reply(call_id,
                  absl::NotFoundError(fmt::format("job {} has ranks 0 to {}, not {}", job.id(),
                                                  world_size - 1, request.rank())));
    return;
  }
  // One question for each host, whatever ranks it has.
  std::map<std::string, size_t> source_of_node;
  const int first = name.empty() ? 0 : request.rank();
  const int end = name.empty() ? world_size : request.rank() + 1;
  for (int rank = first; rank < end; ++rank) {
    const v1::RankAssignment& process = world->ranks(rank);
    const Node* const node = parts_->nodes.Find(process.node_id());
    if (node == nullptr || node->session_id == 0) {
      relay.end = absl::UnavailableError(
          fmt::format("the pictures of rank {} are on {}, which is not connected", rank,
                      node == nullptr ? "node " + process.node_id() : node->record.name()));
      continue;
    }
    const auto [at, is_new] = source_of_node.emplace(node->id(), relay.sources.size());
    if (is_new) {
      LogSource& source = relay.sources.emplace_back();
      source.node_id = node->id();
      source.node_name = node->record.name();
      source.session_id = node->session_id;
      source.fence.set_term(context.term);
      source.fence.set_job_id(job.id());
      source.fence.set_generation(generation);
      source.fence.set_incarnation(node->record.incarnation());
      source.generation = generation;
      source.rank = rank;
      source.open.set_stream_id(fmt::format("{}-{}-{}-pictures", context.term, call_id, rank));
      v1::OpenPictures& open = source.pictures.emplace();
      open.set_stream_id(source.open.stream_id());
      open.set_job_id(job.id());
      open.set_name(name);
    }
    const bool lives_on = process.process_generation() != 0;
    v1::PictureSource& place = *relay.sources[at->second].pictures->add_sources();
    place.set_rank(rank);
    place.set_process_generation(lives_on ? process.process_generation() : generation);
    place.set_process_rank(lives_on ? process.process_rank() : rank);
  }
  context.Add(std::move(relay));
}

}  // namespace meshrun::coordinator
