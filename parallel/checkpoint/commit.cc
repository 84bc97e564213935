#include "parallel/checkpoint/commit.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/hash.h"
#include "parallel/base/process.h"
#include "parallel/checkpoint/background_saves.h"
#include "parallel/checkpoint/status_errors.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun {
namespace {

using nlohmann::json;

// Length of the longest commit name that the coordinator accepts.
constexpr size_t kLongestName = 200;

std::string name_of(const std::string& directory) {
  std::error_code error;
  const std::string path = std::filesystem::absolute(directory, error).lexically_normal().string();
  return path.size() <= kLongestName ? path : "sha256:" + HexEncode(Sha256(path));
}

}  // namespace

CommitRight::CommitRight(std::shared_ptr<agent::Agent> agent, const std::string& directory)
    : agent_(std::move(agent)), name_(name_of(directory)), host_(worker_name()) {
  std::ranges::replace(host_, '/', '_');
  if (agent_ != nullptr) generation_ = agent_->assignment().generation;
}

std::string CommitRight::writer(const std::string& save) const {
  return host_ + "." + save + "." + std::to_string(generation_);
}

std::optional<agent::Checkpoint> CommitRight::newest() const {
  if (agent_ == nullptr) return std::nullopt;
  const auto newest = agent_->CommittedCheckpoint(name_);
  // A coordinator of an earlier version keeps no commits.
  if (absl::IsUnimplemented(newest.status())) return std::nullopt;
  if (absl::IsFailedPrecondition(newest.status())) {
    throw CommitRefused(std::string(newest.status().message()));
  }
  if (!newest.ok()) {
    throw std::runtime_error("the newest checkpoint of " + name_ +
                             " is not known: " + std::string(newest.status().message()));
  }
  return *newest;
}

void CommitRight::commit(int64_t step, const std::string& digest,
                         const std::string& temporary) const {
  if (agent_ == nullptr) return;
  const auto before = newest();
  const absl::Status status = agent_->CommitCheckpoint(
      name_, step, digest, temporary, before ? std::optional(before->step) : std::nullopt);
  if (status.ok() || absl::IsUnimplemented(status)) return;
  const std::string text = "the checkpoint of step " + std::to_string(step) + " in " + name_ +
                           " is not committed: " + std::string(status.message());
  if (absl::IsFailedPrecondition(status)) throw CommitRefused(text);
  throw std::runtime_error(text);
}

CommitRight right_of(const std::string& path) {
  return CommitRight(
      DistributedManager::is_initialized() ? DistributedManager::get().shared_agent() : nullptr,
      path);
}

StepWriter writer_of(const CommitRight& right, const std::string& save) {
  return {right.writer(save), right.generation(),
          [right](int64_t step, const std::string& digest, const std::string& temporary) {
            right.commit(step, digest, temporary);
          },
          detail::say};
}

void finish_committed(const std::string& path, const CommitRight& right) {
  const auto newest = right.newest();
  if (!newest) return;
  finish_step_directory(path, newest->step, newest->digest, newest->temporary, detail::say);
}

std::string finish_and_tell(const std::string& path, const CommitRight& right) {
  std::optional<CommittedStep> committed;
  if (const auto newest = right.newest()) {
    finish_step_directory(path, newest->step, newest->digest, newest->temporary, detail::say);
    committed = CommittedStep{newest->step, newest->digest};
  } else {
    committed = newest_named(path);
  }
  if (!committed) return "";
  return json{{"step", committed->step}, {"digest", HexEncode(committed->digest)}}.dump();
}

void finish_as_told(const std::string& path, const std::string& told) {
  if (told.empty()) return;
  const json coded = json::parse(told);
  const CommittedStep committed{coded.at("step").get<int64_t>(),
                                value_of(BytesFromHex(coded.at("digest").get<std::string>()))};
  finish_step_directory(path, committed.step, committed.digest, temporary_name_of(path, committed),
                        detail::say);
}

}  // namespace meshrun
