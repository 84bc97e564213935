#include "parallel/checkpoint/save_meeting.h"

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "c10/util/Exception.h"

namespace meshrun {
namespace {

// Between two looks at whether the save is given up. The store tells the end of a stage at once.
constexpr std::chrono::milliseconds kSlice(1000);

// Before each text, since a store may refuse an empty one.
constexpr char kMark = '=';

// How long the store may be out of reach: its coordinator may be started anew.
constexpr std::chrono::minutes kOutOfReach(5);

std::string key_of(const std::string& save, const std::string& stage) {
  return "checkpoint/" + save + "/" + stage;
}

}  // namespace

SaveMeeting::SaveMeeting(c10::intrusive_ptr<c10d::Store> store, std::string save,
                         std::function<bool()> is_stopped)
    : store_(std::move(store)), save_(std::move(save)), is_stopped_(std::move(is_stopped)) {}
SaveMeeting::~SaveMeeting() = default;
SaveMeeting::SaveMeeting(SaveMeeting&&) noexcept = default;

void SaveMeeting::arrive(const std::string& stage, const std::string& problem, int ranks) {
  if (ranks == 1) return end(stage, problem);
  const std::string first = key_of(save_, stage) + "/problem";
  if (!problem.empty()) store_->compareSet(first, "", kMark + problem);
  if (store_->add(key_of(save_, stage) + "/ranks", 1) < ranks) return;
  end(stage, store_->check({first}) ? store_->get_to_str(first).substr(1) : "");
}

void SaveMeeting::end(const std::string& stage, const std::string& text) {
  alone_ = text;
  if (store_) store_->set(key_of(save_, stage), kMark + text);
}

std::string SaveMeeting::await(const std::string& stage) {
  using Clock = std::chrono::steady_clock;
  if (!store_) return alone_;
  const std::string key = key_of(save_, stage);
  auto heard = Clock::now();
  while (true) {
    if (is_stopped_()) throw SaveGivenUp("the save was given up");
    const auto begin = Clock::now();
    try {
      store_->wait({key}, kSlice);
      return store_->get_to_str(key).substr(1);
    } catch (const c10::DistError& error) {
      // The slice is over, or the store is out of reach for now; what comes at once is for good.
      const auto now = Clock::now();
      if (now - begin < kSlice / 2) throw;
      if (dynamic_cast<const c10::DistStoreError*>(&error) != nullptr) heard = now;
      if (now - heard > kOutOfReach) throw;
    }
  }
}

void SaveMeeting::forget(const std::string& save, const std::vector<std::string>& ended,
                         const std::vector<std::string>& arrived) {
  if (!store_ || save.empty()) return;
  for (const std::string& stage : ended) store_->deleteKey(key_of(save, stage));
  for (const std::string& stage : arrived) {
    for (const char* const part : {"", "/ranks", "/problem"}) {
      store_->deleteKey(key_of(save, stage) + part);
    }
  }
}

}  // namespace meshrun
