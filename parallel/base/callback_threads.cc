#include "parallel/base/callback_threads.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "core/mutex.h"

namespace meshrun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kIdle(1);
constexpr size_t kLanes = 8;  // deeper callbacks share the last one

thread_local size_t own_lane = 0;    // of turns that this thread takes
thread_local uint64_t own_time = 0;  // of the turn whose callback this thread runs; 0: none
std::atomic<uint64_t> last_time{0};

enum class State { kWaits, kReady, kGivenUp };

}  // namespace

// Counts what may run, in one process: a child of fork() has another one.
class CallbackTurn::Process {
 public:
  static Process& own();

  void one_more() {
    const MutexLock lock(mu_);
    ++due_;
  }
  void one_ended() {
    const MutexLock lock(mu_);
    if (--due_ == 0) none_.NotifyAll();
  }
  bool await_none(Clock::time_point until) {
    const MutexLock lock(mu_);
    while (due_ > 0 && Clock::now() < until) none_.WaitUntil(mu_, until);
    return due_ == 0;
  }

  std::shared_ptr<Lane> lane_of(const void* order);

 private:
  const pid_t id_ = ::getpid();
  Mutex mu_;
  CondVar none_;
  int64_t due_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::map<std::pair<const void*, size_t>, std::weak_ptr<Lane>> lanes_ MESHRUN_GUARDED_BY(mu_);
};

// Never destroyed: threads are detached, and a parent may have held a lock.
CallbackTurn::Process& CallbackTurn::Process::own() {
  static std::atomic<Process*> all{new Process};
  Process* found = all.load();
  while (found->id_ != ::getpid()) {
    auto* const process = new Process;
    if (all.compare_exchange_strong(found, process)) return *process;
    delete process;
  }
  return *found;
}

struct CallbackTurn::Entry {
  std::function<void()> callback;
  uint64_t time = 0;
  std::shared_ptr<Lane> lane;
  State state = State::kWaits;  // guarded by the lane
};

// The callbacks of one order that run one after the other: none waits for another one of them.
class CallbackTurn::Lane : public std::enable_shared_from_this<Lane> {
 public:
  using Turn = std::shared_ptr<Entry>;

  Lane(Process& process, size_t number, bool is_ordered)
      : process_(process), number_(number), is_ordered_(is_ordered) {}

  bool is_of_this_process() const { return &process_ == &Process::own(); }

  void add(const Turn& turn) {
    const MutexLock lock(mu_);
    if (is_ordered_) turns_.push_back(turn);
  }
  void change(const Turn& turn, State to) {
    std::function<void()> dropped;
    const MutexLock lock(mu_);
    if (turn->state != State::kWaits) return;
    turn->state = to;
    if (to == State::kReady) {
      process_.one_more();
      if (!is_ordered_) turns_.push_back(turn);
    } else {
      dropped = std::move(turn->callback);
    }
    call_for_thread();
  }
  bool is_empty() {
    const MutexLock lock(mu_);
    drop_given_up();
    return turns_.empty() && running_ == 0;
  }

 private:
  void drop_given_up() MESHRUN_REQUIRES(mu_) {
    while (!turns_.empty() && turns_.front()->state == State::kGivenUp) turns_.pop_front();
  }
  bool is_next_ready() MESHRUN_REQUIRES(mu_) {
    drop_given_up();
    return !turns_.empty() && turns_.front()->state == State::kReady;
  }

  void call_for_thread() MESHRUN_REQUIRES(mu_) {
    if (!is_next_ready()) return;
    if (idle_ > 0) return wanted_.NotifyOne();
    try {
      std::thread([self = shared_from_this()] { self->work(); }).detach();
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
      const auto next_start = last_start_ + kPatience;
      if (!is_next_ready()) {
        if (now >= ends) return;
        wait_until(ends);
      } else if (is_ordered_ && running_ > 0 && now < next_start) {
        wait_until(next_start);
      } else {
        Turn turn = std::move(turns_.front());
        turns_.pop_front();
        ++running_;
        last_start_ = now;
        call_for_thread();  // who goes on where this one blocks
        mu_.Unlock();
        own_time = turn->time;
        turn->callback();
        turn->callback = nullptr;
        own_time = 0;
        process_.one_ended();
        turn = nullptr;
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

  Process& process_;
  const size_t number_;
  const bool is_ordered_;
  Mutex mu_;
  CondVar wanted_;
  std::deque<Turn> turns_ MESHRUN_GUARDED_BY(mu_);
  int idle_ MESHRUN_GUARDED_BY(mu_) = 0;
  int running_ MESHRUN_GUARDED_BY(mu_) = 0;
  Clock::time_point last_start_ MESHRUN_GUARDED_BY(mu_);
};

std::shared_ptr<CallbackTurn::Lane> CallbackTurn::Process::lane_of(const void* order) {
  const MutexLock lock(mu_);
  const auto known = lanes_.find({order, own_lane});
  if (known != lanes_.end()) {
    if (auto lane = known->second.lock()) return lane;
  }
  std::erase_if(lanes_, [](const auto& lane) { return lane.second.expired(); });
  auto lane = std::make_shared<Lane>(*this, own_lane, order != nullptr);
  lanes_[{order, own_lane}] = lane;
  return lane;
}

CallbackTurn::CallbackTurn(const void* order, std::function<void()> callback)
    : entry_(
          std::make_shared<Entry>(Entry{std::move(callback), own_time != 0 ? own_time : ++last_time,
                                        Process::own().lane_of(order)})) {
  entry_->lane->add(entry_);
}

CallbackTurn::~CallbackTurn() {
  if (entry_->lane->is_of_this_process()) entry_->lane->change(entry_, State::kGivenUp);
}

void CallbackTurn::ready() {
  if (entry_->lane->is_of_this_process()) entry_->lane->change(entry_, State::kReady);
}

bool CallbackTurn::has_one_before(const void* order) {
  return !Process::own().lane_of(order)->is_empty();
}

bool CallbackTurn::await_all(Clock::time_point until) {
  return own_lane == 0 && Process::own().await_none(until);
}

bool CallOrder::add() {
  const uint64_t own = own_time != 0 ? own_time : ++last_time;
  uint64_t last = last_.load();
  while (last < own) {
    if (last_.compare_exchange_weak(last, own)) return true;
  }
  // Threads of the program may come in any order.
  return last == own || own_time == 0;
}

}  // namespace meshrun
