#include "parallel/checkpoint/step_directories.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/hash.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "fmt/format.h"
#include "parallel/checkpoint/atomic_file.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;

constexpr char kUnfinished[] = ".unfinished";
constexpr char kRemoved[] = ".removed";
constexpr char kProbe[] = ".probe-";

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// The name that `path` has while it is not, or no longer, a checkpoint.
fs::path hidden(const fs::path& path, const char* suffix) {
  return path.parent_path() / ("." + path.filename().string() + suffix);
}

// Gives it a name that nobody reads. Returns that.
fs::path hide(const fs::path& path) {
  const fs::path aside = hidden(path, kRemoved);
  fs::remove_all(aside);
  fs::rename(path, aside);
  return aside;
}

// The generation in ".step-600.node-a.3.unfinished"; 0: the name has none.
uint64_t generation_of(const std::string& name) {
  const size_t end = name.size() - std::string_view(kUnfinished).size();
  const size_t dot = name.rfind('.', end - 1);
  const std::string digits = dot == std::string::npos ? "" : name.substr(dot + 1, end - dot - 1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::strtoull(digits.c_str(), nullptr, 10);
}

// What crashes left. A writer of an older generation must not remove what a later one writes.
// What cannot go, such as a file that another host has open, stays for the next time.
void remove_leftovers(const std::string& directory, uint64_t generation) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    const bool is_step = name.starts_with(std::string(".") + kStepPrefix);
    if (name.starts_with(kProbe) || (is_step && name.ends_with(kRemoved)) ||
        (is_step && name.ends_with(kUnfinished) && generation_of(name) <= generation)) {
      std::error_code error;
      fs::remove_all(entry.path(), error);
    }
  }
}

// Gives `from` the name `to`, which has its old content or its new one at every moment, where the
// file system can exchange. Returns the hidden name of the old content, which may go, since the new
// name is on the disk: a crash before that may bring the old one back. Empty: there was none.
fs::path replace(const fs::path& from, const fs::path& to,
                 const std::function<absl::Status(const std::string&)>& flush) {
  fs::path old;
  if (::rename(from.c_str(), to.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) fail("cannot rename " + from.string());
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      old = from;
    } else {
      old = hide(to);
      fs::rename(from, to);
    }
  }
  check_status(flush(to.parent_path().string()), "cannot flush");
  return old;
}

// Frees the name of a checkpoint from what is there and is not a whole one, such as a step-N whose
// manifest was lost: somebody may still want its files. No reader takes the new name, and no writer
// removes it.
void set_aside(const fs::path& path, const SayLine& say) {
  std::error_code absent;
  if (!fs::exists(path, absent) || fs::is_empty(path, absent)) return;
  const absl::Status read = ReadStepDirectory(path).status();
  if (read.ok()) return;
  std::string aside;
  for (int i = 1; aside.empty() || fs::exists(aside); ++i) {
    aside = fmt::format("{}.incomplete-{}", path.string(), i);
  }
  fs::rename(path, aside);
  say(fmt::format("{}; it is {} now, since a new checkpoint gets its name",
                  std::string(read.message()), aside));
}

// Whether a checkpoint is there whose manifest has this SHA-256.
bool has_digest(const fs::path& checkpoint, const std::string& digest) {
  const fs::path manifest = checkpoint / kManifestName;
  return fs::exists(manifest) && Sha256(read_file(manifest)) == digest;
}

}  // namespace

std::vector<std::string> outdated(const std::vector<StepDirectory>& checkpoints,
                                  const Retention& retention, int64_t now) {
  std::vector<std::string> paths;
  for (size_t i = 0; i + static_cast<size_t>(retention.keep) < checkpoints.size(); ++i) {
    const Manifest& manifest = checkpoints[i].manifest;
    if (retention.keep_every > 0 && manifest.step % retention.keep_every == 0) continue;
    if (retention.keep_for && now - manifest.written < retention.keep_for->count()) continue;
    if (retention.held.contains(fs::path(checkpoints[i].path).filename())) continue;
    paths.push_back(checkpoints[i].path);
  }
  return paths;
}

absl::Status probe_directory(const std::string& directory) {
  absl::Status status = os::MakeDirectories(directory);
  if (status.ok()) {
    std::string path = fs::path(directory) / (kProbe + std::string("XXXXXX"));
    const os::UniqueFd fd(::mkstemp(path.data()));
    if (!fd) status = os::ErrnoStatus(errno, directory);
    if (fd) ::unlink(path.c_str());
  }
  return absl::IsResourceExhausted(status) ? absl::OkStatus() : status;
}

std::string named_path(const std::string& directory, int64_t step) {
  return fs::path(directory) / (kStepPrefix + std::to_string(step));
}

