#include "parallel/checkpoint/commit.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "parallel/base/process.h"
#include "parallel/checkpoint/status_errors.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun {
namespace {

// Length of the longest commit name that the coordinator accepts.
constexpr size_t kLongestName = 200;

std::string name_of(const std::string& directory) {
  std::error_code error;
  const std::string path = std::filesystem::absolute(directory, error).lexically_normal().string();
  return path.size() <= kLongestName ? path : "sha256:" + HexEncode(Sha256(path));
}

}  // namespace

CommitRight::CommitRight(std::shared_ptr<agent::Agent> agent, const std::string& directory)
    : agent_(std::move(agent)), name_(name_of(directory)), host_(host_name()) {
  if (agent_ == nullptr) return;
  generation_ = agent_->assignment().generation;
  host_ = agent_->assignment().node_name;
  std::ranges::replace(host_, '/', '_');
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
          }};
}

std::optional<Committed> finish_committed(const std::string& path, const CommitRight& right) {
  const auto newest = right.newest();
  if (!newest) return std::nullopt;
  return Committed{newest->step,
                   finish_step_directory(path, newest->step, newest->digest, newest->temporary),
                   newest->generation == right.generation()};
}

std::optional<int64_t> step_to_load(const std::string& path) {
  const auto committed = finish_committed(path, right_of(path));
  if (!committed) return std::nullopt;
  if (committed->is_here) return committed->step;
  if (committed->is_of_this_generation) return std::nullopt;
  const std::vector<StepDirectory> found = value_of(ListStepDirectories(path));
  throw std::runtime_error(
      "the job's newest checkpoint in " + path + ", of step " + std::to_string(committed->step) +
      ", is not on " + host_name() +
      ", where rank 0 is now: it is on another host, or was removed. The newest here is " +
      (found.empty() ? "none" : "that of step " + std::to_string(found.back().manifest.step)) +
      ". Use a directory that all hosts share; or copy step-" + std::to_string(committed->step) +
      " from the host that wrote it; to go on from what is here, submit a new job");
}

}  // namespace meshrun
