#include "worker/health/host_checks.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/log.h"
#include "core/os/files.h"
#include "core/text.h"

namespace meshrun::worker {
namespace {

constexpr size_t kProbeBytes = 16 << 10;
// A generation makes about so many files.
constexpr uint64_t kLeastNames = 16;

}  // namespace

std::vector<Problem> CheckDirectory(const std::string& directory, uint64_t least_free_bytes) {
  const std::string path = directory + "/health";
  const absl::Status written = os::WriteFileAtomically(path, std::string(kProbeBytes, '.'), 0600);
  ::unlink(path.c_str());
  if (!written.ok()) {
    return {fmt::format("a file cannot be written in {} ({})", directory,
                        std::string(written.message()))};
  }
  struct statvfs system = {};
  if (::statvfs(directory.c_str(), &system) != 0) {
    const absl::Status status = os::ErrnoStatus(errno, directory);
    return {std::string(status.message())};
  }
  std::vector<Problem> problems;
  if (uint64_t{system.f_bavail} * system.f_frsize < least_free_bytes) {
    problems.push_back(
        fmt::format("less than {} free in {}", FormatBytes(least_free_bytes), directory));
  }
  // Some file systems count no names.
  if (system.f_files > 0 && system.f_favail < kLeastNames) {
    problems.push_back(fmt::format("less than {} files can be made in {}", kLeastNames, directory));
  }
  return problems;
}

std::vector<Problem> CheckGpus(const std::vector<v1::Gpu>& offered,
                               const std::vector<v1::Gpu>& present) {
  if (!offered.empty() && present.empty()) return {"the NVIDIA driver answers for no GPU"};
  std::vector<Problem> problems;
  for (const v1::Gpu& gpu : offered) {
    const bool answers = std::any_of(present.begin(), present.end(), [&gpu](const v1::Gpu& other) {
      return other.uuid() == gpu.uuid();
    });
    if (!answers) {
      problems.push_back(
          fmt::format("GPU {} ({}, {}) does not answer", gpu.index(), gpu.model(), gpu.uuid()));
    }
  }
  return problems;
}

HostChecks::HostChecks(EventLoop& loop, FileTasks& files, Options options,
                       std::function<void()> on_change)
    : loop_(loop), files_(files), options_(options), on_change_(std::move(on_change)) {}

void HostChecks::Add(std::string what, Check check, std::chrono::nanoseconds timeout,
                     bool is_slow) {
  entries_.push_back(std::make_unique<Entry>(Entry{
      .what = std::move(what), .check = std::move(check), .timeout = timeout, .is_slow = is_slow}));
}

void HostChecks::Start(std::function<void()> on_first) {
  on_first_ = std::move(on_first);
  for (const auto& entry : entries_) Run(*entry);
  loop_.After(entries_.empty() ? std::chrono::nanoseconds(0) : options_.first,
              [this] { EndFirst(); });
}

std::vector<Problem> HostChecks::problems() const {
  std::vector<Problem> out;
  for (const auto& entry : entries_) {
    out.insert(out.end(), entry->problems.begin(), entry->problems.end());
  }
  return out;
}

void HostChecks::Run(Entry& entry) {
  entry.timer = loop_.After(entry.timeout, [this, &entry] {
    Set(entry,
        {fmt::format("{} has not ended within {}", entry.what, FormatDuration(entry.timeout))});
  });
  // It may end after this object: then nothing of it is used.
  const auto found = std::make_shared<std::vector<Problem>>();
  files_.Run(
      "health/" + entry.what, [check = entry.check, found] { *found = check(); },
      [this, &entry, found] {
        loop_.Cancel(entry.timer);
        OnEnded(entry, std::move(*found));
      });
}

void HostChecks::OnEnded(Entry& entry, std::vector<Problem> problems) {
  entry.ended_once = true;
  Set(entry, std::move(problems));
  loop_.After(options_.interval, [this, &entry] { Run(entry); });
  const bool all = std::all_of(entries_.begin(), entries_.end(),
                               [](const auto& other) { return other->ended_once; });
  if (all) EndFirst();
}

void HostChecks::Set(Entry& entry, std::vector<Problem> problems) {
  if (entry.problems == problems) return;
  for (const Problem& problem : problems) {
    log::Warning("this host takes no new jobs", {{"because", problem}});
  }
  if (problems.empty()) log::Info("a check of this host is passed again", {{"check", entry.what}});
  entry.problems = std::move(problems);
  if (on_first_ == nullptr) on_change_();
}

void HostChecks::EndFirst() {
  if (on_first_ == nullptr) return;
  for (const auto& entry : entries_) {
    if (entry->is_slow && !entry->ended_once && entry->problems.empty()) {
      entry->problems = {fmt::format("{} has not ended yet for the first time", entry->what)};
    }
  }
  std::exchange(on_first_, nullptr)();
}

}  // namespace meshrun::worker
