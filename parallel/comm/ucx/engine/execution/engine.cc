#include "parallel/comm/ucx/engine/execution/engine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "core/log.h"
#include "core/mutex.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/digest.h"
#include "parallel/base/process.h"
#include "parallel/comm/ucx/engine/execution/engine_impl.h"
#include "parallel/comm/ucx/engine/execution/flight_recorder.h"

namespace meshrun::ucx {
namespace {

thread_local int running = 0;

class FailedOperation final : public Operation {
 public:
  FailedOperation(std::string name, Failure failure) : name_(std::move(name)) {
    failure_ = std::move(failure);
    done_.store(true, std::memory_order_release);
  }
  std::string name() const override { return name_; }

 private:
  const std::string name_;
};

// An executor that has given up.
void keep_for_ever(std::unique_ptr<Executor> executor) {
  static Mutex& mu = *new Mutex;
  static auto& kept = *new std::vector<std::unique_ptr<Executor>>;
  const MutexLock lock(mu);
  try {
    kept.emplace_back();
    kept.back() = std::move(executor);
  } catch (const std::exception&) {
    static_cast<void>(executor.release());
  }
}

}  // namespace

uint64_t this_host() { return host_of(node_facts(), os::FindCpuQuota()); }

uint64_t host_of(const NodeFacts& facts, const os::CpuQuota& quota) {
  std::string text = facts.boot_id + facts.ipc_namespace;
  // Ranks that a launcher has pinned to a core each do not share it.
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) {
    text.append(reinterpret_cast<const char*>(&cores), sizeof(cores));
  }
  // Containers with a quota each do not, either.
  if (quota.cores > 0 && quota.cores < os::CoresOfAffinity()) text += std::to_string(quota.cgroup);
  return digest_of(text);
}

// ---- Engine::Impl

Engine::Impl::Impl(std::unique_ptr<Transport> transport, Options options)
    : clock_(options.clock),
      watch_(std::move(options.watch)),
      dump_(std::move(options.dump)),
      deadlock_after_(options.deadlock_after),
      cores_(options.cores),
      forks_(fork_count()),
      executor_(std::make_unique<Executor>(std::move(transport), options.clock, options.host,
                                           options.heap)) {}

void Engine::Impl::start(const std::shared_ptr<Impl>& impl) {
  impl->thread_ = std::thread([impl] { impl->run_thread(); });
  if (impl->watch_ == nullptr) return;
  impl->watch_->start([raw = impl.get()](const PeerNews& news) { raw->heard(news); });
}

// getpid() is a system call, a tenth of a small collective.
bool Engine::Impl::is_forked() const { return fork_count() != forks_; }

