// An agent::Agent without a daemon: its store is any c10d store, in memory or between processes.
//
// Barriers, unique ids and groups live below keys of their own in it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

class FakeAgent : public agent::Agent {
 public:
  FakeAgent(agent::Assignment assignment, c10::intrusive_ptr<c10d::Store> store);

  // What the next calls answer instead; OK ends it.
  void fail_with(absl::Status status);
  // What the next announcements of groups answer, everything else going on; OK ends it.
  void refuse_groups_with(absl::Status status);
  // The next commits are kept and refused: the answer to the first try was lost, and the second
  // came when the generation was over.
  void lose_answers_of_commits(bool lose);
  // The commits of the job's generation before.
  void take_commits_of(FakeAgent& former);
  // Number of store calls by this rank so far.
  int64_t store_calls() const;
  // Registered by this rank: "name backend: ranks".
  std::vector<std::string> registered_groups() const;

  const agent::Assignment& assignment() const override { return assignment_; }
  absl::StatusOr<agent::WorldTable> World(agent::Milliseconds timeout) override;
  absl::Status Set(std::string_view key, std::string_view value) override;
  absl::Status MultiSet(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values) override;
  absl::StatusOr<std::string> Get(std::string_view key, agent::Milliseconds timeout) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                    agent::Milliseconds timeout,
                                                    const std::stop_token& stop) override;
  absl::Status Wait(const std::vector<std::string>& keys, agent::Milliseconds timeout) override;
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys) override;
  absl::StatusOr<int64_t> Add(std::string_view key, int64_t amount) override;
  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired) override;
  absl::Status Append(std::string_view key, std::string_view value) override;
  absl::StatusOr<bool> Delete(std::string_view key) override;
  absl::StatusOr<int64_t> CountKeys() override;
  absl::Status Barrier(std::string_view name, const std::vector<int>& ranks,
                       agent::Milliseconds timeout) override;
  absl::Status PublishUniqueId(std::string_view group, std::string_view unique_id) override;
  absl::StatusOr<std::string> AwaitUniqueId(std::string_view group,
                                            agent::Milliseconds timeout) override;
  absl::Status RegisterGroup(std::string_view name, const std::vector<int>& ranks,
                             std::string_view backend) override;
  void Report(const agent::Progress&) override {}
  absl::Status ReportReliably(const agent::Progress&) override { return absl::OkStatus(); }
  void OnStop(std::function<void(std::string)>) override {}
  void Watch(agent::GenerationListener) override {}
  absl::Status ReportWait(const WaitReport&, agent::Milliseconds) override {
    return absl::OkStatus();
  }
  absl::Status WithdrawWait(agent::Milliseconds) override { return absl::OkStatus(); }
  absl::Status SetInProcess(bool, agent::Milliseconds) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<agent::Agent>> NextGeneration(agent::Milliseconds) override {
    return absl::AbortedError("there is one generation here");
  }
  absl::Status ReportFinished(agent::Milliseconds) override { return absl::OkStatus(); }
  absl::StatusOr<bool> HasFinished(agent::Milliseconds) override { return false; }
  absl::Status ReportQuiesced(int64_t, agent::Milliseconds) override { return absl::OkStatus(); }
  absl::Status CommitCheckpoint(std::string_view name, int64_t step, std::string_view digest,
                                std::string_view temporary,
                                std::optional<int64_t> expected) override;
  absl::StatusOr<std::optional<agent::Checkpoint>> CommittedCheckpoint(
      std::string_view name) override;

 private:
  // Runs `call` with c10d's exceptions turned into codes.
  template <typename T>
  absl::StatusOr<T> guarded(const std::function<T()>& call) const;
  absl::Status guarded_void(const std::function<void()>& call) const;

  const agent::Assignment assignment_;
  const c10::intrusive_ptr<c10d::Store> store_;
  mutable std::mutex mutex_;
  absl::Status failure_;
  absl::Status group_refusal_;
  bool loses_commits_ = false;
  std::vector<std::string> groups_;
  mutable int64_t store_calls_ = 0;
  std::map<std::string, agent::Checkpoint, std::less<>> checkpoints_;
};

}  // namespace meshrun
