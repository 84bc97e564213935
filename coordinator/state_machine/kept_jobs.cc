#include "coordinator/state_machine/kept_jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// Ended jobs are kept whole while their user's jobs have no more than this part of what all may
// have, or they are small.
constexpr size_t kPartKeptWhole = 32;
constexpr size_t kSmall = 32u << 10;
// What a text of a list takes in memory beside its bytes, and a variable of the environment.
constexpr size_t kTextBytes = 48;
constexpr size_t kEntryBytes = 130;

}  // namespace

size_t ShareOf(size_t most, size_t others, size_t least) {
  return std::max(least, (most - std::min(others, most)) / 2);
}

size_t KeptJobs::BytesOf(const v1::JobSpec& spec, const EnvEntries& env) {
  const int texts =
      spec.command_size() + spec.constraints_size() + spec.exclude_nodes_size() + spec.after_size();
  size_t bytes = kJobBytes + spec.ByteSizeLong() + kTextBytes * static_cast<size_t>(texts) +
                 kEntryBytes * static_cast<size_t>(spec.env_size() + env.size());
  for (const v1::EnvEntry& entry : env) bytes += entry.ByteSizeLong();
  return bytes;
}

size_t KeptJobs::Of(const std::string& user) const {
  const auto found = by_user_.find(user);
  return found == by_user_.end() ? 0 : found->second;
}

void KeptJobs::Change(const std::string& user, size_t before, size_t after, ptrdiff_t ended) {
  all_ += after - before;
  ended_ += static_cast<size_t>(ended);
  size_t& own = by_user_[user];
  own += after - before;
  if (own == 0) by_user_.erase(user);
}

absl::Status KeptJobs::CheckRoom(const std::string& user, size_t bytes, size_t most) const {
  const size_t own = Of(user);
  const size_t share = ShareOf(most, all_ - own, kLeast);
  if (own + bytes <= share) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "the jobs of user {} that are queued, run or have ended lately take {} of the coordinator's "
      "memory, and {} more would be over the {} that they may take while those of others take {}: "
      "submit again when some have ended and are forgotten, or write long arguments into a file",
      user, FormatBytes(own), FormatBytes(bytes), FormatBytes(share), FormatBytes(all_ - own)));
}

bool KeptJobs::IsShortened(const std::string& user, size_t bytes, size_t most) const {
  return bytes > kSmall && Of(user) > most / kPartKeptWhole;
}

void Shorten(v1::JobSpec* spec, v1::JobRecord* record) {
  const std::string program = spec->command_size() > 0 ? spec->command(0) : "";
  const int arguments = spec->command_size();
  const auto* const fields = spec->GetDescriptor();
  for (int i = 0; i < fields->field_count(); ++i) {
    if (fields->field(i)->is_repeated()) spec->GetReflection()->ClearField(spec, fields->field(i));
  }
  if (arguments > 0 && program.size() < kSmall) spec->add_command(program);
  if (arguments > 1) spec->add_command(fmt::format("({} arguments, not kept)", arguments - 1));
  record->clear_env();
  record->clear_waits_for();
}

}  // namespace meshrun::coordinator
