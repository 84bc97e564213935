// What truly happens on the hosts, written down by the simulation itself, and the rules that it
// breaks. Nobody who is simulated reads it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "meshrun/v1/session.pb.h"

namespace meshrun::coordinator::simulation {

using GenerationKey = std::pair<std::string, uint64_t>;  // job_id, generation

class Ledger {
 public:
  // The first rule that was broken; empty while all hold.
  const std::string& violation() const { return violation_; }
  void Fail(std::string rule) {
    if (violation_.empty()) violation_ = std::move(rule);
  }

  // A host reads a Prepare: one membership per generation, whoever tells it, however often.
  void OnPrepare(const std::string& node_id, const v1::Fence& fence, const v1::Prepare& prepare);
  // A rank's process: at most one per rank and generation, ever. `gpus` are its own on that host.
  void OnStarted(const std::string& node_id, const GenerationKey& key, int rank,
                 const std::vector<uint32_t>& gpus);
  // Nothing of the generation is left on the host.
  void OnGone(const std::string& node_id, const GenerationKey& key);
  bool HasProcesses(const std::string& node_id, const GenerationKey& key) const {
    return live_.contains({node_id, key});
  }
  // A rank enters a barrier of all ranks, and leaves it.
  void OnEnter(const GenerationKey& key, const std::string& barrier, int rank);
  void OnPassed(const GenerationKey& key, const std::string& barrier, int rank, int world_size);
  // An addition of 1, with this request id, was answered with `value`: no two requests get the same
  // value, and one that is repeated gets its own again.
  void OnAdded(const GenerationKey& key, const std::string& request_id, int64_t value);

  size_t live_count() const { return live_.size(); }
  uint64_t starts() const { return starts_; }
  uint64_t barriers() const { return barriers_; }

 private:
  using Place = std::pair<std::string, GenerationKey>;  // node_id, generation

  struct Membership {
    std::string digest;
    std::map<int, std::string> nodes;
  };

  std::string violation_;
  std::map<GenerationKey, Membership> memberships_;
  std::set<std::pair<GenerationKey, int>> started_;
  std::set<Place> live_;
  std::map<std::pair<std::string, uint32_t>, GenerationKey> gpus_;
  std::map<std::pair<GenerationKey, std::string>, std::set<int>> entered_;
  std::map<GenerationKey, std::map<int64_t, std::string>> added_;
  uint64_t starts_ = 0;
  uint64_t barriers_ = 0;
};

}  // namespace meshrun::coordinator::simulation
