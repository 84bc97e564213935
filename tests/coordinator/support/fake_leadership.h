// An election of which a test decides the outcome, and a state that all its candidates share.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/leadership/leadership.h"
#include "coordinator/state_store/memory_state_store.h"
#include "core/mutex.h"

namespace meshrun::coordinator::testing {

class FakeElection {
 public:
  // "": nobody leads. The one that led hears of its loss before this returns.
  void Elect(const std::string& name) MESHRUN_EXCLUDES(mu_) {
    std::function<void(const std::string&)> lost;
    {
      MutexLock lock(mu_);
      if (const auto old = seats_.find(leader_); old != seats_.end() && old->second.campaigned) {
        lost = old->second.lost;
        old->second.campaigned = false;
      }
      leader_ = name;
      changed_.NotifyAll();
    }
    if (lost) lost("its lease has ended");
  }
  // It leads no more, and nobody has told it.
  void ElectSilently(const std::string& name) MESHRUN_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    leader_ = name;
    changed_.NotifyAll();
  }

 private:
  friend class FakeLeadership;
  struct Seat {
    std::string address;
    std::function<void(const std::string&)> lost;
    bool campaigned = false;
    bool stopped = false;
  };

  Mutex mu_;
  CondVar changed_;
  std::string leader_ MESHRUN_GUARDED_BY(mu_);
  std::map<std::string, Seat> seats_ MESHRUN_GUARDED_BY(mu_);
};

// One candidate. `election` outlives it.
class FakeLeadership : public Leadership {
 public:
  FakeLeadership(FakeElection& election, std::string name, std::string address)
      : election_(election), name_(std::move(name)) {
    MutexLock lock(election_.mu_);
    election_.seats_[name_] = {};
    election_.seats_[name_].address = std::move(address);
  }

  absl::Status Campaign() override {
    MutexLock lock(election_.mu_);
    FakeElection::Seat& seat = election_.seats_[name_];
    while (!seat.stopped && election_.leader_ != name_) election_.changed_.Wait(election_.mu_);
    if (seat.stopped) return absl::CancelledError("stopped");
    seat.campaigned = true;
    return absl::OkStatus();
  }
  bool Leads() const override {
    MutexLock lock(election_.mu_);
    return election_.leader_ == name_;
  }
  void OnLost(std::function<void(const std::string&)> lost) override {
    MutexLock lock(election_.mu_);
    election_.seats_[name_].lost = std::move(lost);
  }
  std::optional<Candidate> Leader() const override {
    for (const Candidate& one : Candidates()) {
      if (one.leads) return one;
    }
    return std::nullopt;
  }
  std::vector<Candidate> Candidates() const override {
    MutexLock lock(election_.mu_);
    std::vector<Candidate> all;
    for (const auto& [name, seat] : election_.seats_) {
      if (!seat.stopped) all.push_back({name, seat.address, name == election_.leader_});
    }
    return all;
  }
  void Stop() override {
    MutexLock lock(election_.mu_);
    election_.seats_[name_].stopped = true;
    if (election_.leader_ == name_) election_.leader_.clear();
    election_.changed_.NotifyAll();
  }

 private:
  FakeElection& election_;
  const std::string name_;
};

// One of several objects over one state, as each leader opens its own.
class SharedStateStore : public StateStore {
 public:
  explicit SharedStateStore(std::shared_ptr<MemoryStateStore> state) : state_(std::move(state)) {}
  absl::StatusOr<uint64_t> BeginTerm() override { return state_->BeginTerm(); }
  absl::Status ForEachRow(const TakeRow& take) override { return state_->ForEachRow(take); }
  absl::Status Commit(uint64_t term, const std::vector<v1::StateRow>& rows) override {
    return state_->Commit(term, rows);
  }

 private:
  const std::shared_ptr<MemoryStateStore> state_;
};

}  // namespace meshrun::coordinator::testing
