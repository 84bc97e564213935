// An agent that passes a kill point on either side of the report that the work is finished. All
// else is the given agent's; so is the agent of the next generation.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "tests/acceptance/ranks/kill_points.h"

namespace meshrun::acceptance {

class KilledAgent : public agent::Agent {
  using Keys = std::vector<std::string>;
  using Text = std::string_view;
  template <typename T>
  using Or = absl::StatusOr<T>;
  using Timeout = agent::Milliseconds;

 public:
  // `points` must outlive this.
  KilledAgent(std::unique_ptr<agent::Agent> agent, const KillPoints& points)
      : agent_(std::move(agent)), points_(points) {}

  absl::Status ReportFinished(Timeout timeout) override {
    points_.pass_at_end("barrier");
    absl::Status said = agent_->ReportFinished(timeout);
    points_.pass_at_end("finished");
    return said;
  }

  const agent::Assignment& assignment() const override { return agent_->assignment(); }
  Or<agent::WorldTable> World(Timeout timeout) override { return agent_->World(timeout); }
  absl::Status Set(Text key, Text value) override { return agent_->Set(key, value); }
  absl::Status MultiSet(const Keys& keys, const Keys& values) override {
    return agent_->MultiSet(keys, values);
  }
  Or<std::string> Get(Text key, Timeout timeout) override { return agent_->Get(key, timeout); }
  Or<Keys> MultiGet(const Keys& keys, Timeout timeout, const std::stop_token& stop) override {
    return agent_->MultiGet(keys, timeout, stop);
  }
  absl::Status Wait(const Keys& keys, Timeout timeout) override {
    return agent_->Wait(keys, timeout);
  }
  Or<bool> Check(const Keys& keys) override { return agent_->Check(keys); }
  Or<int64_t> Add(Text key, int64_t amount) override { return agent_->Add(key, amount); }
  Or<std::string> CompareSet(Text key, Text expected, Text desired) override {
    return agent_->CompareSet(key, expected, desired);
  }
  absl::Status Append(Text key, Text value) override { return agent_->Append(key, value); }
  Or<bool> Delete(Text key) override { return agent_->Delete(key); }
  Or<int64_t> CountKeys() override { return agent_->CountKeys(); }
  absl::Status Barrier(Text name, const std::vector<int>& ranks, Timeout timeout) override {
    return agent_->Barrier(name, ranks, timeout);
  }
  absl::Status PublishUniqueId(Text group, Text unique_id) override {
    return agent_->PublishUniqueId(group, unique_id);
  }
  Or<std::string> AwaitUniqueId(Text group, Timeout timeout) override {
    return agent_->AwaitUniqueId(group, timeout);
  }
  absl::Status RegisterGroup(Text name, const std::vector<int>& ranks, Text backend) override {
    return agent_->RegisterGroup(name, ranks, backend);
  }
  void Report(const agent::Progress& progress) override { agent_->Report(progress); }
  absl::Status ReportReliably(const agent::Progress& progress) override {
    return agent_->ReportReliably(progress);
  }
  void SetCollectives(bool under_way, SteadyNanos at) override {
    agent_->SetCollectives(under_way, at);
  }
  void AddSent(uint64_t bytes) override { agent_->AddSent(bytes); }
  void OnStop(std::function<void(std::string)> on_stop) override {
    agent_->OnStop(std::move(on_stop));
  }
  void Watch(agent::GenerationListener listener) override { agent_->Watch(std::move(listener)); }
  absl::Status ReportWait(const WaitReport& report, Timeout timeout) override {
    return agent_->ReportWait(report, timeout);
  }
  absl::Status WithdrawWait(Timeout timeout) override { return agent_->WithdrawWait(timeout); }
  absl::Status SetInProcess(bool can, Timeout timeout) override {
    return agent_->SetInProcess(can, timeout);
  }
  Or<std::unique_ptr<agent::Agent>> NextGeneration(Timeout timeout) override {
    return agent_->NextGeneration(timeout);
  }
  Or<bool> HasFinished(Timeout timeout) override { return agent_->HasFinished(timeout); }
  absl::Status ReportQuiesced(int64_t step, Timeout timeout) override {
    return agent_->ReportQuiesced(step, timeout);
  }
  absl::Status CommitCheckpoint(Text name, int64_t step, Text digest, Text temporary,
                                std::optional<int64_t> expected) override {
    return agent_->CommitCheckpoint(name, step, digest, temporary, expected);
  }
  Or<std::optional<agent::Checkpoint>> CommittedCheckpoint(Text name) override {
    return agent_->CommittedCheckpoint(name);
  }

 private:
  const std::unique_ptr<agent::Agent> agent_;
  const KillPoints& points_;
};

}  // namespace meshrun::acceptance
