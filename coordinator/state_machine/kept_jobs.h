// How much is kept of jobs, for each user: queued, running and ended ones.
//
// Without a bound a user could submit until the coordinator has no memory left, or has a state that
// no coordinator can start with.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "core/env_entries.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// What each of several may have of `most`: half of what the others leave, and `least` always. So
// each has something, however much the others take.
size_t ShareOf(size_t most, size_t others, size_t least);

class KeptJobs {
 public:
  // Bytes of all jobs, where Retention does not say; those of a user are as ShareOf says, with so
  // many at least.
  static constexpr size_t kMost = 512u << 20;
  static constexpr size_t kLeast = 4u << 20;
  // What a job takes beside its specification, about, and each of its ranks once it has ended, with
  // its places in the tables of earlier generations.
  static constexpr size_t kJobBytes = 4u << 10;
  static constexpr size_t kRankBytes = 1536;

  // The memory that a specification takes with its environment; `spec` has that with hidden values.
  static size_t BytesOf(const v1::JobSpec& spec, const EnvEntries& env);

  // The user's jobs have `after` bytes in place of `before`. `ended`: so many more of those of jobs
  // that have ended.
  void Change(const std::string& user, size_t before, size_t after, ptrdiff_t ended);
  // RESOURCE_EXHAUSTED: with so many bytes more the user's jobs would have too many.
  absl::Status CheckRoom(const std::string& user, size_t bytes, size_t most) const;
  // Whether a job that has ended, with so many bytes, is to be kept without its arguments.
  bool IsShortened(const std::string& user, size_t bytes, size_t most) const;
  // So much is kept of ended jobs that some are to go, however few they are.
  bool IsCrowded(size_t most) const { return ended_ > most / 2; }

 private:
  size_t Of(const std::string& user) const;

  std::unordered_map<std::string, size_t> by_user_;
  size_t all_ = 0;
  size_t ended_ = 0;
};

// Drops from a job that has ended what can be long: arguments, environment, lists.
void Shorten(v1::JobSpec* spec, v1::JobRecord* record);

}  // namespace meshrun::coordinator
