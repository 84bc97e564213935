#include "tests/coordinator/simulation/ledger.h"

#include <fmt/format.h>

namespace meshrun::coordinator::simulation {
namespace {

std::string Text(const GenerationKey& key) {
  return fmt::format("generation {} of {}", key.second, key.first);
}

}  // namespace

void Ledger::OnPrepare(const std::string& node_id, const v1::Fence& fence,
                       const v1::Prepare& prepare) {
  const GenerationKey key{fence.job_id(), fence.generation()};
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

void Ledger::OnStarted(const std::string& node_id, const GenerationKey& key, int rank,
                       const std::vector<uint32_t>& gpus) {
  ++starts_;
  if (!started_.insert({key, rank}).second) {
    Fail(fmt::format("rank {} of {} is started twice, now on {}", rank, Text(key), node_id));
  }
  live_.insert({node_id, key});
  for (const uint32_t gpu : gpus) {
    const auto [it, is_new] = gpus_.try_emplace({node_id, gpu}, key);
    if (!is_new && it->second != key) {
      Fail(fmt::format("GPU {} of {} is given to {} while {} runs on it", gpu, node_id, Text(key),
                       Text(it->second)));
    }
    it->second = key;
  }
}

void Ledger::OnGone(const std::string& node_id, const GenerationKey& key) {
  live_.erase({node_id, key});
  const auto first = gpus_.lower_bound({node_id, 0});
  for (auto it = first; it != gpus_.end() && it->first.first == node_id;) {
    it = it->second == key ? gpus_.erase(it) : std::next(it);
  }
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
  const auto [it, is_new] = added_[key].try_emplace(value, request_id);
  if (it->second == request_id) return;
  Fail(fmt::format("additions {} and {} in {} are both answered with {}", it->second, request_id,
                   Text(key), value));
}

}  // namespace meshrun::coordinator::simulation
