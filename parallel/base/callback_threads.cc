#include "parallel/base/callback_threads.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "core/log.h"
#include "core/mutex.h"

namespace meshrun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kIdle(1);
constexpr size_t kLanes = 8;  // deeper callbacks share the last one

// The callback that this thread runs: where it took its turn, how deep that is, in which lane its
// own callbacks take theirs, and how many calls it has made. Depth 0: it runs none.
struct Running {
  CallPlace place;
  size_t depth = 0;
  size_t lane = 0;
  uint64_t calls = 0;
};
thread_local Running mine;
std::atomic<uint64_t> program_calls{0};

// This thread holds a CallOrder.
thread_local bool is_in_call = false;

void tell_once() {
  static const bool told = [] {
    log::Error(
        "no thread could be started for the continuations of collectives: they run on the one that "
        "ends the collective, and must not wait for others",
        {});
    return true;
  }();
  (void)told;
}

class OwnTurn {
 public:
  OwnTurn(const CallPlace& place, size_t depth, size_t lane)
      : before_(std::exchange(mine, Running{place, depth, lane, 0})) {}
  ~OwnTurn() { mine = before_; }
  OwnTurn(const OwnTurn&) = delete;
  OwnTurn& operator=(const OwnTurn&) = delete;

 private:
  const Running before_;
};

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
  CallPlace place;
  size_t depth = 0;
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
    // No thread can be started: better here than never. Not within a call, which the callback's
    // own would wait for.
    while (is_next_ready() && running_ == 0 && idle_ == 0 && !is_in_call) run_next(/*here=*/true);
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
        run_next();
        ends = Clock::now() + kIdle;
      }
    }
  }

  void run_next(bool here = false) MESHRUN_REQUIRES(mu_) {
    Turn turn = std::move(turns_.front());
    turns_.pop_front();
    ++running_;
    last_start_ = Clock::now();
    call_for_thread();  // who goes on where this one blocks
    mu_.Unlock();
    if (here) tell_once();
    {
      const OwnTurn scope(turn->place, turn->depth, std::min(number_ + 1, kLanes - 1));
      turn->callback();
      turn->callback = nullptr;
    }
    process_.one_ended();
    turn = nullptr;
    mu_.Lock();
    --running_;
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
  const auto known = lanes_.find({order, mine.lane});
  if (known != lanes_.end()) {
    if (auto lane = known->second.lock()) return lane;
  }
  std::erase_if(lanes_, [](const auto& lane) { return lane.second.expired(); });
  auto lane = std::make_shared<Lane>(*this, mine.lane, order != nullptr);
  lanes_[{order, mine.lane}] = lane;
  return lane;
}

CallbackTurn::CallbackTurn(const void* order, std::function<void()> callback)
    : entry_(std::make_shared<Entry>(Entry{std::move(callback), CallPlace::next(), mine.depth + 1,
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
  return mine.lane == 0 && Process::own().await_none(until);
}

CallPlace CallPlace::next() {
  if (mine.depth == 0) {
    CallPlace place;
    place.numbers_[0] = ++program_calls;
    return place;
  }
  CallPlace place = mine.place;
  if (mine.depth < kDepth) place.numbers_[mine.depth] = ++mine.calls;
  return place;
}

CallOrder::Call::Call(CallOrder& order) : order_(order) {
  order_.mu_.Lock();
  // After the lock: those who wait for it go on in any order.
  const CallPlace place = CallPlace::next();
  // Threads of the program may come in any order.
  is_late_ = mine.depth > 0 && place < order_.last_;
  order_.last_ = std::max(order_.last_, place);
  is_in_call = true;
}

CallOrder::Call::~Call() {
  is_in_call = false;
  order_.mu_.Unlock();
}

}  // namespace meshrun
