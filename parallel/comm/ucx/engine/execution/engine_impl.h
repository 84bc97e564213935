// What the files of the engine share: the state behind the one mutex.
//
//   engine.cc            groups join and leave, submission, events from outside, the end
//   engine_actions.cc    what is run without the lock: look-ups, callbacks, dumps; the breakdown
//   engine_progress.cc   ownership of progress, rounds, sleeping, the progress thread
//   engine_waiting.cc    what the watch is told of a rank that is blocked
//   group.cc             a group as its callers see it
#pragma once

#include <sys/types.h>

#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "parallel/comm/ucx/engine/execution/actions.h"
#include "parallel/comm/ucx/engine/execution/engine.h"
#include "parallel/comm/ucx/engine/execution/wait_policy.h"

namespace meshrun::ucx {

class Engine::Impl {
 public:
  using Callback = std::function<void()>;

  Impl(std::unique_ptr<Transport> transport, Options options);

  // engine.cc
  static void start(const std::shared_ptr<Impl>& impl);
  // No group is left.
  void stop() MESHRUN_EXCLUDES(mu_);
  uint32_t add_group(const GroupConfig& config, AddressBook* book, AddressRecord* record)
      MESHRUN_EXCLUDES(mu_);
  // Its book is not used any more, but may call found() until it is stopped.
  void remove_group(uint32_t group) MESHRUN_EXCLUDES(mu_);
  template <typename Spec>
  std::shared_ptr<Operation> submit(uint32_t group, Spec&& spec, const Numbered& numbered)
      MESHRUN_EXCLUDES(mu_);
  void hand_over(Operation& operation) MESHRUN_EXCLUDES(mu_);
  std::shared_ptr<std::atomic<int>> running_callbacks() const { return running_callbacks_; }
  void on_done(const std::shared_ptr<Operation>& operation, Callback callback)
      MESHRUN_EXCLUDES(mu_);
  void abort(uint32_t group, const Failure& failure) MESHRUN_EXCLUDES(mu_);
  void leave(uint32_t group, const Failure& failure) MESHRUN_EXCLUDES(mu_);
  void found(uint32_t group, int rank, const std::optional<AddressRecord>& record,
             const std::string& reason) MESHRUN_EXCLUDES(mu_);
  void heard(const PeerNews& news) MESHRUN_EXCLUDES(mu_);
  std::string flight_records(int most) MESHRUN_EXCLUDES(mu_);
  // `read` is given the executor.
  template <typename Read>
  auto locked(Read read) MESHRUN_EXCLUDES(mu_) {
    const Lock lock(*this);
    return read(std::as_const(*executor_));
  }
  Counters counters() MESHRUN_EXCLUDES(mu_);
  bool is_forked() const;

  // engine_actions.cc
  // Why nothing ends here any more; absent: it does.
  std::optional<std::string> why_broken() MESHRUN_EXCLUDES(mu_);

  // engine_progress.cc
  bool wait(Operation& operation, std::optional<std::chrono::nanoseconds> timeout)
      MESHRUN_EXCLUDES(mu_);
  void poll() MESHRUN_EXCLUDES(mu_);

 private:
  // Holds the lock, as lock_beside(), and gives it up on every way out.
  class MESHRUN_TSA(scoped_lockable) Lock {
   public:
    explicit Lock(Impl& impl) MESHRUN_TSA(acquire_capability(impl.mu_)) : impl_(impl) {
      impl_.lock_beside();
    }
    ~Lock() MESHRUN_TSA(release_capability()) { impl_.mu_.Unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    Impl& impl_;
  };
  // The other way round: within its scope the lock is free.
  class MESHRUN_TSA(scoped_lockable) Gap {
   public:
    explicit Gap(Impl& impl) MESHRUN_TSA(release_capability(impl.mu_)) : impl_(impl) {
      impl_.mu_.Unlock();
    }
    ~Gap() MESHRUN_TSA(release_capability()) { impl_.lock_beside(); }
    Gap(const Gap&) = delete;
    Gap& operator=(const Gap&) = delete;

   private:
    Impl& impl_;
  };

  // After a failure the progress thread goes on for so many sleeps: cancelled receives end, and
  // what tells the other members may still wait for a connection.
  static constexpr int kSleepsAfterFailure = 10;
  // After its work the progress thread sleeps in naps of kNap for kNapping. Meanwhile a submission
  // need not wake it. Beside callers that wait for what they submit its naps are longer: each takes
  // the core of such a caller for some 20 us when it ends.
  static constexpr std::chrono::microseconds kNap{100};
  static constexpr std::chrono::microseconds kLongNap{500};
  static constexpr SteadyNanos kNapping{1'000'000};
  // A waiting caller yields so often before it sleeps, while the progress thread ends its round.
  static constexpr int kYieldsForProgress = 20;
  // With more submitting threads we ask from time to time which of them have ended.
  static constexpr size_t kFewSubmitters = 64;

