// A group as its callers see it. Each call goes to the engine, except in a child of fork() and
// after a breakdown.
#include <unistd.h>

#include <atomic>
#include <type_traits>
#include <utility>

#include "fmt/format.h"
#include "parallel/comm/ucx/engine/execution/engine_impl.h"
#include "parallel/comm/ucx/engine/execution/flight_recorder.h"

namespace meshrun::ucx {
namespace {

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

}  // namespace

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
std::shared_ptr<Operation> Group::submit(Spec&& spec, const Numbered& numbered) {
  Engine::Impl& impl = *engine_->impl_;
  const bool is_forked = impl.is_forked();
  if (!is_forked) {
    if (auto operation = impl.submit(id_, std::move(spec), numbered)) {
      if constexpr (std::is_same_v<Spec, OperationSpec>) last_submitted_ = operation->sequence();
      return operation;
    }
  }
  std::string name = fmt::format("an operation of group \"{}\"", config_.name);
  Failure failure =
      is_forked ? forked(name + " was not started") : broken(name + " was not started");
  return std::make_shared<FailedOperation>(std::move(name), std::move(failure));
}

template std::shared_ptr<Operation> Group::submit(OperationSpec&&, const Numbered&);
template std::shared_ptr<Operation> Group::submit(PointToPointSpec&&, const Numbered&);

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

std::shared_ptr<std::atomic<int>> Group::running_callbacks() const {
  return engine_->impl_->running_callbacks();
}

void Group::abort(const std::string& reason, FailureKind kind) {
  if (engine_->impl_->is_forked()) return;
  engine_->impl_->abort(id_, {kind, reason, {config_.rank}});
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
