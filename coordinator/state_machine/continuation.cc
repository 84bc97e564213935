// Generations that go on in process: those of their ranks that run take the next generation.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state_machine/generations.h"
#include "core/proto_time.h"
#include "core/rank_exit.h"

namespace meshrun::coordinator {
namespace {

// For a host to answer, beyond a fence time that the job waits for.
constexpr std::chrono::seconds kFenceSlack(30);

}  // namespace

bool Generations::HasKept(const Job& job) const {
  return std::any_of(job.view.ranks().begin(), job.view.ranks().end(), [&](const auto& rank) {
    return !IsFresh(rank.assignment(), job.view.generation());
  });
}

bool Generations::TakesGenerations(const Job& job) const {
  if (job.view.spec().recovery() == v1::RECOVERY_RESPAWN || job.finished()) return false;
  bool any = false;
  for (const v1::RankStatus& rank : job.view.ranks()) {
    if (rank.state() == v1::RANK_STATE_RUNNING) {
      if (!rank.in_process()) return false;
      any = true;
    } else if (rank.state() == v1::RANK_STATE_ASSIGNED) {
      // Started, and not heard of since.
      if (job.view.state() == v1::JOB_STATE_RUNNING) return false;
    } else if (rank.state() == v1::RANK_STATE_EXITED && ExitedCleanly(rank.exit())) {
      // It has finished: nobody can say what a rank in its place should do.
      return false;
    }
  }
  return any;
}

void Generations::SurvivorsWait(Job& job, bool asked, const std::string& reason) {
  jobs_.SetPhase(job, asked ? JobPhase::kAskedToQuiesce : JobPhase::kSurvivorsWait, reason);
  jobs_.Changed(job);
  peers_.Tell(job);
  proceed_.insert(job.id());
}

bool Generations::AskToQuiesce(Job& job, const std::string& reason, bool save) {
  if (job.view.state() != v1::JOB_STATE_RUNNING || !TakesGenerations(job)) return false;
  job.record.set_save_asked(save);
  job.quiesced.clear();
  SurvivorsWait(job, /*asked=*/true, reason);
  jobs_.SetDeadline(job, context_.now + kQuiesceTimeout);
  context_.Record("QuiesceAsked", job.id(), "", reason);
  for (const Member& member : job.members) SendQuiesce(job, member);
  return true;
}

void Generations::SendQuiesce(const Job& job, const Member& member) {
  const Node& node = *nodes_.Find(member.node_id);
  if (node.session_id == 0 || member.ended) return;
  v1::OpenSessionResponse message = MessageTo(node, job.id(), job.view.generation());
  message.mutable_quiesce()->set_reason(job.view.reason());
  message.mutable_quiesce()->set_save(job.record.save_asked());
  *message.mutable_quiesce()->mutable_deadline() = ToProtoDuration(kQuiesceTimeout);
  context_.Send(node.session_id, std::move(message));
}

void Generations::OnRanksQuiesced(Node& node, const v1::Fence& fence,
                                  const v1::RanksQuiesced& quiesced) {
  const auto [job, member] = Resolve(node, fence, "RanksQuiesced");
  if (job == nullptr) return;
  for (const auto& [rank, step] : quiesced.steps()) job->quiesced.insert(rank);
  proceed_.insert(job->id());
}

void Generations::ProceedAll() {
  for (const std::string& job_id : std::exchange(proceed_, {})) {
    if (Job* job = jobs_.Find(job_id); job != nullptr) Proceed(*job);
  }
}

std::pair<int, int> Generations::StillAndRunning(const Job& job) {
  int still = 0, running = 0;
  for (const v1::RankStatus& rank : job.view.ranks()) {
    if (rank.state() != v1::RANK_STATE_RUNNING) continue;
    ++running;
    still += job.quiesced.contains(rank.assignment().rank());
  }
  return {still, running};
}

void Generations::Proceed(Job& job) {
  const auto [still, running] = StillAndRunning(job);
  if (job.phase() == JobPhase::kFinishing && running > 0 && still == running && !job.finished()) {
    Fail(job, v1::FAILURE_CAUSE_MOVED,
         "a rank finished, and all others stand still for a generation that needs it", nullptr,
         nullptr);
    return;
  }
  if (!job.survivors_wait()) return;
  for (const Member& member : job.members) {
    // Whether a host whose session broke comes back is known when its lease is over.
    if (!member.ended && nodes_.Find(member.node_id)->session_id == 0) return;
  }
  if (job.asked_to_quiesce() && !job.failed()) {
    const bool one_has_finished =
        std::any_of(job.view.ranks().begin(), job.view.ranks().end(), [](const auto& rank) {
          return rank.state() == v1::RANK_STATE_EXITED && ExitedCleanly(rank.exit());
        });
    if (one_has_finished) {
      // It had come to its end when it was asked, and so have the others, as a rule: those that
      // stand still do not.
      jobs_.SetPhase(job, JobPhase::kFinishing, "");
      jobs_.ClearDeadline(job);
      proceed_.insert(job.id());
      return;
    }
    if (still < running) return;
  }
  if (GoOn(job) || WaitsForFence(job)) return;
  if (!job.failed()) {
    RecordFailure(job, v1::FAILURE_CAUSE_MOVED, job.view.reason(), nullptr, nullptr);
  }
  Quiesce(job, job.stop_grace(), job.view.reason());
}

PlacementResult Generations::PlaceAgain(Job& job, std::vector<const v1::Node*> nodes,
                                        bool avoided_too) {
  const auto each_living = [&](auto&& act) {
    for (const Member& member : job.members) {
      if (!member.ended) act(*nodes_.Find(member.node_id), member);
    }
  };
  const bool placement_due = context_.placement_due;
  each_living([&](Node& node, const Member& member) {
    nodes_.Release(node, job.id(), member.slots, member.memory_bytes, member.gpus);
  });
  PlacementRequest request{job.view.spec(), {}, {}};
  for (const Member& member : job.members) request.previous.push_back(member.node_id);
  std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(request.nodes),
               [&](const v1::Node* node) { return !job.Avoids(node->node_id()); });
  PlacementResult result = Place(request);
  if (!result.placement.has_value() && avoided_too && request.nodes.size() < nodes.size()) {
    request.nodes = std::move(nodes);
    result = Place(request);
  }
  each_living([&](Node& node, const Member& member) {
    nodes_.Hold(node, job.id(), member.slots, member.memory_bytes, member.gpus);
  });
  context_.placement_due = placement_due;
  return result;
}

