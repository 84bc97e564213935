#include "parallel/comm/ucx/store_address_book.h"

#include <algorithm>
#include <list>
#include <map>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "agent/background.h"
#include "core/mutex.h"
#include "fmt/format.h"
#include "parallel/base/no_names.h"
#include "parallel/comm/interface/stoppable_store.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// For how long one call waits in a store that cannot be told to stop, growing: stop() waits for it.
constexpr milliseconds kFirstWait{50};
constexpr milliseconds kLongestWait{1000};
// In one that can, unless other questions wait for their turn.
constexpr std::chrono::seconds kLongestStoppableWait(15);
// When the records that are there are told though others are missing, each time after twice as
// long. That costs a call for each, and on a busy host ranks that start together come seconds
// apart.
constexpr std::chrono::seconds kLookEach(2);
// Questions that wait at a time; of more than these each waits in turn.
constexpr size_t kMostThreads = 4;
// A store that fails may be a coordinator that restarts; one that goes on failing is gone.
constexpr milliseconds kPauseAfterTrouble(500);
constexpr std::chrono::seconds kStoreIsGone(15);

std::string key_of(int rank) { return "ucx/" + std::to_string(rank); }

std::vector<std::string> keys_of(const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  keys.reserve(ranks.size());
  for (const int rank : ranks) keys.push_back(key_of(rank));
  return keys;
}

c10d::Store* without_prefix(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed == nullptr ? store.get() : prefixed->getUnderlyingNonPrefixStore().get();
}

// torch's own store would look up a name for its log: 5 s where the name server does not answer.
c10::intrusive_ptr<c10d::Store> clone_of(c10d::Store& store) {
  const NoNames no_names;
  return store.clone();
}

// One thread's way to the store. A clone may be the store itself, whose timeout is others' too.
class Reader {
 public:
  explicit Reader(const c10::intrusive_ptr<c10d::Store>& store)
      : store_(clone_of(*store)),
        is_own_(without_prefix(store_) != without_prefix(store)),
        stoppable_(is_own_ ? dynamic_cast<StoppableStore*>(without_prefix(store_)) : nullptr) {}

  // Whether a request to stop ends await().
  bool is_stoppable() const { return stoppable_ != nullptr; }
  void set_stop(std::stop_token stop) {
    if (stoppable_ != nullptr) stoppable_->set_stop(std::move(stop));
  }

  // Raises c10::DistStoreError where one of them is not there in time.
  std::vector<std::vector<uint8_t>> await(const std::vector<std::string>& keys,
                                          milliseconds timeout) {
    const bool at_once = is_own_ && store_->hasExtendedApi();
    if (at_once) {
      store_->setTimeout(timeout);
    } else {
      store_->wait(keys, timeout);
    }
    return read(keys);
  }

  bool contains(const std::string& key) { return store_->check({key}); }

  // The keys are there.
  std::vector<std::vector<uint8_t>> read(const std::vector<std::string>& keys) {
    if (store_->hasExtendedApi()) return store_->multiGet(keys);
    std::vector<std::vector<uint8_t>> values;
    for (const std::string& key : keys) values.push_back(store_->get(key));
    return values;
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const bool is_own_;
  StoppableStore* const stoppable_;
};

}  // namespace

class StoreAddressBook::Impl {
 public:
  Impl(c10::intrusive_ptr<c10d::Store> store, milliseconds timeout)
      : store_(std::move(store)), timeout_(timeout) {}

  std::optional<std::string> publish(int rank, const ucx::AddressRecord& record) {
    const std::string bytes = ucx::serialize(record);
    try {
      if (store_->compareSet(key_of(rank), "", bytes) == bytes) return std::nullopt;
    } catch (const std::exception& error) {
      return fmt::format("the store does not take the address of rank {}: {}", rank, error.what());
    }
    return fmt::format(
        "rank {} has published an address below this prefix of the store already: two groups use "
        "the same keys, or two processes are rank {}",
        rank, rank);
  }

  void look_up(const std::vector<int>& ranks, Found found) {
    MutexLock lock(mu_);
    if (stopping_) return;
    open_.push_back({ranks, std::move(found), steady_clock::now() + timeout_});
    // One that has run out of questions has only its return left.
    std::erase_if(threads_, [](Thread& thread) {
      if (thread.has_ended) thread.self.join();
      return thread.has_ended;
    });
    if (threads_.size() == kMostThreads) {
      // One that has no such request yet takes this question; all have one: turns are short.
      const auto busy = std::find_if(threads_.begin(), threads_.end(), [](const Thread& thread) {
        return !thread.stop.stop_requested();
      });
      if (busy != threads_.end()) busy->stop.request_stop();
      return;
    }
    Thread& added = threads_.emplace_back();
    added.self = std::thread([this, &added] { run(added); });
  }

  void stop() {
    std::list<Thread> threads;
    {
      MutexLock lock(mu_);
      stopping_ = true;
      changed_.NotifyAll();
      for (Thread& thread : threads_) thread.stop.request_stop();
      threads.swap(threads_);
    }
    for (Thread& thread : threads) thread.self.join();
  }

 private:
  struct Question {
    std::vector<int> ranks;
    Found found;
    steady_clock::time_point deadline;
    milliseconds wait = kFirstWait;
    milliseconds look_pause = kLookEach;
    steady_clock::time_point look_each = steady_clock::now() + kLookEach;
    std::string trouble;
    std::optional<steady_clock::time_point> in_trouble_since;
  };
  struct Thread {
    std::thread self;
    bool has_ended = false;
    // Ends the question that it has now. Guarded as threads_.
    std::stop_source stop;
  };
  // How a question is asked now.
  struct Turn {
    std::stop_token stop;
    // Others wait for theirs.
    bool is_short = false;
  };

