// Jobs whose ranks take other generations in process, on fake workers.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {

class ContinuationTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(h.machine().jobs().wrong_change(), ""); }
  FakeWorker& Add(const std::string& name) {
    FakeWorker::Options options;
    options.name = name;
    FakeWorker& worker = h.AddWorkerWith(std::move(options));
    worker.in_process = true;
    return worker;
  }
  v1::JobSpec Elastic(uint32_t min_nodes, uint32_t max_nodes, uint32_t procs = 1) {
    v1::JobSpec spec = MakeSpec(min_nodes, procs);
    spec.set_max_nodes(max_nodes);
    spec.set_max_restarts(3);
    return spec;
  }
  // A job that is so far RUNNING in its first generation.
  std::string Run(const v1::JobSpec& spec) {
    const std::string id = h.Submit(spec);
    // The last call for nodes.
    if (h.state(id) == v1::JOB_STATE_QUEUED) h.Advance(seconds(2));
    EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
    return id;
  }
  static int Count(const FakeWorker& worker, bool (v1::OpenSessionResponse::*has)() const) {
    int n = 0;
    for (const auto& message : worker.received) n += (message.*has)();
    return n;
  }
  // To whom the signal was sent, message by message.
  static std::vector<std::vector<int>> Signalled(const FakeWorker& worker, int signal) {
    std::vector<std::vector<int>> out;
    for (const auto& message : worker.received) {
      const v1::SignalRanks& sent = message.signal_ranks();
      if (sent.signal() == signal) out.emplace_back(sent.ranks().begin(), sent.ranks().end());
    }
    return out;
  }
  absl::Status Commit(const std::string& job_id, uint64_t generation, int64_t step,
                      std::optional<int64_t> expected) {
    v1::StateEvent event;
    v1::CommitCheckpointRequest& request = *event.mutable_commit_checkpoint();
    *request.mutable_fence() = h.fence(job_id);
    request.mutable_fence()->set_generation(generation);
    request.mutable_commit()->set_name("runs/a");
    request.mutable_commit()->set_step(step);
    request.mutable_commit()->set_digest(std::to_string(step));
    if (expected) request.set_expected_step(*expected);
    return h.answer(h.Call(std::move(event))).status;
  }
  // To all ranks of the job.
  void Signal(const std::string& job_id, int signal) {
    v1::StateEvent event;
    event.mutable_signal_job()->set_job_id(job_id);
    event.mutable_signal_job()->set_signal(signal);
    ASSERT_TRUE(h.answer(h.Call(std::move(event))).status.ok());
  }
  absl::Status Leave(const std::string& node) {
    v1::StateEvent event;
    event.mutable_drain_node()->set_node(node);
    event.mutable_drain_node()->set_leaves(true);
    return h.answer(h.Call(std::move(event))).status;
  }
  // The worker and its ranks are cut off.
  void Lose(FakeWorker& worker) {
    worker.deaf = true;
    h.Disconnect(worker);
  }
  Harness h;
};

}  // namespace meshrun::coordinator::testing
