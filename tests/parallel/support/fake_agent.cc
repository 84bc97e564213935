#include "tests/parallel/support/fake_agent.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun {
namespace {

std::vector<uint8_t> bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::vector<std::string> below(const std::string& prefix, const std::vector<std::string>& keys) {
  std::vector<std::string> result;
  for (const std::string& key : keys) result.push_back(prefix + key);
  return result;
}

}  // namespace

FakeAgent::FakeAgent(agent::Assignment assignment, c10::intrusive_ptr<c10d::Store> store)
    : assignment_(std::move(assignment)), store_(std::move(store)) {}

void FakeAgent::fail_with(absl::Status status) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(status);
}

void FakeAgent::refuse_groups_with(absl::Status status) {
  const std::lock_guard lock(mutex_);
  group_refusal_ = std::move(status);
}

std::vector<std::string> FakeAgent::registered_groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void FakeAgent::lose_answers_of_commits(bool lose) {
  const std::lock_guard lock(mutex_);
  loses_commits_ = lose;
}

void FakeAgent::take_commits_of(FakeAgent& former) {
  const std::scoped_lock lock(mutex_, former.mutex_);
  checkpoints_ = former.checkpoints_;
}

int64_t FakeAgent::store_calls() const {
  const std::lock_guard lock(mutex_);
  return store_calls_;
}

