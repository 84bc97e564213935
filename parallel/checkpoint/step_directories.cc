#include "parallel/checkpoint/step_directories.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/hash.h"
#include "core/os/files.h"
#include "parallel/checkpoint/atomic_file.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;

constexpr char kManifest[] = "manifest.json";
constexpr char kStepPrefix[] = "step-";
constexpr char kUnfinished[] = ".unfinished";
constexpr char kRemoved[] = ".removed";

void check(const absl::Status& status, const std::string& what) {
  if (!status.ok()) throw std::runtime_error(what + " " + std::string(status.message()));
}

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// The name that `path` has while it is not, or no longer, a checkpoint.
fs::path hidden(const fs::path& path, const char* suffix) {
  return path.parent_path() / ("." + path.filename().string() + suffix);
}

bool is_step_name(const std::string& name) {
  const std::string digits = name.starts_with(kStepPrefix) ? name.substr(5) : "";
  return !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
}

// With the newest last. Those whose manifest cannot be read are left out, or an error.
std::vector<StepDirectory> list(const std::string& directory, bool tolerant) {
  std::vector<StepDirectory> found;
  if (!fs::exists(directory)) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const fs::path manifest = entry.path() / kManifest;
    if (!is_step_name(entry.path().filename()) || !fs::exists(manifest)) continue;
    try {
      found.push_back(
          {entry.path().string(), decode_manifest(manifest.string(), read_file(manifest))});
    } catch (const std::runtime_error&) {
      if (!tolerant) throw;
    }
  }
  std::sort(found.begin(), found.end(), [](const StepDirectory& a, const StepDirectory& b) {
    return a.manifest.sequence < b.manifest.sequence;
  });
  return found;
}

void remove_hidden_first(const fs::path& path) {
  const fs::path aside = hidden(path, kRemoved);
  fs::remove_all(aside);
  fs::rename(path, aside);
  fs::remove_all(aside);
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
void remove_leftovers(const std::string& directory, uint64_t generation) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(std::string(".") + kStepPrefix)) continue;
    if (name.ends_with(kRemoved) ||
        (name.ends_with(kUnfinished) && generation_of(name) <= generation)) {
      fs::remove_all(entry.path());
    }
  }
}

// Gives `from` the name `to`, which has its old content or its new one at every moment, where the
// file system can exchange. The old content goes when the new name is on the disk: a crash before
// that may bring the old one back.
void replace(const fs::path& from, const fs::path& to,
             const std::function<absl::Status(const std::string&)>& flush) {
  fs::path old;
  if (::rename(from.c_str(), to.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) fail("cannot rename " + from.string());
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      old = from;
    } else {
      old = hidden(to, kRemoved);
      fs::remove_all(old);
      fs::rename(to, old);
      fs::rename(from, to);
    }
  }
  check(flush(to.parent_path().string()), "cannot flush");
  if (!old.empty()) fs::remove_all(old);
}

}  // namespace

std::vector<StepDirectory> list_step_directories(const std::string& directory) {
  return list(directory, /*tolerant=*/false);
}

std::string read_verified(const StepDirectory& checkpoint, const std::string& name) {
  const std::string path = checkpoint.path + "/" + name;
  const auto file = checkpoint.manifest.files.find(name);
  if (file == checkpoint.manifest.files.end()) {
    throw DamagedCheckpoint(checkpoint.path + "/" + kManifest + " does not name " + name);
  }
  if (!fs::exists(path)) throw DamagedCheckpoint(path + " is missing");
  std::string content = read_file(path);
  if (content.size() != file->second.bytes) {
    throw DamagedCheckpoint(
        path + (content.size() < file->second.bytes ? " is truncated" : " is too long") + ": " +
        std::to_string(content.size()) + " bytes, " + std::to_string(file->second.bytes) +
        " were written");
  }
  const std::string hash = HexEncode(Sha256(content));
  if (hash != file->second.sha256) {
    throw DamagedCheckpoint(path + " is damaged: its SHA-256 is " + hash + ", that of what was " +
                            "written " + file->second.sha256);
  }
  return content;
}

int64_t write_step_directory(const std::string& directory, Manifest manifest,
                             const std::map<std::string, std::string>& files, int64_t keep,
                             const StepWriter& writer) {
  check(os::MakeDirectories(directory), "cannot create");
  remove_leftovers(directory, writer.generation);
  const std::vector<StepDirectory> before = list(directory, /*tolerant=*/true);
  const int64_t last = before.empty() ? 0 : before.back().manifest.sequence;
  manifest.sequence = std::max(manifest.sequence, last + 1);
  const fs::path path = fs::path(directory) / (kStepPrefix + std::to_string(manifest.step));
  const fs::path aside = hidden(path, ("." + writer.name + kUnfinished).c_str());
  check(os::MakeDirectories(aside), "cannot create");
  for (const auto& [name, content] : files) {
    write_file_atomically((aside / name).string(), content);
    manifest.files[name] = {content.size(), HexEncode(Sha256(content))};
  }
  const std::string text = encode_manifest(manifest);
  write_file_atomically((aside / kManifest).string(), text);
  writer.commit(manifest.step, Sha256(text), aside.filename());
  replace(aside, path, writer.flush);

  const std::vector<StepDirectory> now = list(directory, /*tolerant=*/true);
  for (size_t i = 0; i + static_cast<size_t>(keep) < now.size(); ++i) {
    remove_hidden_first(now[i].path);
  }
  return manifest.sequence;
}

bool finish_step_directory(const std::string& directory, int64_t step, const std::string& digest,
                           const std::string& temporary) {
  const auto is_committed = [&](const fs::path& checkpoint) {
    const fs::path manifest = checkpoint / kManifest;
    return fs::exists(manifest) && Sha256(read_file(manifest)) == digest;
  };
  // A name, and nothing that leads elsewhere.
  const fs::path aside = fs::path(directory) / fs::path(temporary).filename();
  const fs::path path = fs::path(directory) / (kStepPrefix + std::to_string(step));
  if (temporary.empty() || !is_committed(aside)) return is_committed(path);
  replace(aside, path, os::SyncDirectory);
  return true;
}

}  // namespace meshrun