std::string unfinished_path(const std::string& directory, int64_t step, const std::string& writer) {
  return hidden(named_path(directory, step), ("." + writer + kUnfinished).c_str());
}

UnfinishedStep::UnfinishedStep(std::string directory, int64_t step, StepWriter writer)
    : directory_(std::move(directory)), step_(step), writer_(std::move(writer)) {
  check_status(os::MakeDirectories(directory_), "cannot create");
  remove_leftovers(directory_, writer_.generation);
  path_ = unfinished_path(directory_, step, writer_.name);
  check_status(os::MakeDirectories(path_), "cannot create");
}

std::string UnfinishedStep::named_path() const { return meshrun::named_path(directory_, step_); }

absl::Status UnfinishedStep::create_file(const std::string& name, uint64_t bytes) const {
  const std::string path = path_ + "/" + name;
  const os::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return os::ErrnoStatus(errno, "cannot create " + path);
  const auto size = static_cast<off_t>(bytes);
  // Some file systems cannot reserve room; they tell of a full disk later.
  if (bytes > 0 && ::fallocate(fd.get(), 0, 0, size) != 0 && errno != EOPNOTSUPP &&
      errno != EINTR) {
    return os::ErrnoStatus(errno, "cannot write " + path);
  }
  if (::ftruncate(fd.get(), size) != 0) return os::ErrnoStatus(errno, "cannot write " + path);
  return absl::OkStatus();
}

int64_t UnfinishedStep::last_sequence() const {
  const auto found = value_of(ListStepDirectories(directory_, /*tolerant=*/true));
  return found.empty() ? 0 : found.back().manifest.sequence;
}

void UnfinishedStep::describe(const Manifest& manifest) {
  const std::string text = EncodeManifest(manifest);
  digest_ = Sha256(text);
  write_file_atomically(path_ + "/" + kManifestName, text);
  // The directory's own name, which the commit tells of.
  check_status(os::SyncDirectory(directory_), "cannot flush");
}

void UnfinishedStep::commit() const { writer_.commit(step_, digest_, fs::path(path_).filename()); }

std::string UnfinishedStep::publish(const Retention& retention) {
  set_aside(named_path(), writer_.say);
  const fs::path old = replace(path_, named_path(), writer_.flush);
  if (!old.empty()) hidden_.push_back(old);
  // It is a checkpoint now, whatever becomes of older ones.
  try {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
    const auto found = value_of(ListStepDirectories(directory_, /*tolerant=*/true));
    for (const std::string& path : outdated(found, retention, seconds)) {
      hidden_.push_back(hide(path));
    }
  } catch (const std::exception& error) {
    return std::string("an outdated checkpoint stays: ") + error.what();
  }
  return "";
}

void UnfinishedStep::remove_hidden() {
  std::error_code error;
  for (const std::string& path : std::exchange(hidden_, {})) fs::remove_all(path, error);
}

void UnfinishedStep::remove() const {
  std::error_code error;
  fs::remove_all(path_, error);
}

std::optional<CommittedStep> newest_named(const std::string& directory) {
  const auto found = value_of(ListStepDirectories(directory, /*tolerant=*/true));
  if (found.empty()) return std::nullopt;
  return CommittedStep{found.back().manifest.step,
                       Sha256(read_file(found.back().path + "/" + kManifestName))};
}

bool is_named(const std::string& directory, const CommittedStep& committed) {
  return has_digest(named_path(directory, committed.step), committed.digest);
}

std::vector<StepDirectory> unfinished_steps(const std::string& directory) {
  std::vector<StepDirectory> found;
  std::error_code absent;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, absent)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(std::string(".") + kStepPrefix) || !name.ends_with(kUnfinished)) continue;
    auto step = ReadStepDirectory(entry.path().string());
    if (step.ok()) found.push_back(*std::move(step));
  }
  return found;
}

std::string temporary_name_of(const std::string& directory, const CommittedStep& committed) {
  for (const StepDirectory& step : unfinished_steps(directory)) {
    if (step.manifest.step == committed.step && has_digest(step.path, committed.digest)) {
      return fs::path(step.path).filename();
    }
  }
  return "";
}

bool finish_step_directory(const std::string& directory, int64_t step, const std::string& digest,
                           const std::string& temporary, const SayLine& say) {
  const CommittedStep committed{step, digest};
  // A name, and nothing that leads elsewhere.
  const fs::path aside = fs::path(directory) / fs::path(temporary).filename();
  if (temporary.empty() || !has_digest(aside, digest)) return is_named(directory, committed);
  set_aside(named_path(directory, step), say);
  const fs::path old = replace(aside, named_path(directory, step), os::SyncDirectory);
  if (!old.empty()) fs::remove_all(old);
  return true;
}

}  // namespace meshrun
