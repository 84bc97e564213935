#include "parallel/base/callback_threads.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/mutex.h"

namespace meshrun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kIdle(1);
constexpr size_t kLanes = 8;  // deeper callbacks share the last one

thread_local size_t own_lane = 0;  // of turns that this thread takes

// Starts callbacks in order.
class Lane {
 public:
  explicit Lane(size_t number) : number_(number) {}

  void run(std::function<void()> callback) {
    const MutexLock lock(mu_);
    callbacks_.push_back(std::move(callback));
    call_for_thread();
  }

 private:
  void call_for_thread() MESHRUN_REQUIRES(mu_) {
    if (idle_ > 0) return wanted_.NotifyOne();
    try {
      std::thread([this] { work(); }).detach();
      ++idle_;  // it comes
    } catch (const std::system_error&) {
      // The next one that ends takes it.
    }
  }

  void work() {
    own_lane = std::min(number_ + 1, kLanes - 1);
    const MutexLock lock(mu_);
    --idle_;
    auto ends = Clock::now() + kIdle;
    while (true) {
      const auto now = Clock::now();
      if (callbacks_.empty()) {
        if (now >= ends) return;
        wait_until(ends);
      } else if (running_ > 0 && now < last_start_ + CallbackTurn::kPatience) {
        wait_until(last_start_ + CallbackTurn::kPatience);
      } else {
        std::function<void()> callback = std::move(callbacks_.front());
        callbacks_.pop_front();
        ++running_;
        last_start_ = now;
        // Who goes on where this one blocks.
        if (!callbacks_.empty()) call_for_thread();
        mu_.Unlock();
        callback();
        callback = nullptr;
        mu_.Lock();
        --running_;
        ends = Clock::now() + kIdle;
      }
    }
  }

  void wait_until(Clock::time_point time) MESHRUN_REQUIRES(mu_) {
    ++idle_;
    wanted_.WaitUntil(mu_, time);
    --idle_;
  }

  const size_t number_;
  Mutex mu_;
  CondVar wanted_;
  std::deque<std::function<void()>> callbacks_ MESHRUN_GUARDED_BY(mu_);
  int idle_ MESHRUN_GUARDED_BY(mu_) = 0;
  int running_ MESHRUN_GUARDED_BY(mu_) = 0;
  Clock::time_point last_start_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace

struct CallbackTurn::Entry {
  enum class State { kWaits, kReady, kGivenUp };
  std::function<void()> callback;
  const void* order;
  size_t lane;
  State state = State::kWaits;

  using Queue = std::deque<std::shared_ptr<Entry>>;
  // Never destroyed: threads are detached. In a child of fork() another one, since its parent may
  // have held a lock.
  struct Process {
    Process() {
      for (size_t lane = 0; lane < kLanes; ++lane) lanes.push_back(std::make_unique<Lane>(lane));
    }
    static Process& own();

    const pid_t id = ::getpid();
    std::vector<std::unique_ptr<Lane>> lanes;
    Mutex mu;
    // By order and lane; none is empty.
    std::map<std::pair<const void*, size_t>, Queue> queues MESHRUN_GUARDED_BY(mu);
  };
  void change(State to);
};

CallbackTurn::Entry::Process& CallbackTurn::Entry::Process::own() {
  static std::atomic<Process*> all{new Process};
  Process* found = all.load();
  while (found->id != ::getpid()) {
    auto* const process = new Process;
    if (all.compare_exchange_strong(found, process)) return *process;
    delete process;
  }
  return *found;
}

void CallbackTurn::Entry::change(State to) {
  Process& process = Process::own();
  std::vector<std::function<void()>> dropped;
  const MutexLock lock(process.mu);
  if (state != State::kWaits) return;
  state = to;
  if (order == nullptr) {
    if (to == State::kReady) process.lanes[lane]->run(std::move(callback));
    return;
  }
  const auto found = process.queues.find({order, lane});
  if (found == process.queues.end()) return;  // of the parent of a child
  Queue& queue = found->second;
  while (!queue.empty() && queue.front()->state != State::kWaits) {
    Entry& first = *queue.front();
    if (first.state == State::kReady) {
      process.lanes[lane]->run(std::move(first.callback));
    } else {
      dropped.push_back(std::move(first.callback));
    }
    queue.pop_front();
  }
  if (queue.empty()) process.queues.erase(found);
}

CallbackTurn::CallbackTurn(const void* order, std::function<void()> callback)
    : entry_(std::make_shared<Entry>(Entry{std::move(callback), order, own_lane})) {
  if (order == nullptr) return;
  Entry::Process& process = Entry::Process::own();
  const MutexLock lock(process.mu);
  process.queues[{order, own_lane}].push_back(entry_);
}

CallbackTurn::~CallbackTurn() { entry_->change(Entry::State::kGivenUp); }

void CallbackTurn::ready() { entry_->change(Entry::State::kReady); }

}  // namespace meshrun
