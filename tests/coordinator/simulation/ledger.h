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

// A rank's process, as the ledger sees it.
struct Computing {
  std::string node_id;
  // The one that it is part of now, and its rank there.
  GenerationKey generation;
  int rank = 0;
};

class Ledger {
 public:
  // The first rule that was broken; empty while all hold.
  const std::string& violation() const { return violation_; }
  void Fail(std::string rule) {
    if (violation_.empty()) violation_ = std::move(rule);
  }

  // A host reads a Prepare: one membership per generation, whoever tells it, however often.
  void OnPrepare(const std::string& node_id, const v1::Fence& fence, const v1::Prepare& prepare);

  // A process is started: at most one per rank and generation, ever; on GPUs that no other has; and
  // not in the place of one that may still compute, unless the job's writes are fenced.
  void OnStarted(uint64_t process, const Computing& now, const std::vector<uint32_t>& gpus);
  // It takes a later generation: nobody else is this rank.
  void OnTaken(uint64_t process, const GenerationKey& generation, int rank);
  // It has ended, or was sent SIGKILL: it computes nothing any more.
  void OnSilenced(uint64_t process);
  // Nothing of it is left, of what it has started neither.
  void OnGone(uint64_t process, const std::string& node_id, const std::string& job_id);
  bool HasProcesses(const std::string& node_id, const std::string& job_id) const {
    return live_.contains({node_id, job_id});
  }
  // The first of the node's processes that compute; empty: none does.
  std::string ComputesOn(const std::string& node_id) const;
  // The coordinator holds the job's writes for fenced, or no longer: a checkpoint was committed, or
  // the job says so.
  void SetWritesFenced(const std::string& job_id) { writes_fenced_.insert(job_id); }

  // A rank enters a barrier of all ranks, and leaves it.
  void OnEnter(const GenerationKey& key, const std::string& barrier, int rank);
  void OnPassed(const GenerationKey& key, const std::string& barrier, int rank, int world_size);
  // An addition of 1 is sent, maybe again. Answered with `value`: no two requests get the same one,
  // one that is repeated gets its own again, and none counts twice.
  void OnAdding(const GenerationKey& key, const std::string& request_id) {
    adding_[key].insert(request_id);
  }
  void OnAdded(const GenerationKey& key, const std::string& request_id, int64_t value);
  // Ranks are told that they wait in vain. All call their barriers in one order, so they never wait
  // for each other; and a rank that is said to have left is gone.
  void OnVerdict(const GenerationKey& key, const v1::WaitVerdict& verdict);
  // A checkpoint's commit was answered with ok: one writer per step, and later steps have later
  // generations.
  void OnCheckpoint(const GenerationKey& writer, int64_t step);

  // The coordinator has answered a rank's report that its generation's work is finished: no later
  // generation is prepared.
  void OnFinished(const GenerationKey& key) { finished_[key.first] = key.second; }

  uint64_t starts() const { return starts_; }
  uint64_t taken() const { return taken_; }
  uint64_t barriers() const { return barriers_; }
  uint64_t checkpoints() const { return checkpoints_; }

 private:
  struct Membership {
    std::string digest;
    std::map<int, std::string> nodes;
  };

  void ClaimRank(uint64_t process, const Computing& now);
  bool IsMember(const GenerationKey& key, const std::string& node_id) const;

  std::string violation_;
  std::map<GenerationKey, Membership> memberships_;
  std::set<std::pair<GenerationKey, int>> started_;
  std::map<uint64_t, Computing> computing_;
  std::map<std::pair<GenerationKey, int>, uint64_t> rank_of_;
  std::map<std::string, std::set<uint64_t>> computing_on_;
  std::map<std::string, std::set<uint64_t>> computing_for_;
  std::map<std::pair<std::string, std::string>, int> live_;
  std::map<std::pair<std::string, uint32_t>, uint64_t> gpus_;
  std::set<std::string> writes_fenced_;
  std::map<std::string, uint64_t> finished_;
  std::map<std::pair<GenerationKey, std::string>, std::set<int>> entered_;
  std::map<GenerationKey, std::set<std::string>> adding_;
  std::map<GenerationKey, std::map<int64_t, std::string>> added_;
  std::map<std::string, std::map<int64_t, uint64_t>> checkpoint_writers_;
  uint64_t starts_ = 0;
  uint64_t taken_ = 0;
  uint64_t barriers_ = 0;
  uint64_t checkpoints_ = 0;
};

}  // namespace meshrun::coordinator::simulation