template <typename T>
absl::StatusOr<T> FakeAgent::guarded(const std::function<T()>& call) const {
  {
    const std::lock_guard lock(mutex_);
    ++store_calls_;
    if (!failure_.ok()) return failure_;
  }
  try {
    return call();
  } catch (const c10::DistNetworkError& error) {
    return absl::UnavailableError(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return absl::DeadlineExceededError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

absl::Status FakeAgent::guarded_void(const std::function<void()>& call) const {
  return guarded<bool>([&] {
           call();
           return true;
         })
      .status();
}

absl::Status FakeAgent::Set(std::string_view key, std::string_view value) {
  return guarded_void([&] { store_->set(std::string(key), bytes(value)); });
}

absl::Status FakeAgent::MultiSet(const std::vector<std::string>& keys,
                                 const std::vector<std::string>& values) {
  return guarded_void([&] {
    for (size_t i = 0; i < keys.size(); ++i) store_->set(keys[i], bytes(values[i]));
  });
}

absl::StatusOr<std::string> FakeAgent::Get(std::string_view key, agent::Milliseconds timeout) {
  return guarded<std::string>([&] {
    store_->wait({std::string(key)}, timeout);
    return text(store_->get(std::string(key)));
  });
}

absl::StatusOr<std::vector<std::string>> FakeAgent::MultiGet(const std::vector<std::string>& keys,
                                                             agent::Milliseconds timeout,
                                                             const std::stop_token& stop) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  return guarded<std::vector<std::string>>([&] {
    while (!store_->check(keys)) {
      if (stop.stop_requested()) throw c10::DistNetworkError("stopped");
      if (std::chrono::steady_clock::now() > deadline) throw c10::DistStoreError("not in time");
      std::this_thread::sleep_for(agent::Milliseconds(1));
    }
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(text(store_->get(key)));
    return values;
  });
}

absl::Status FakeAgent::Wait(const std::vector<std::string>& keys, agent::Milliseconds timeout) {
  return guarded_void([&] { store_->wait(keys, timeout); });
}

absl::StatusOr<bool> FakeAgent::Check(const std::vector<std::string>& keys) {
  return guarded<bool>([&] { return store_->check(keys); });
}

absl::StatusOr<int64_t> FakeAgent::Add(std::string_view key, int64_t amount) {
  return guarded<int64_t>([&] { return store_->add(std::string(key), amount); });
}

absl::StatusOr<std::string> FakeAgent::CompareSet(std::string_view key, std::string_view expected,
                                                  std::string_view desired) {
  return guarded<std::string>(
      [&] { return text(store_->compareSet(std::string(key), bytes(expected), bytes(desired))); });
}

absl::Status FakeAgent::Append(std::string_view key, std::string_view value) {
  return guarded_void([&] {
    const std::string name(key);
    const std::string before = store_->check({name}) ? text(store_->get(name)) : std::string();
    store_->set(name, bytes(before + std::string(value)));
  });
}

absl::StatusOr<bool> FakeAgent::Delete(std::string_view key) {
  return guarded<bool>([&] { return store_->deleteKey(std::string(key)); });
}

absl::StatusOr<int64_t> FakeAgent::CountKeys() {
  return guarded<int64_t>([&] { return store_->getNumKeys(); });
}

absl::Status FakeAgent::Barrier(std::string_view name, const std::vector<int>& ranks,
                                agent::Milliseconds timeout) {
  return guarded_void([&] {
    std::vector<std::string> keys;
    const std::string prefix = fmt::format("fake-barrier/{}/", name);
    for (int rank = 0; rank < assignment_.world_size; ++rank) {
      if (ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
        keys.push_back(std::to_string(rank));
      }
    }
    store_->set(prefix + std::to_string(assignment_.rank), bytes("here"));
    store_->wait(below(prefix, keys), timeout);
  });
}

absl::Status FakeAgent::PublishUniqueId(std::string_view group, std::string_view unique_id) {
  const absl::StatusOr<std::string> there = guarded<std::string>([&] {
    return text(
        store_->compareSet(fmt::format("fake-unique-id/{}", group), bytes(""), bytes(unique_id)));
  });
  if (!there.ok()) return there.status();
  return *there == unique_id ? absl::OkStatus() : absl::AlreadyExistsError(std::string(group));
}

absl::StatusOr<std::string> FakeAgent::AwaitUniqueId(std::string_view group,
                                                     agent::Milliseconds timeout) {
  return guarded<std::string>([&] {
    const std::string key = fmt::format("fake-unique-id/{}", group);
    store_->wait({key}, timeout);
    return text(store_->get(key));
  });
}

absl::Status FakeAgent::RegisterGroup(std::string_view name, const std::vector<int>& ranks,
                                      std::string_view backend) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (!group_refusal_.ok()) return group_refusal_;
  groups_.push_back(fmt::format("{} {}: {}", name, backend, fmt::join(ranks, ",")));
  return absl::OkStatus();
}

absl::StatusOr<agent::WorldTable> FakeAgent::World(agent::Milliseconds timeout) {
  const auto key = [](int rank) { return "fake world/" + std::to_string(rank); };
  const absl::Status said = Set(key(assignment_.rank), std::to_string(assignment_.node_rank));
  if (!said.ok()) return said;
  agent::WorldTable table;
  for (int rank = 0; rank < assignment_.world_size; ++rank) {
    const auto node = Get(key(rank), timeout);
    if (!node.ok()) return node.status();
    table.node_ranks.push_back(std::stoi(*node));
    table.addresses.push_back("127.0.0.1");
  }
  return table;
}

absl::Status FakeAgent::CommitCheckpoint(std::string_view name, int64_t step,
                                         std::string_view digest, std::string_view temporary,
                                         std::optional<int64_t> expected) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  const auto known = checkpoints_.find(name);
  const bool is_expected =
      known == checkpoints_.end() ? !expected.has_value() : expected == known->second.step;
  if (!is_expected) return absl::FailedPreconditionError("the newest commit is another one");
  checkpoints_[std::string(name)] = {step, std::string(digest), std::string(temporary),
                                     assignment_.generation};
  if (loses_commits_) return absl::FailedPreconditionError("generation 2 has the right");
  return absl::OkStatus();
}

absl::StatusOr<std::optional<agent::Checkpoint>> FakeAgent::CommittedCheckpoint(
    std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  const auto known = checkpoints_.find(name);
  if (known == checkpoints_.end()) return std::nullopt;
  return known->second;
}

}  // namespace meshrun
