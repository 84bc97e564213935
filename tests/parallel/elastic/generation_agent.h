// A FakeAgent whose generations follow each other, as keys of a store that all ranks see say:
//
//   "lost/<g>"      the ranks that generation g has lost
//   "quiesce/<g>"   the ranks of generation g are to stand still
//   "next/<g>"      the world size of generation g + 1, then each rank's of g rank there, or -1
//   "failed/<g>"    generation g failed before any rank had finished: it takes no reports
//   "finished/<g>"  a rank of g has reported that it finished
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/parallel/support/fake_agent.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"

namespace meshrun {

class GenerationAgent : public FakeAgent {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  static std::shared_ptr<GenerationAgent> of(StorePtr store, uint64_t generation, int rank,
                                             int world_size) {
    return std::make_shared<GenerationAgent>(agent::Assignment{.job_id = "job",
                                                               .generation = generation,
                                                               .rank = rank,
                                                               .world_size = world_size,
                                                               .local_rank = rank,
                                                               .local_world_size = world_size,
                                                               .master_addr = "127.0.0.1"},
                                             std::move(store));
  }
  GenerationAgent(agent::Assignment assignment, StorePtr store)
      : FakeAgent(assignment, c10::make_intrusive<c10d::PrefixStore>(
                                  "g" + std::to_string(assignment.generation), store)),
        store_(std::move(store)) {}
  ~GenerationAgent() override {
    ending_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  void Watch(agent::GenerationListener listener) override {
    const std::lock_guard lock(mutex_);
    threads_.emplace_back([this, listener = std::move(listener)] {
      bool is_lost = false;
      bool is_quiesced = false;
      while (!ending_) {
        if (!std::exchange(is_lost, is_lost || has("lost")) && is_lost) {
          std::istringstream ranks(get("lost"));
          for (int rank = 0; ranks >> rank;) listener.on_lost(rank, "its host was lost");
        }
        if (!std::exchange(is_quiesced, is_quiesced || has("quiesce")) && is_quiesced &&
            listener.on_quiesce) {
          listener.on_quiesce({.reason = "the world grows", .save = true});
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  }
  absl::StatusOr<std::unique_ptr<agent::Agent>> NextGeneration(
      agent::Milliseconds timeout) override {
    const auto until = std::chrono::steady_clock::now() + timeout;
    while (!has("next")) {
      if (std::chrono::steady_clock::now() > until) return absl::DeadlineExceededError("not yet");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::istringstream words(get("next"));
    int world_size = 0, rank = 0;
    words >> world_size;
    for (int i = 0; i <= assignment().rank; ++i) words >> rank;
    agent::Assignment next = assignment();
    ++next.generation;
    next.rank = next.local_rank = rank;
    next.world_size = next.local_world_size = world_size;
    return std::make_unique<GenerationAgent>(next, store_);
  }
  absl::Status ReportFinished(agent::Milliseconds) override {
    if (has("failed")) return absl::FailedPreconditionError("rank 1 was lost before");
    ++finish_reports;
    set("finished", std::to_string(assignment().rank));
    return absl::OkStatus();
  }
  absl::StatusOr<bool> HasFinished(agent::Milliseconds) override {
    if (has("failed")) return absl::FailedPreconditionError("rank 1 was lost before");
    return has("finished");
  }
  absl::Status ReportQuiesced(int64_t step, agent::Milliseconds) override {
    quiesced_at = step;
    return absl::OkStatus();
  }

  // Store entries of this generation.
  bool has(const std::string& what) {
    const std::lock_guard lock(store_mutex_);
    return store_->check({key(what)});
  }
  std::string get(const std::string& what) {
    const std::lock_guard lock(store_mutex_);
    return store_->get_to_str(key(what));
  }
  void set(const std::string& what, const std::string& value) {
    const std::lock_guard lock(store_mutex_);
    store_->set(key(what), value);
  }

  static inline std::atomic<int64_t> quiesced_at = -1;
  // That were taken, by all agents of this process.
  static inline std::atomic<int> finish_reports = 0;

 private:
  std::string key(const std::string& what) const {
    return what + "/" + std::to_string(assignment().generation);
  }

  const StorePtr store_;
  std::mutex store_mutex_;
  std::mutex mutex_;
  std::atomic<bool> ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace meshrun
