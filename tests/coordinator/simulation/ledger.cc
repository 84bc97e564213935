#include "tests/coordinator/simulation/ledger.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshrun::coordinator::simulation {
namespace {

std::string Text(const GenerationKey& key) {
  return fmt::format("generation {} of {}", key.second, key.first);
}

}  // namespace

void Ledger::OnPrepare(const std::string& node_id, const v1::Fence& fence,
                       const v1::Prepare& prepare) {
  const GenerationKey key{fence.job_id(), fence.generation()};
  const auto finished = finished_.find(key.first);
  if (finished != finished_.end() && key.second > finished->second) {
    Fail(fmt::format("{} is prepared, and the work of generation {} was finished", Text(key),
                     finished->second));
  }
  Membership& known = memberships_[key];
  if (known.digest.empty()) known.digest = prepare.world_digest();
  if (known.digest != prepare.world_digest()) {
    Fail(fmt::format("two memberships of {}: {} hears of another world", Text(key), node_id));
  }
  for (const v1::RankAssignment& rank : prepare.ranks()) {
    const auto [it, is_new] = known.nodes.try_emplace(rank.rank(), node_id);
    if (it->second == node_id) continue;
    Fail(fmt::format("rank {} of {} is given to {} and to {}", rank.rank(), Text(key), it->second,
                     node_id));
  }
}

bool Ledger::IsMember(const GenerationKey& key, const std::string& node_id) const {
  const auto it = memberships_.find(key);
  return it != memberships_.end() &&
         std::any_of(it->second.nodes.begin(), it->second.nodes.end(),
                     [&](const auto& entry) { return entry.second == node_id; });
}

void Ledger::ClaimRank(uint64_t process, const Computing& now) {
  const auto [it, is_new] = rank_of_.try_emplace({now.generation, now.rank}, process);
  if (is_new || it->second == process) return;
  Fail(fmt::format("rank {} of {} is two processes, now also one on {}", now.rank,
                   Text(now.generation), now.node_id));
}

void Ledger::OnStarted(uint64_t process, const Computing& now, const std::vector<uint32_t>& gpus) {
  ++starts_;
  if (!started_.insert({now.generation, now.rank}).second) {
    Fail(fmt::format("rank {} of {} is started twice, now on {}", now.rank, Text(now.generation),
                     now.node_id));
  }
  const std::string& job = now.generation.first;
  for (const uint64_t other : computing_for_[job]) {
    const Computing& stale = computing_.at(other);
    if (stale.generation.second >= now.generation.second || writes_fenced_.contains(job)) continue;
    // The host had ranks of the stale generation itself; or the stale process goes on in this one.
    if (IsMember(stale.generation, now.node_id)) continue;
    if (IsMember(now.generation, stale.node_id)) continue;
    Fail(
        fmt::format("{} starts rank {} of {} while rank {} of {} computes on {}: a replacement "
                    "before the fence time",
                    now.node_id, now.rank, Text(now.generation), stale.rank, Text(stale.generation),
                    stale.node_id));
  }
  ClaimRank(process, now);
  computing_[process] = now;
  computing_on_[now.node_id].insert(process);
  computing_for_[job].insert(process);
  ++live_[{now.node_id, job}];
  for (const uint32_t gpu : gpus) {
    const auto [it, is_new] = gpus_.try_emplace({now.node_id, gpu}, process);
    if (is_new) continue;
    Fail(fmt::format("GPU {} of {} is given to {} while another process runs on it", gpu,
                     now.node_id, Text(now.generation)));
  }
}

void Ledger::OnTaken(uint64_t process, const GenerationKey& generation, int rank) {
  ++taken_;
  Computing& now = computing_.at(process);
  rank_of_.erase({now.generation, now.rank});
  now.generation = generation;
  now.rank = rank;
  ClaimRank(process, now);
}

void Ledger::OnSilenced(uint64_t process) {
  const auto it = computing_.find(process);
  if (it == computing_.end()) return;
  const Computing& was = it->second;
  rank_of_.erase({was.generation, was.rank});
  computing_on_[was.node_id].erase(process);
  computing_for_[was.generation.first].erase(process);
  computing_.erase(it);
}

void Ledger::OnGone(uint64_t process, const std::string& node_id, const std::string& job_id) {
  OnSilenced(process);
  const auto live = live_.find({node_id, job_id});
  if (live != live_.end() && --live->second == 0) live_.erase(live);
  for (auto it = gpus_.lower_bound({node_id, 0});
       it != gpus_.end() && it->first.first == node_id;) {
    it = it->second == process ? gpus_.erase(it) : std::next(it);
  }
}

std::string Ledger::ComputesOn(const std::string& node_id) const {
  const auto it = computing_on_.find(node_id);
  if (it == computing_on_.end() || it->second.empty()) return "";
  const Computing& first = computing_.at(*it->second.begin());
  return fmt::format("rank {} of {}", first.rank, Text(first.generation));
}

void Ledger::OnEnter(const GenerationKey& key, const std::string& barrier, int rank) {
  entered_[{key, barrier}].insert(rank);
}

void Ledger::OnPassed(const GenerationKey& key, const std::string& barrier, int rank,
                      int world_size) {
  ++barriers_;
  const size_t entered = entered_[{key, barrier}].size();
  if (entered == static_cast<size_t>(world_size)) return;
  Fail(fmt::format("rank {} of {} passes barrier '{}', which {} of {} ranks have entered", rank,
                   Text(key), barrier, entered, world_size));
}

void Ledger::OnAdded(const GenerationKey& key, const std::string& request_id, int64_t value) {
  const size_t sent = adding_[key].size();
  if (value > static_cast<int64_t>(sent)) {
    Fail(fmt::format("addition {} in {} is answered with {}, and {} were sent: one counted twice",
                     request_id, Text(key), value, sent));
  }
  const auto [it, is_new] = added_[key].try_emplace(value, request_id);
  if (it->second == request_id) return;
  Fail(fmt::format("additions {} and {} in {} are both answered with {}", it->second, request_id,
                   Text(key), value));
}

void Ledger::OnVerdict(const GenerationKey& key, const v1::WaitVerdict& verdict) {
  if (verdict.deadlock()) Fail(fmt::format("ranks of {}: {}", Text(key), verdict.message()));
  for (const int rank : verdict.ranks()) {
    if (!rank_of_.contains({key, rank})) continue;
    Fail(fmt::format("rank {} of {} is said to have left, and computes", rank, Text(key)));
  }
}

void Ledger::OnCheckpoint(const GenerationKey& writer, int64_t step) {
  ++checkpoints_;
  auto& writers = checkpoint_writers_[writer.first];
  const auto [it, is_new] = writers.try_emplace(step, writer.second);
  const bool after = it == writers.begin() || std::prev(it)->second <= writer.second;
  const bool before = std::next(it) == writers.end() || writer.second <= std::next(it)->second;
  if (it->second == writer.second && after && before) return;
  Fail(fmt::format("step {} of {} is committed by generation {}: two lines of checkpoints", step,
                   writer.first, writer.second));
}

}  // namespace meshrun::coordinator::simulation