  enum class ProgressOwner : uint8_t { kNobody, kCaller, kThread };
  // How the progress thread rests, on thread_cv_. kNone: it is awake, or on its way, and looks by
  // itself.
  enum class Rest : uint8_t { kNone, kNap, kLongNap, kWait };
  // How urgently the progress thread is needed. kNow: any rest is cut short. kLeft: a caller that
  // drove the operation has gone, so a long nap is cut short, but not a short one. kSoon: a caller
  // may wait for the operation at once, so no nap is cut short.
  enum class Urgency : uint8_t { kNow, kLeft, kSoon };
  struct GroupState {
    AddressBook* book;
    int look_ups = 0;  // calls of the book under way
  };
  // A thread in wait() without a timeout. While it sleeps it is in the list that begins at
  // blocked_threads_.
  struct BlockedThread {
    const Operation& operation;
    pid_t id = 0;
    SteadyNanos since{0};
    bool is_listed = false;
    BlockedThread* next = nullptr;
  };
  // engine_actions.cc
  // What is to be done, for this call and for threads that must not do it themselves. Before each
  // unlocking that follows a call which moves the executor.
  Actions collect() MESHRUN_REQUIRES(mu_);
  bool has_actions() const MESHRUN_REQUIRES(mu_);
  // The watch hears when the first operation begins, and when the last one has ended.
  void tell_under_way() MESHRUN_REQUIRES(mu_);
  // An exception has left the executor: memory ran out, most often. What it was about to change is
  // half changed, so all operations end (kTransport), later ones too, and the executor is kept for
  // ever. The progress thread runs the callbacks.
  void break_down(const char* what) noexcept MESHRUN_REQUIRES(mu_);
  // Calls `change`; false: it threw, and the engine has broken down.
  template <typename Change>
  bool changes(Change change) MESHRUN_REQUIRES(mu_) {
    if (is_broken_) return false;
    try {
      change();
      return true;
    } catch (const std::exception& error) {
      break_down(error.what());
    } catch (...) {
      break_down("an unknown exception");
    }
    return false;
  }
  // What is left to be run of an engine that has broken down, on the progress thread.
  void run_what_is_left() MESHRUN_REQUIRES(mu_);
  // On a thread of the book or of the watch: the actions are for others.
  void defer() MESHRUN_REQUIRES(mu_);
  // Nothing that it calls throws out of it.
  void run(Actions actions) MESHRUN_EXCLUDES(mu_);
  void write_dump(const std::string& json) MESHRUN_EXCLUDES(mu_);
  static void call(Callback& callback);
  // Whether this thread is in run(): in a callback or a destructor of the caller's.
  static bool is_running();

  // engine_waiting.cc
  // A thread begins an operation, or waits, or stops waiting: this rank is not blocked as it was.
  void called() MESHRUN_REQUIRES(mu_);
  // Forgets threads that have ended where there are many.
  void note_submitter() MESHRUN_REQUIRES(mu_);
  // The calling thread sleeps from now on, or does so no longer. Both may be called again.
  void begin_blocking(BlockedThread& thread) MESHRUN_REQUIRES(mu_);
  void end_blocking(BlockedThread& thread) MESHRUN_REQUIRES(mu_);
  // Called before each sleep of a caller: tells the watch of threads that are blocked long enough.
  void tell_watch() MESHRUN_REQUIRES(mu_);
  void withdraw() MESHRUN_REQUIRES(mu_);
  // Threads, other than `blocked` ones, that have called operations and may call more.
  int other_threads(const std::vector<pid_t>& blocked) MESHRUN_REQUIRES(mu_);

