// The operator's policy, as the file of --policy has it:
//
//   limits:                              # of each user, where nothing below says otherwise
//     kill_grace: {default: 5s, max: 10m}
//     time_limit: {default: 24h, max: 168h}
//     max_restarts: {default: 0, max: 20}
//     log_bytes: {default: 100M, max: 1G}  # of a running rank's stdout, and of its stderr
//     ranks: 512                         # the most of one job
//     queued_jobs: 1000                  # the most of all his jobs together
//     running_jobs: 50
//     running_ranks: 1024
//     running_gpus: 16
//   users:
//     ada: {weight: 2, account: physics, limits: {running_jobs: 100}}
//   accounts:                            # limits of all jobs of the account together
//     physics: {users: [ada, bob], limits: {running_gpus: 32}}
//   partitions:
//     gpu: {nodes: [gpu], accounts: [physics], limits: {time_limit: 12h}}
//     cpu: {nodes: ["!gpu"], default: true}
//
//   private_jobs: true                   # what jobs print is for their users and for operators
//
// Everything may be left out. `time_limit: 12h` means {max: 12h}.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "meshrun/v1/policy.pb.h"

namespace meshrun::coordinator {

// INVALID_ARGUMENT: the file, the place, and what is wrong there.
absl::StatusOr<v1::Policy> ParsePolicy(std::string_view name, const std::string& text);

// The same; NOT_FOUND and the like from the file.
absl::StatusOr<v1::Policy> ReadPolicy(const std::string& path);

// A policy file that people change while it is in force. One that is wrong then changes nothing:
// what was read before stays in force, also where this coordinator leads for the first time after.
//
// Threads: any.
class PolicyFile {
 public:
  explicit PolicyFile(std::string path) : path_(std::move(path)) {}

  using Note = std::function<void(const std::string& kind, const std::string& message)>;
  // Says that a change is wrong: the event PolicyRefused.
  static void Refuse(const absl::Status& why, const Note& note);

  const std::string& path() const { return path_; }
  // ReadPolicy.
  absl::StatusOr<v1::Policy> Read() MESHRUN_EXCLUDES(mu_);
  // The same; but what was read before, if there is any, where the file is wrong now.
  absl::StatusOr<v1::Policy> ReadOrKeep(const Note& note) MESHRUN_EXCLUDES(mu_);

 private:
  const std::string path_;
  Mutex mu_;
  std::optional<v1::Policy> last_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::coordinator
