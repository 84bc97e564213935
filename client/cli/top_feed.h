// What `meshrun top` shows, kept fresh by a thread that asks the coordinator's HTTP API. Three more
// do what a person asks for: stacks, which may take a minute, hold back neither what is shown nor a
// log nor a cancellation. Thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/http/http_client.h"
#include "client/render/top.h"
#include "core/mutex.h"

namespace meshrun::client {

class TopFeed {
 public:
  using Find = std::function<absl::StatusOr<HttpTarget>()>;
  // `changed` is called on the threads whenever there is something new.
  TopFeed(HttpTarget target, Find find, std::function<void()> changed);
  // Waits for its threads.
  ~TopFeed();

  // Asks once, on the caller's thread. For `--once`: with the curves of jobs that run.
  absl::Status Refresh();
  void Start();
  // Ends the calls under way. False: a thread still waits, for a connection or for an answer where
  // the coordinator is.
  bool Stop(std::chrono::milliseconds wait);

  TopModel model() const;
  // This job with all of its ranks from now on; empty: none.
  void Follow(const std::string& job);

  // Lines for a person, or one that says what went wrong. At the end they may not come.
  using OnLines = std::function<void(std::vector<std::string> lines)>;
  void AskLogs(const std::string& job, OnLines done);
  void AskStacks(const std::string& job, OnLines done);
  void Cancel(const std::string& job, OnLines done);

 private:
  // What is done one thing after another.
  enum class Lane { kLogs, kStacks, kCancels };

  void Run();
  void RunLane(Lane lane);
  absl::Status RefreshNodes();
  absl::StatusOr<nlohmann::json> Ask(const HttpCall& call);
  // A job with all of its ranks, however many pages they are.
  absl::StatusOr<nlohmann::json> AskJob(const std::string& id);
  // Jobs that are asked for by themselves now, after the list.
  std::vector<std::string> Closer(const std::map<std::string, ProgressMeter>& meters)
      MESHRUN_REQUIRES(mu_);
  void Queue(Lane lane, std::function<void()> task);

  const Find find_;
  const std::function<void()> changed_;
  mutable Mutex mu_;
  CondVar woken_;
  HttpTarget target_ MESHRUN_GUARDED_BY(mu_);
  TopModel model_ MESHRUN_GUARDED_BY(mu_);
  std::string followed_ MESHRUN_GUARDED_BY(mu_);
  // When the followed job's ranks are asked for again, and the nodes.
  std::chrono::steady_clock::time_point ranks_due_ MESHRUN_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point nodes_due_ MESHRUN_GUARDED_BY(mu_);
  std::map<Lane, std::deque<std::function<void()>>> tasks_ MESHRUN_GUARDED_BY(mu_);
  std::set<HttpExchange*> calls_ MESHRUN_GUARDED_BY(mu_);
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  int running_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace meshrun::client
