#include "parallel/comm/ucx/engine/execution/engine.h"

#include <sched.h>
#include <unistd.h>

#include <type_traits>
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
                                           options.heap,
                                           watch_ != nullptr && watch_->sees_ends())) {}

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
std::shared_ptr<Operation> Engine::Impl::submit(uint32_t group, Spec&& spec,
                                                const Numbered& numbered) {
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
  if (numbered) numbered();
  run(std::move(actions));
  return operation;
}

template std::shared_ptr<Operation> Engine::Impl::submit<OperationSpec>(uint32_t, OperationSpec&&,
                                                                        const Numbered&);
template std::shared_ptr<Operation> Engine::Impl::submit<PointToPointSpec>(uint32_t,
                                                                           PointToPointSpec&&,
                                                                           const Numbered&);

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

std::string Engine::Impl::flight_records(int most) {
  // Written as text without the lock.
  std::vector<std::string> groups;
  for (const auto& [name, records] :
       locked([most](const Executor& executor) { return executor.flight_records(most); })) {
    groups.push_back(to_json(name, records));
  }
  return fmt::format("{{\"now_ms\":{},\"groups\":[{}]}}",
                     static_cast<double>(clock_.SteadyNow().count()) / 1e6, fmt::join(groups, ","));
}

void Engine::Impl::heard(const PeerNews& news) {
  if (const auto* wanted = std::get_if<RecordWanted>(&news)) {
    try {
      return wanted->tell(flight_records(wanted->most_operations));
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

std::string Engine::flight_records(int most) const {
  return impl_->is_forked() ? R"({"now_ms":0,"groups":[]})" : impl_->flight_records(most);
}

}  // namespace meshrun::ucx
