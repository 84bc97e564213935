#include "parallel/checkpoint/commit.h"

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "core/hash.h"
#include "parallel/base/process.h"

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

CommitRight::CommitRight(agent::Agent* agent, const std::string& directory)
    : agent_(agent), name_(name_of(directory)), writer_(host_name() + ".0") {
  if (agent_ == nullptr) return;
  generation_ = agent_->assignment().generation;
  writer_ = agent_->assignment().node_name + "." + std::to_string(generation_);
  for (char& c : writer_) {
    if (c == '/') c = '_';
  }
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

}  // namespace meshrun