bool Generations::GoOn(Job& job) {
  if (!TakesGenerations(job) || job.record.cancel_requested()) return false;
  std::string waits;
  const std::vector<const v1::Node*> nodes = Candidates(job, &waits);
  // While the job waits for other nodes, it does not fall back on one that it avoids.
  const PlacementResult result = PlaceAgain(job, nodes, /*avoided_too=*/waits.empty());
  if (!result.placement.has_value()) return false;
  Kept kept;
  int living = 0;
  for (const PlacedNode& placed : result.placement->nodes) {
    const Member* member = job.FindMember(placed.node_id);
    if (member == nullptr || member->ended) continue;
    if (static_cast<int>(placed.procs) != member->rank_count) return false;
    std::vector<v1::RankStatus>& ranks = kept[placed.node_id];
    for (int i = 0; i < member->rank_count; ++i) {
      ranks.push_back(job.view.ranks(member->first_rank + i));
      living += ranks.back().state() == v1::RANK_STATE_RUNNING;
    }
  }
  if (living == 0) return false;
  const bool newcomers =
      std::any_of(result.placement->nodes.begin(), result.placement->nodes.end(),
                  [&](const PlacedNode& placed) { return !job.HasRunOn(placed.node_id); });
  if (newcomers && !job.writes_are_fenced()) {
    // Ranks that are told to end compute until they do: no other node takes their place before.
    bool told = false;
    for (Member& member : job.members) {
      if (member.ended || kept.contains(member.node_id)) continue;
      SendStop(job, member, job.stop_grace());
      EndMember(job, member, End::kTold);
      told = true;
    }
    if (told) return GoOn(job);
  }
  for (Member& member : job.members) {
    if (member.ended) continue;
    if (kept.contains(member.node_id)) {
      nodes_.Release(*nodes_.Find(member.node_id), job.id(), member.slots, member.memory_bytes,
                     member.gpus);
      continue;
    }
    // Parked, or its worker is stopping.
    SendStop(job, member, job.stop_grace());
    Leave(job, member, End::kTold);
  }
  const std::string reason = Charge(job);
  EndGeneration(job, "the generation is over, its ranks go on in the next one");
  context_.Record("GoesOnInProcess", job.id(), "",
                  fmt::format("{} of {} {} on in generation {}; {}", living,
                              Count(result.placement->world_size, "rank"),
                              living == 1 ? "lives" : "live", job.view.generation() + 1, reason));
  Begin(job, *result.placement, kept);
  return true;
}

// A node that may be had once the fence time of another one is over: the survivors wait for it.
bool Generations::WaitsForFence(Job& job) {
  std::string waits;
  if (!TakesGenerations(job) || job.record.cancel_requested()) return false;
  (void)Candidates(job, &waits);
  if (waits.empty()) return false;
  SteadyNanos until = context_.now;
  for (const LeavingMember& leaving : job.leaving) {
    if (!MayCompute(leaving)) continue;
    const Node& node = *nodes_.Find(leaving.member.node_id);
    if (!node.lost()) continue;
    if (node.fence() == SteadyNanos::max()) return false;
    until = std::max(until, node.fence());
  }
  if (!PlaceAgain(job, nodes_.Present(/*healthy_only=*/true), /*avoided_too=*/true)
           .placement.has_value())
    return false;
  jobs_.SetReason(job, job.view.failure().message() + "; " + waits);
  jobs_.SetDeadline(job, until + kFenceSlack);
  return true;
}

void Generations::OnJoinDeadline(Job& job) {
  for (const v1::RankStatus& rank : job.view.ranks()) {
    if (rank.joined() || rank.state() != v1::RANK_STATE_RUNNING ||
        IsFresh(rank.assignment(), job.view.generation())) {
      continue;
    }
    const std::string message =
        fmt::format("rank {} on {} was to go on in generation {}, and did not join it within 30 s",
                    rank.assignment().rank(), rank.node_name(), job.view.generation());
    OnHung(job, rank.assignment().rank(), message);
    return;
  }
}

// All are started anew: nobody knows in which call a rank stands that hangs.
void Generations::OnHung(Job& job, int rank, const std::string& message) {
  if (job.finished()) return;
  const Node* node = rank < 0 ? nullptr : nodes_.Find(job.view.ranks(rank).assignment().node_id());
  RecordFailure(job, v1::FAILURE_CAUSE_HUNG, message, node, nullptr);
  job.view.mutable_failure()->set_rank(rank);
  context_.Record("RankHung", job.id(), node == nullptr ? "" : node->id(), message);
  Quiesce(job, job.kill_grace(), message);
}

}  // namespace meshrun::coordinator
