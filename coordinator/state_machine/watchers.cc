#include "coordinator/state_machine/watchers.h"

#include <algorithm>
#include <functional>

#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/privacy.h"

namespace meshrun::coordinator {
namespace {

// A watcher without deltas hears of each change where the job has no more ranks than this: it is
// told all of them each time.
constexpr int kFewRanks = 256;

}  // namespace

void Watchers::Add(const Job& job, uint64_t call_id, const v1::WatchJobRequest& request,
                   const View& view) {
  Watched& watched = jobs_[job.id()];
  Watcher& watcher = watched.by_call[call_id];
  watcher.concealed = !MaySee(context_, job.view);
  watcher.deltas = request.deltas() && !watcher.concealed;
  watcher.curve = request.curve() && !watcher.concealed;
  Shared shared;
  Send(job, call_id, watched, watcher, view, &shared);
  if (!job.ended()) {
    // The reason of a job that waits changes without the job.
    if (job.queued()) due_.Set(job.id(), context_.now + kInterval);
    return;
  }
  context_.Add(ReplyToCall{call_id, absl::OkStatus(), nullptr});
  watched.by_call.erase(call_id);
  if (watched.by_call.empty()) jobs_.erase(job.id());
}

void Watchers::Remove(uint64_t call_id) {
  for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
    if (it->second.by_call.erase(call_id) == 0) continue;
    if (it->second.by_call.empty()) {
      due_.Clear(it->first);
      jobs_.erase(it);
    }
    context_.Reply(call_id, absl::CancelledError("the watcher went away"));
    return;
  }
}

void Watchers::RanksChanged(const Job& job, int first, int count) {
  const auto it = jobs_.find(job.id());
  if (it == jobs_.end()) return;
  Watched& watched = it->second;
  const size_t size = job.view.ranks_size();
  if (watched.generation != job.view.generation() || watched.ranks.size() != size) {
    watched.generation = job.view.generation();
    watched.ranks.assign(size, watched.version + 1);
  }
  ++watched.version;
  const size_t end = std::min(size, static_cast<size_t>(first) + static_cast<size_t>(count));
  for (size_t rank = first; rank < end; ++rank) {
    watched.ranks[rank] = watched.version;
  }
}

void Watchers::Tell(const Job& job, const View& view) {
  const auto it = jobs_.find(job.id());
  if (it == jobs_.end()) return;
  Watched& watched = it->second;
  std::optional<SteadyNanos> next;
  Shared shared;
  for (auto& [call_id, watcher] : watched.by_call) {
    const bool news =
        watcher.state != job.view.state() || watcher.generation != job.view.generation();
    const SteadyNanos due = watcher.at + kInterval;
    const bool at_once = !watcher.deltas && job.view.ranks_size() <= kFewRanks;
    if (at_once || news || due <= context_.now) {
      Send(job, call_id, watched, watcher, view, &shared);
      if (job.queued()) next = context_.now + kInterval;
    } else if (!next.has_value() || due < *next) {
      next = due;
    }
    if (job.ended()) context_.Add(ReplyToCall{call_id, absl::OkStatus(), nullptr});
  }
  due_.Clear(job.id());
  if (job.ended()) {
    jobs_.erase(it);
  } else if (next.has_value()) {
    due_.Set(job.id(), *next);
  }
}

std::vector<std::string> Watchers::PopDue() {
  std::vector<std::string> out;
  while (auto job_id = due_.PopDue(context_.now)) out.push_back(*std::move(job_id));
  return out;
}

std::shared_ptr<const v1::WatchJobResponse> Watchers::Whole(const Job& job, const View& view,
                                                            Shared* shared) {
  if (shared->whole == nullptr) {
    auto item = std::make_shared<v1::WatchJobResponse>();
    *item->mutable_job() = view(job, /*with_ranks=*/true);
    shared->whole = std::move(item);
  }
  return shared->whole;
}

std::shared_ptr<const v1::WatchJobResponse> Watchers::Delta(const Job& job, const Watched& watched,
                                                            uint64_t known, bool with_groups,
                                                            const View& view, Shared* shared) {
  auto& made = shared->deltas[{known, with_groups}];
  if (made != nullptr) return made;
  auto item = std::make_shared<v1::WatchJobResponse>();
  v1::JobDelta& delta = *item->mutable_delta();
  *delta.mutable_head() = view(job, /*with_ranks=*/false);
  delta.mutable_head()->clear_spec();
  for (int rank = 0; rank < job.view.ranks_size(); ++rank) {
    const bool is_watched = static_cast<size_t>(rank) < watched.ranks.size();
    if (!is_watched || watched.ranks[rank] <= known) continue;
    v1::RankStatus& changed = *delta.add_ranks();
    changed = job.view.ranks(rank);
    changed.clear_progress();
    if (changed.has_exit() && job.HidesLastLines(rank)) {
      changed.mutable_exit()->clear_last_lines();
    }
  }
  if (with_groups) {
    delta.set_has_groups(true);
    *delta.mutable_groups() = job.view.groups();
  }
  made = std::move(item);
  return made;
}

void Watchers::Send(const Job& job, uint64_t call_id, Watched& watched, Watcher& watcher,
                    const View& view, Shared* shared) {
  const bool whole =
      !watcher.deltas || watcher.generation != job.view.generation() || watcher.version == 0;
  if (!shared->groups.has_value()) {
    std::string groups;
    for (const v1::GroupInfo& group : job.view.groups()) group.AppendToString(&groups);
    shared->groups = std::hash<std::string>()(groups);
  }
  std::shared_ptr<const v1::WatchJobResponse> item =
      whole ? Whole(job, view, shared)
            : Delta(job, watched, watcher.version, *shared->groups != watcher.groups, view, shared);
  if (watcher.concealed) {
    auto without = std::make_shared<v1::WatchJobResponse>(*item);
    Conceal(without->mutable_job());
    item = std::move(without);
  }
  // What it knows already is not told again: a queued job is looked at each second.
  std::string head;
  if (job.queued()) head = whole ? item->job().reason() : item->delta().head().reason();
  const bool same = watcher.version != 0 && watcher.state == job.view.state() && job.queued() &&
                    watcher.head == head && watched.version == watcher.version;
  if (watcher.curve) {
    auto with_curve = std::make_shared<v1::WatchJobResponse>(*item);
    job.curve.Since(whole ? 0 : watcher.points, with_curve->mutable_curve());
    item = std::move(with_curve);
  }
  watcher.at = context_.now;
  watcher.state = job.view.state();
  watcher.generation = job.view.generation();
  watcher.version = watched.version;
  watcher.groups = *shared->groups;
  watcher.points = job.curve.added();
  watcher.head = std::move(head);
  if (!same) context_.Add(StreamItem{call_id, std::move(item)});
}

}  // namespace meshrun::coordinator