  // engine_progress.cc
  // Instead of Lock() where another thread may own progress: it gives the lock up.
  void lock_beside() MESHRUN_TSA(acquire_capability(mu_));
  void give_way() MESHRUN_REQUIRES(mu_);
  bool needs_thread() const MESHRUN_REQUIRES(mu_);
  // Owns progress, or sleeps while another caller owns it, until `is_over`. Returns the actions
  // that are still to be run.
  // `operation`: what the calling thread is blocked in meanwhile; null: the watch is not told.
  template <typename Over>
  Actions wait_until(SteadyNanos deadline, const Operation* operation, Over is_over,
                     bool may_interrupt) MESHRUN_REQUIRES(mu_);
  // Until the group is not full, or `deadline`. Gives the lock up.
  void wait_for_room(uint32_t group, bool is_point_to_point, SteadyNanos deadline)
      MESHRUN_REQUIRES(mu_);
  // Owns progress, until there are actions or `must_stop`. `thread`: the calling thread, where it
  // waits until its operation is done; else null.
  template <typename Stop>
  Actions drive(ProgressOwner self, BlockedThread* thread, SteadyNanos deadline, Stop must_stop)
      MESHRUN_REQUIRES(mu_);
  void sleep(ProgressOwner self, WaitPolicy& policy, SteadyNanos deadline) MESHRUN_REQUIRES(mu_);
  // Nobody owns progress: gives ownership to a waiting caller, or to the thread.
  void hand_on() MESHRUN_REQUIRES(mu_);
  void call_thread(Urgency urgency) MESHRUN_REQUIRES(mu_);
  // Something was posted, or actions are waiting: the thread that must see it does.
  void notice(Urgency urgency = Urgency::kNow) MESHRUN_REQUIRES(mu_);
  // The progress thread has nothing to do, and sleeps. True: it slept until it was called, or
  // callers drove operations meanwhile.
  bool rest(SteadyNanos naps_until) MESHRUN_REQUIRES(mu_);
  void run_thread() MESHRUN_EXCLUDES(mu_);

  const Clock& clock_;
  const std::unique_ptr<PeerWatch> watch_;
  const std::function<void(const std::string&)> dump_;
  const SteadyNanos deadlock_after_;
  const double cores_;
  const int forks_;
  std::thread thread_;
  // Threads that want the lock beside the owner of progress.
  std::atomic<int> arriving_{0};

  Mutex mu_;
  std::unique_ptr<Executor> executor_ MESHRUN_GUARDED_BY(mu_);  // until stop()
  std::map<uint32_t, GroupState> groups_ MESHRUN_GUARDED_BY(mu_);
  std::unordered_map<const Operation*, std::vector<Callback>> callbacks_ MESHRUN_GUARDED_BY(mu_);
  Actions deferred_ MESHRUN_GUARDED_BY(mu_);
  bool has_deferred_ MESHRUN_GUARDED_BY(mu_) = false;
  bool is_broken_ MESHRUN_GUARDED_BY(mu_) = false;
  std::atomic<bool> has_broken_{false};  // the same, for a look without the lock
  std::string why_broken_ MESHRUN_GUARDED_BY(mu_);
  Actions lost_ MESHRUN_GUARDED_BY(mu_);  // of the call in which it broke down
  int local_ranks_ MESHRUN_GUARDED_BY(mu_) = 1;

  ProgressOwner progress_owner_ MESHRUN_GUARDED_BY(mu_) = ProgressOwner::kNobody;
  // In wait(), except those that run actions; of them, those that sleep on callers_cv_.
  int callers_ MESHRUN_GUARDED_BY(mu_) = 0;
  int parked_callers_ MESHRUN_GUARDED_BY(mu_) = 0;
  // In sleep(). The thread may lose ownership there.
  bool caller_sleeps_ MESHRUN_GUARDED_BY(mu_) = false;
  bool thread_sleeps_ MESHRUN_GUARDED_BY(mu_) = false;
  Rest thread_rest_ MESHRUN_GUARDED_BY(mu_) = Rest::kNone;
  // How often callers began to drive what the thread would, ever and until the last rest began.
  int64_t caller_drives_ MESHRUN_GUARDED_BY(mu_) = 0;
  int64_t seen_caller_drives_ MESHRUN_GUARDED_BY(mu_) = 0;
  // Since the last rest began a caller has gone that drove what nobody waits for now.
  bool work_was_left_ MESHRUN_GUARDED_BY(mu_) = false;
  int64_t wake_ups_ MESHRUN_GUARDED_BY(mu_) = 0;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  int sleeps_left_ MESHRUN_GUARDED_BY(mu_) = 0;
  // For the watch.
  const std::shared_ptr<std::atomic<int>> running_callbacks_ =
      std::make_shared<std::atomic<int>>(0);
  bool told_any_ MESHRUN_GUARDED_BY(mu_) = false;
  BlockedThread* blocked_threads_ MESHRUN_GUARDED_BY(mu_) = nullptr;
  SteadyNanos next_report_ MESHRUN_GUARDED_BY(mu_){0};
  std::optional<WaitReport> reported_ MESHRUN_GUARDED_BY(mu_);
  std::set<pid_t> submitters_ MESHRUN_GUARDED_BY(mu_);
  size_t most_submitters_ MESHRUN_GUARDED_BY(mu_) = kFewSubmitters;
  pid_t last_submitter_ MESHRUN_GUARDED_BY(mu_) = -1;
  pid_t thread_id_ MESHRUN_GUARDED_BY(mu_) = -1;
  CondVar callers_cv_;
  CondVar thread_cv_;
  CondVar look_ups_cv_;
};

}  // namespace meshrun::ucx
