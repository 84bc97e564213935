#include "parallel/comm/ucx/store_address_book.h"

#include <algorithm>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "core/mutex.h"
#include "fmt/format.h"

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Between two questions to the store, growing: ranks mostly start together, and a rank that comes
// late must not be asked for by all others all the time.
constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{50};
// A store that fails may be a coordinator that restarts; one that goes on failing is gone.
constexpr milliseconds kPauseAfterTrouble(500);
constexpr std::chrono::seconds kStoreIsGone(15);

std::string key_of(int rank) { return "ucx/" + std::to_string(rank); }

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
    changed_.NotifyAll();
    if (is_running_) return;
    is_running_ = true;
    // One that has run out of questions has only its return left.
    if (thread_.joinable()) thread_.join();
    thread_ = std::thread([this] { run(); });
  }

  void stop() {
    {
      MutexLock lock(mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Question {
    std::vector<int> ranks;
    Found found;
    steady_clock::time_point deadline;
  };

  void run() {
    milliseconds pause = kFirstPause;
    std::string trouble;
    while (true) {
      std::list<Question> questions;
      {
        MutexLock lock(mu_);
        if (stopping_ || open_.empty()) {
          is_running_ = false;
          return;
        }
        questions.swap(open_);
      }
      bool answered = false;
      trouble.clear();
      for (auto question = questions.begin(); question != questions.end();) {
        answered = ask(*question, &trouble) || answered;
        question = question->ranks.empty() ? questions.erase(question) : std::next(question);
      }
      MutexLock lock(mu_);
      const bool is_new = !open_.empty();
      open_.splice(open_.begin(), questions);
      if (open_.empty() || is_new || stopping_) continue;
      pause = answered ? kFirstPause : std::min(pause * 2, kLongestPause);
      if (!trouble.empty()) pause = kPauseAfterTrouble;
      changed_.WaitUntil(mu_, steady_clock::now() + pause);
    }
  }

  bool is_stopping() {
    MutexLock lock(mu_);
    return stopping_;
  }

  // Answers what can be answered, and, after the deadline, all. True: something was.
  bool ask(Question& question, std::string* trouble) {
    std::map<int, std::vector<uint8_t>> records;
    try {
      if (clone_ == nullptr) clone_ = store_->clone();
      records = read(question.ranks);
      in_trouble_since_.reset();
    } catch (const std::exception& error) {
      *trouble = error.what();
      if (!in_trouble_since_) in_trouble_since_ = steady_clock::now();
    }
    const bool is_gone =
        in_trouble_since_ && steady_clock::now() - *in_trouble_since_ > kStoreIsGone;
    for (const auto& [rank, bytes] : records) {
      std::erase(question.ranks, rank);
      if (is_stopping()) return true;
      auto record =
          ucx::parse_address_record({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      question.found(rank, std::move(record),
                     "what it published is not an address of this version");
    }
    if (!is_gone && steady_clock::now() < question.deadline) return !records.empty();
    for (const int rank : std::exchange(question.ranks, {})) {
      if (is_stopping()) return true;
      question.found(
          rank, std::nullopt,
          is_gone ? fmt::format("the store that it was to publish its address in is gone: rank 0 "
                                "has perhaps left; the store said: {}",
                                *trouble)
                  : fmt::format("it published no address within {:g} s{}{}",
                                static_cast<double>(timeout_.count()) / 1000,
                                trouble->empty() ? "" : "; the store said: ", *trouble));
    }
    return true;
  }

  std::map<int, std::vector<uint8_t>> read(const std::vector<int>& ranks) {
    std::vector<std::string> keys;
    for (const int rank : ranks) keys.push_back(key_of(rank));
    std::map<int, std::vector<uint8_t>> records;
    if (clone_->check(keys)) {
      if (clone_->hasExtendedApi()) {
        std::vector<std::vector<uint8_t>> values = clone_->multiGet(keys);
        for (size_t i = 0; i < values.size(); ++i) records[ranks[i]] = std::move(values[i]);
      } else {
        for (size_t i = 0; i < keys.size(); ++i) records[ranks[i]] = clone_->get(keys[i]);
      }
    } else if (ranks.size() > 1) {
      for (size_t i = 0; i < keys.size(); ++i) {
        if (clone_->check({keys[i]})) records[ranks[i]] = clone_->get(keys[i]);
      }
    }
    return records;
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const milliseconds timeout_;
  // The thread's.
  c10::intrusive_ptr<c10d::Store> clone_;
  std::optional<steady_clock::time_point> in_trouble_since_;

  Mutex mu_;
  CondVar changed_;
  std::list<Question> open_ MESHRUN_GUARDED_BY(mu_);
  bool is_running_ MESHRUN_GUARDED_BY(mu_) = false;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  std::thread thread_;
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