void Engine::Impl::stop() {
  if (watch_ != nullptr) watch_->stop();
  {
    const Lock lock(*this);
    stopping_ = true;
    thread_cv_.NotifyOne();
    if (thread_sleeps_) executor_->transport().wake();
  }
  if (std::this_thread::get_id() == thread_.get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
  Actions actions;
  {
    const Lock lock(*this);
    changes([&]() MESHRUN_REQUIRES(mu_) {
      executor_->close("the engine ended");
      actions = collect();
    });
    if (is_broken_) {
      run_what_is_left();
      keep_for_ever(std::move(executor_));
    } else {
      // The progress thread may end later; the transport must not.
      executor_ = nullptr;
    }
  }
  run(std::move(actions));
}

uint32_t Engine::Impl::add_group(const GroupConfig& config, AddressBook* book,
                                 AddressRecord* record) {
  const Lock lock(*this);
  const uint32_t group = executor_->add_group(config);
  if (group != 0) {
    groups_[group] = {book};
    *record = executor_->address_record(group);
  }
  return group;
}

void Engine::Impl::remove_group(uint32_t group) {
  Actions actions;
  {
    const Lock lock(*this);
    changes([&]() MESHRUN_REQUIRES(mu_) { executor_->remove_group(group); });
    while (groups_[group].look_ups > 0) look_ups_cv_.Wait(mu_);
    groups_.erase(group);
    actions = collect();
    notice();
  }
  run(std::move(actions));
}

template <typename Spec>
std::shared_ptr<Operation> Engine::Impl::submit(uint32_t group, Spec&& spec) {
  std::shared_ptr<Operation> operation;
  Actions actions;
  {
    const Lock lock(*this);
    note_submitter();
    called();
    if (is_broken_) return nullptr;
    changes([&]() MESHRUN_REQUIRES(mu_) {
      constexpr bool kIsMessage = std::is_same_v<Spec, PointToPointSpec>;
      std::optional<SteadyNanos> since;
      if (executor_->is_full(group, kIsMessage)) {
        since = clock_.SteadyNow();
        // What makes room may need the thread that a callback runs on, or a lock that it holds.
        if (!is_running()) wait_for_room(group, kIsMessage, *since + spec.timeout);
      }
      if (!is_broken_) operation = executor_->submit(group, std::move(spec), since);
    });
    actions = collect();
    if (operation != nullptr && !operation->is_done()) notice(Urgency::kSoon);
  }
  run(std::move(actions));
  return operation;
}

void Engine::Impl::hand_over(Operation& operation) {
  if (operation.is_done() || is_forked()) return;
  const Lock lock(*this);
  if (is_broken_) return;
  executor_->set_drive(operation, Drive::kThread);
  notice();
}

void Engine::Impl::on_done(const std::shared_ptr<Operation>& operation, Callback callback) {
  if (!operation->is_done()) {
    if (is_forked()) return;
    const Lock lock(*this);
    if (!operation->is_done() && !is_broken_) {
      callbacks_[operation.get()].push_back(std::move(callback));
      executor_->set_drive(*operation, Drive::kThread);
      notice();
      return;
    }
  }
  callback();
}

void Engine::Impl::abort(uint32_t group, const Failure& failure) {
  Actions actions;
  {
    const Lock lock(*this);
    changes([&]() MESHRUN_REQUIRES(mu_) { executor_->abort(group, failure); });
    actions = collect();
    notice();
  }
  run(std::move(actions));
}

void Engine::Impl::leave(uint32_t group, const Failure& failure) {
  Actions actions;
  {
    const Lock lock(*this);
    changes([&]() MESHRUN_REQUIRES(mu_) { executor_->leave(group, failure); });
    actions = collect();
    notice();
  }
  run(std::move(actions));
}

void Engine::Impl::found(uint32_t group, int rank, const std::optional<AddressRecord>& record,
                         const std::string& reason) {
  const Lock lock(*this);
  changes([&]() MESHRUN_REQUIRES(mu_) {
    executor_->found(group, rank, record, reason);
    local_ranks_ = executor_->local_ranks();
    defer();
  });
}

Counters Engine::Impl::counters() {
  const Lock lock(*this);
  Counters counters = executor_->counters();
  counters.wake_ups = wake_ups_;
  counters.submitters = static_cast<int64_t>(submitters_.size());
  return counters;
}

std::string Engine::Impl::flight_records() {
  // Written as text without the lock.
  std::vector<std::string> groups;
  for (const auto& [name, records] :
       locked([](const Executor& executor) { return executor.flight_records(); })) {
    groups.push_back(to_json(name, records));
  }
  return fmt::format("{{\"now_ms\":{},\"groups\":[{}]}}",
                     static_cast<double>(clock_.SteadyNow().count()) / 1e6, fmt::join(groups, ","));
}

void Engine::Impl::heard(const PeerNews& news) {
  if (const auto* wanted = std::get_if<RecordWanted>(&news)) {
    try {
      return wanted->tell(flight_records());
    } catch (const std::exception& error) {
      log::Warning("a flight record was not told", {{"error", error.what()}});
      return;
    }
  }
  const Lock lock(*this);
  changes([&]() MESHRUN_REQUIRES(mu_) {
    executor_->heard(news);
    defer();
  });
}

void Engine::Impl::defer() {
  const size_t ended = deferred_.finished.size();
  deferred_.append(executor_->take());
  has_deferred_ = has_deferred_ || !deferred_.empty();
  if (deferred_.finished.size() > ended) callers_cv_.NotifyAll();
  notice();
}

bool Engine::Impl::has_actions() const {
  return !is_broken_ && (has_deferred_ || executor_->has_actions());
}

Actions Engine::Impl::collect() {
  if (!has_actions()) return {};
  Actions actions = executor_->take();
  const bool is_whole = changes([&]() MESHRUN_REQUIRES(mu_) {
    if (!actions.finished.empty() && parked_callers_ > 0) callers_cv_.NotifyAll();
    if (!actions.finished.empty() && watch_ != nullptr) watch_->under_way(executor_->under_way());
    if (std::exchange(has_deferred_, false)) actions.append(deferred_.take());
    if (actions.seldom != nullptr) {
      std::vector<Actions::LookUp>& look_ups = actions.seldom->look_ups;
      for (Actions::LookUp& look_up : std::exchange(look_ups, {})) {
        const auto group = groups_.find(look_up.group);
        if (group == groups_.end()) continue;
        look_up.book = group->second.book;
        look_ups.push_back(std::move(look_up));
        ++group->second.look_ups;
      }
    }
    for (const std::shared_ptr<Operation>& operation : actions.finished) {
      if (operation->failure()) sleeps_left_ = kSleepsAfterFailure;
      const auto found = callbacks_.find(operation.get());
      if (found == callbacks_.end()) continue;
      std::ranges::move(found->second, std::back_inserter(actions.make_seldom().callbacks));
      callbacks_.erase(found);
    }
  });
  // Nothing of it may end here, under the lock.
  if (!is_whole) lost_ = std::move(actions);
  return is_whole ? std::move(actions) : Actions();
}

void Engine::Impl::break_down(const char* what) noexcept {
  if (std::exchange(is_broken_, true)) return;
  has_broken_.store(true, std::memory_order_relaxed);
  try {
    why_broken_ = fmt::format(
        "{}: this process has ended all its operations on ucx, and cannot begin others", what);
    executor_->give_up(why_broken_);
    if (caller_sleeps_ || thread_sleeps_) executor_->transport().wake();
  } catch (...) {
    // Whoever waits looks at is_broken_.
  }
  thread_rest_ = Rest::kNone;
  callers_cv_.NotifyAll();
  thread_cv_.NotifyOne();
}

std::optional<std::string> Engine::Impl::why_broken() {
  if (!has_broken_.load(std::memory_order_relaxed)) return std::nullopt;
  const Lock lock(*this);
  if (!is_broken_) return std::nullopt;
  return why_broken_;
}

bool Engine::Impl::is_running() { return running > 0; }

void Engine::Impl::run(Actions actions) {
  if (actions.empty()) return;
  ++running;
  Actions::Seldom none;
  Actions::Seldom& seldom = actions.seldom == nullptr ? none : *actions.seldom;
  for (const Actions::LookUp& look_up : seldom.look_ups) {
    try {
      look_up.book->look_up(look_up.ranks,
                            [this, group = look_up.group](
                                int rank, std::optional<AddressRecord> record,
                                const std::string& reason) { found(group, rank, record, reason); });
    } catch (const std::exception& error) {
      const Lock lock(*this);
      break_down(error.what());
    }
    const Lock lock(*this);
    --groups_[look_up.group].look_ups;
    look_ups_cv_.NotifyAll();
  }
  for (const std::string& json : seldom.dumps) write_dump(json);
  actions.memory.clear();
  // What an operation holds of its caller's may end with it.
  actions.finished.clear();
  for (Callback& callback : seldom.callbacks) call(callback);
  --running;
}

void Engine::Impl::run_what_is_left() {
  Actions lost = lost_.take();
  auto callbacks = std::exchange(callbacks_, {});
  const Gap gap(*this);
  run(std::move(lost));
  ++running;
  for (auto& [operation, of_it] : callbacks) {
    for (Callback& callback : of_it) call(callback);
  }
  --running;
}

void Engine::Impl::write_dump(const std::string& json) {
  try {
    if (dump_) {
      dump_(json);
    } else {
      log::Warning("flight record of a group that failed", {{"record", json}});
    }
  } catch (const std::exception&) {
    // It is of the past; memory for it there is none.
  }
}

void Engine::Impl::call(Callback& callback) {
  try {
    std::exchange(callback, nullptr)();
  } catch (const std::exception& error) {
    log::Error("a callback of an operation has thrown", {{"error", error.what()}});
  }
}

// ---- Engine

Engine::Engine(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::shared_ptr<Engine> Engine::start(std::unique_ptr<Transport> transport, Options options) {
  auto impl = std::make_shared<Impl>(std::move(transport), std::move(options));
  Impl::start(impl);
  return std::shared_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::~Engine() {
  if (impl_->is_forked()) {
    // UCX and the thread are the parent's: kept for ever.
    new std::shared_ptr<Impl>(std::move(impl_));
  } else {
    impl_->stop();
  }
}

std::optional<std::string> Engine::join(const GroupConfig& config,
                                        std::unique_ptr<AddressBook> book,
                                        std::shared_ptr<Group>* group) {
  if (config.size > kMaxRanks) {
    return fmt::format("group \"{}\" has {} ranks, and messages can name {}", config.name,
                       config.size, kMaxRanks);
  }
  if (impl_->is_forked()) {
    return fmt::format(
        "process {} was forked from the rank's, and UCX does not survive that. Fork before the "
        "first process group is made, or start a program in the child (exec)",
        getpid());
  }
  if (std::optional<std::string> why = impl_->why_broken()) return why;
  AddressRecord record;
  const uint32_t id = impl_->add_group(config, book.get(), &record);
  if (id == 0) {
    // The others are told, if the book can.
    static_cast<void>(book->publish(config.rank, record));
    return too_many_groups(config.name, config.rank);
  }
  if (std::optional<std::string> error = book->publish(config.rank, record)) {
    impl_->remove_group(id);
    return error;
  }
  group->reset(new Group(shared_from_this(), id, config, std::move(book)));
  return std::nullopt;
}

Counters Engine::counters() const { return impl_->is_forked() ? Counters() : impl_->counters(); }

std::string Engine::flight_records() const {
  return impl_->is_forked() ? R"({"now_ms":0,"groups":[]})" : impl_->flight_records();
}

// ---- Group

Group::Group(std::shared_ptr<Engine> engine, uint32_t id, const GroupConfig& config,
             std::unique_ptr<AddressBook> book)
    : engine_(std::move(engine)), id_(id), config_(config), book_(std::move(book)) {}

Group::~Group() {
  if (engine_->impl_->is_forked()) {
    // Its thread is the parent's.
    static_cast<void>(book_.release());
    return;
  }
  engine_->impl_->remove_group(id_);
  book_->stop();
}

template <typename Spec>
std::shared_ptr<Operation> Group::submit(Spec&& spec) {
  Engine::Impl& impl = *engine_->impl_;
  const bool is_forked = impl.is_forked();
  if (!is_forked) {
    if (auto operation = impl.submit(id_, std::move(spec))) return operation;
  }
  std::string name = fmt::format("an operation of group \"{}\"", config_.name);
  Failure failure =
      is_forked ? forked(name + " was not started") : broken(name + " was not started");
  return std::make_shared<FailedOperation>(std::move(name), std::move(failure));
}

template std::shared_ptr<Operation> Group::submit(OperationSpec&&);
template std::shared_ptr<Operation> Group::submit(PointToPointSpec&&);

Failure Group::forked(const std::string& what) const {
  return {FailureKind::kAborted,
          fmt::format("{}: process {} was forked from that of rank {}, and UCX does not survive "
                      "that. Fork before the first process group is made, or start a program in "
                      "the child (exec).",
                      what, getpid(), config_.rank),
          {config_.rank}};
}

bool Group::is_forked() const { return engine_->impl_->is_forked(); }

Failure Group::broken(const std::string& what) const {
  return {FailureKind::kTransport,
          fmt::format("{} on rank {}: {}", what, config_.rank,
                      engine_->impl_->why_broken().value_or("")),
          {config_.rank}};
}

std::optional<Failure> Group::cannot_end(const Operation& operation) const {
  if (engine_->impl_->is_forked()) return forked(operation.name() + " never ends here");
  if (!engine_->impl_->why_broken() || operation.is_done()) return std::nullopt;
  return broken(operation.name() + " never ends");
}

bool Group::wait(Operation& operation, std::optional<std::chrono::nanoseconds> timeout) {
  return engine_->impl_->wait(operation, timeout);
}
void Group::poll() { engine_->impl_->poll(); }
void Group::hand_over(Operation& operation) { engine_->impl_->hand_over(operation); }
void Group::on_done(const std::shared_ptr<Operation>& operation, std::function<void()> callback) {
  engine_->impl_->on_done(operation, std::move(callback));
}

void Group::abort(const std::string& reason) {
  if (engine_->impl_->is_forked()) return;
  engine_->impl_->abort(id_, {FailureKind::kAborted, reason, {config_.rank}});
}

void Group::leave(const std::string& reason) {
  if (engine_->impl_->is_forked()) return;
  engine_->impl_->leave(id_, {FailureKind::kAborted, reason, {config_.rank}});
}

std::vector<std::shared_ptr<Operation>> Group::unfinished() const {
  if (engine_->impl_->is_forked()) return {};
  return engine_->impl_->locked([&](const Executor& e) { return e.unfinished(id_); });
}
std::optional<Failure> Group::failure() const {
  if (engine_->impl_->is_forked()) return forked("the group cannot be used");
  return engine_->impl_->locked([&](const Executor& e) { return e.group_failure(id_); });
}
uint64_t Group::sequence() const {
  if (engine_->impl_->is_forked()) return 0;
  return engine_->impl_->locked([&](const Executor& e) { return e.sequence(id_); });
}
std::string Group::flight_record() const {
  if (engine_->impl_->is_forked()) return "{}";
  return engine_->impl_->locked(
      [&](const Executor& e) { return e.flight_recorder(id_).to_json(); });
}

}  // namespace meshrun::ucx
