// Candidates on a real etcd, for tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/leadership/etcd_leadership.h"
#include "core/mutex.h"

namespace meshrun::coordinator {

inline constexpr std::chrono::seconds kTtl(3);
inline constexpr std::chrono::seconds kLongestCampaign(60);

inline std::string Prefix() {
  return ::testing::UnitTest::GetInstance()->current_test_info()->name();
}

// A candidate, its campaign on a thread, and when it led.
class Coordinator {
 public:
  Coordinator(etcd::Client::Options client, const std::string& name,
              std::chrono::seconds ttl = kTtl) {
    auto made = EtcdLeadership::Start({.client = std::move(client),
                                       .prefix = Prefix(),
                                       .name = name,
                                       .address = name + ":7480",
                                       .ttl = ttl});
    EXPECT_TRUE(made.ok()) << made.status();
    leadership_ = *std::move(made);
    leadership_->OnLost([this](const std::string& why) {
      MutexLock lock(mu_);
      // It says so no earlier than it is true.
      EXPECT_FALSE(leadership_->Leads());
      lost_.push_back(why);
      lost_at_ = std::chrono::steady_clock::now();
    });
  }
  ~Coordinator() { Stop(); }

  void Campaign() {
    if (campaign_.joinable()) campaign_.join();
    {
      MutexLock lock(mu_);
      ended_.reset();
    }
    campaign_ = std::thread([this] {
      const absl::Status status = leadership_->Campaign();
      MutexLock lock(mu_);
      led_at_ = std::chrono::steady_clock::now();
      ended_ = status;
      ends_.NotifyAll();
    });
  }
  // How the last campaign ends. One that goes on for kLongestCampaign is stopped.
  absl::Status Ended() {
    const auto deadline = std::chrono::steady_clock::now() + kLongestCampaign;
    {
      MutexLock lock(mu_);
      while (!ended_ && ends_.WaitUntil(mu_, deadline)) {
      }
      if (ended_) return *ended_;
    }
    Stop();
    return absl::DeadlineExceededError("the campaign did not end");
  }
  void Stop() {
    leadership_->Stop();
    if (campaign_.joinable()) campaign_.join();
  }
  EtcdLeadership& operator*() { return *leadership_; }
  EtcdLeadership* operator->() { return leadership_.get(); }

  std::chrono::steady_clock::time_point led_at() {
    MutexLock lock(mu_);
    return led_at_;
  }
  std::chrono::steady_clock::time_point lost_at() {
    MutexLock lock(mu_);
    return lost_at_;
  }
  std::vector<std::string> lost() {
    MutexLock lock(mu_);
    return lost_;
  }

 private:
  Mutex mu_;
  std::vector<std::string> lost_ MESHRUN_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point lost_at_ MESHRUN_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point led_at_ MESHRUN_GUARDED_BY(mu_);
  CondVar ends_;
  std::optional<absl::Status> ended_ MESHRUN_GUARDED_BY(mu_);
  std::unique_ptr<EtcdLeadership> leadership_;
  std::thread campaign_;
};

// Looks at two candidates all the time: how often both led at once.
class Watcher {
 public:
  Watcher(Coordinator& a, Coordinator& b)
      : thread_([&a, &b, this] {
          while (!stop_) {
            both_ += a->Leads() && b->Leads();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}
  ~Watcher() {
    if (thread_.joinable()) thread_.join();
  }
  int End() {
    stop_ = true;
    thread_.join();
    return both_;
  }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<int> both_ = 0;
  std::thread thread_;
};

}  // namespace meshrun::coordinator