  void run(Thread& self) {
    // An operation that needs an answer is under way itself.
    const agent::InBackground background;
    std::optional<Reader> reader;
    MutexLock lock(mu_);
    while (!stopping_ && !open_.empty()) {
      Question question = std::move(open_.front());
      open_.pop_front();
      self.stop = std::stop_source();
      const Turn turn{self.stop.get_token(), !open_.empty()};
      mu_.Unlock();
      ask(question, turn, &reader);
      mu_.Lock();
      if (question.ranks.empty()) continue;
      const bool is_in_trouble = !question.trouble.empty();
      open_.push_back(std::move(question));
      if (is_in_trouble && !stopping_) {
        changed_.WaitUntil(mu_, steady_clock::now() + kPauseAfterTrouble);
      }
    }
    self.has_ended = true;
  }

  bool is_stopping() {
    MutexLock lock(mu_);
    return stopping_;
  }

  // Answers what can be answered, and, after the deadline, all.
  void ask(Question& question, const Turn& turn, std::optional<Reader>* reader) {
    question.trouble.clear();
    try {
      if (!*reader) reader->emplace(store_);
      answer(question, read(question, turn, **reader));
      question.in_trouble_since.reset();
    } catch (const std::exception& error) {
      if (turn.stop.stop_requested()) return;
      question.trouble = error.what();
      if (!question.in_trouble_since) question.in_trouble_since = steady_clock::now();
    }
    const bool is_gone = question.in_trouble_since &&
                         steady_clock::now() - *question.in_trouble_since > kStoreIsGone;
    if (!is_gone && steady_clock::now() < question.deadline) return;
    for (const int rank : std::exchange(question.ranks, {})) {
      if (is_stopping()) return;
      question.found(
          rank, std::nullopt,
          is_gone
              ? fmt::format("the store that it was to publish its address in is gone: rank 0 has "
                            "perhaps left; the store said: {}",
                            question.trouble)
              : fmt::format(
                    "it published no address within {:g} s{}{}",
                    static_cast<double>(timeout_.count()) / 1000,
                    question.trouble.empty() ? "" : "; the store said: ", question.trouble));
    }
  }

  void answer(Question& question, const std::map<int, std::vector<uint8_t>>& records) {
    for (const auto& [rank, bytes] : records) {
      std::erase(question.ranks, rank);
      if (is_stopping()) return;
      auto record =
          ucx::parse_address_record({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      question.found(rank, std::move(record),
                     "what it published is not an address of this version");
    }
  }

  static milliseconds wait_of(const Question& question, const Turn& turn, const Reader& reader,
                              steady_clock::time_point now) {
    const auto until = [&](steady_clock::time_point when) {
      return std::chrono::duration_cast<milliseconds>(when - now);
    };
    milliseconds wait = question.wait;
    if (reader.is_stoppable()) {
      const bool is_short = turn.is_short || question.in_trouble_since;
      wait = is_short ? kLongestWait : kLongestStoppableWait;
      if (question.ranks.size() > 1) wait = std::min(wait, until(question.look_each));
    }
    return std::max(milliseconds(1), std::min(wait, until(question.deadline)));
  }

  // One call, if all are there or come in its time.
  std::map<int, std::vector<uint8_t>> read(Question& question, const Turn& turn, Reader& reader) {
    const auto began = steady_clock::now();
    const milliseconds wait = wait_of(question, turn, reader, began);
    reader.set_stop(turn.stop);
    std::vector<int> present = question.ranks;
    std::vector<std::vector<uint8_t>> values;
    try {
      values = reader.await(keys_of(present), wait);
    } catch (const c10::DistStoreError&) {
      // Some stores have no other word for what else goes wrong.
      if (steady_clock::now() - began < wait / 2) throw;
      question.wait = std::min(question.wait * 2, kLongestWait);
      const auto now = steady_clock::now();
      if (present.size() == 1 || now < std::min(question.look_each, question.deadline)) return {};
      question.look_pause *= 2;
      question.look_each = now + question.look_pause;
      std::erase_if(present, [&](int rank) { return !reader.contains(key_of(rank)); });
      if (!present.empty()) values = reader.read(keys_of(present));
    }
    std::map<int, std::vector<uint8_t>> records;
    for (size_t i = 0; i < present.size(); ++i) records[present[i]] = std::move(values[i]);
    return records;
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const milliseconds timeout_;

  Mutex mu_;
  CondVar changed_;
  std::list<Question> open_ MESHRUN_GUARDED_BY(mu_);
  std::list<Thread> threads_ MESHRUN_GUARDED_BY(mu_);
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
};

StoreAddressBook::StoreAddressBook(const c10::intrusive_ptr<c10d::Store>& store,
                                   milliseconds timeout)
    : impl_(std::make_unique<Impl>(store, timeout)) {}
StoreAddressBook::~StoreAddressBook() { impl_->stop(); }

std::optional<std::string> StoreAddressBook::publish(int rank, const ucx::AddressRecord& record) {
  return impl_->publish(rank, record);
}
void StoreAddressBook::look_up(const std::vector<int>& ranks, Found found) {
  impl_->look_up(ranks, std::move(found));
}
void StoreAddressBook::stop() { impl_->stop(); }

}  // namespace meshrun
