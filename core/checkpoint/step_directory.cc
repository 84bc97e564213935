#include "core/checkpoint/step_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/checkpoint/file_reads.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPrefixLength = sizeof(kStepPrefix) - 1;

// What is kept as bytes is in it, so that it has no small limit.
constexpr uint64_t kMostManifestBytes = uint64_t{1} << 31;

// What the names of a host's files have in common: "-00002-of-00003.safetensors".
std::string HostPart(const std::string& file) {
  return file.substr(std::min(file.size(), file.find_first_of(".-")));
}

}  // namespace

bool IsStepName(const std::string& name) {
  const std::string digits = name.starts_with(kStepPrefix) ? name.substr(kPrefixLength) : "";
  return !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
}

int64_t StepInName(const std::string& name) {
  const size_t at = name.find(kStepPrefix);
  return at == name.npos ? 0 : std::strtoll(name.c_str() + at + kPrefixLength, nullptr, 10);
}

absl::StatusOr<StepDirectory> ReadStepDirectory(const std::string& path) {
  const std::string manifest_path = path + "/" + kManifestName;
  std::error_code error;
  if (!fs::exists(path, error)) return os::ErrnoStatus(error ? error.value() : ENOENT, path);
  auto content = ReadSmallFile(manifest_path, kMostManifestBytes);
  if (absl::IsNotFound(content.status())) {
    return absl::DataLossError(path + " is not a complete checkpoint: it has no " + kManifestName);
  }
  if (!content.ok()) return content.status();
  MESHRUN_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(manifest_path, *content));
  return StepDirectory{path, std::move(manifest)};
}

absl::StatusOr<std::vector<StepDirectory>> ListStepDirectories(const std::string& directory,
                                                               bool tolerant) {
  std::vector<StepDirectory> found;
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path& path = entries->path();
    std::error_code absent;
    if (!IsStepName(path.filename()) || !fs::exists(path / kManifestName, absent)) continue;
    auto read = ReadStepDirectory(path.string());
    if (read.ok()) {
      found.push_back(*std::move(read));
    } else if (!tolerant) {
      return read.status();
    }
  }
  if (error) return os::ErrnoStatus(error.value(), directory);
  std::sort(found.begin(), found.end(), [](const StepDirectory& a, const StepDirectory& b) {
    return a.manifest.sequence < b.manifest.sequence;
  });
  return found;
}

std::vector<std::string> IncompleteSteps(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entries(directory, error);
       !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::error_code absent;
    const std::string name = entries->path().filename();
    if (!IsStepName(name) || !entries->is_directory(absent)) continue;
    if (!fs::exists(entries->path() / kManifestName, absent)) names.push_back(name);
  }
  std::ranges::sort(names, {}, StepInName);
  return names;
}

std::string PassedOver(const std::string& incomplete, std::optional<int64_t> taken) {
  if (taken && StepInName(incomplete) <= *taken) return "";
  return fmt::format(
      "{} has no {}, so it is not a whole checkpoint; {}", incomplete, kManifestName,
      taken ? fmt::format("{}{} is taken", kStepPrefix, *taken) : "no other one is there");
}

std::set<std::string> FilesOfOtherHosts(const StepDirectory& checkpoint) {
  std::set<std::string> absent;
  if (checkpoint.manifest.hosts.empty()) return absent;
  std::set<std::string> here;
  for (const auto& [name, file] : checkpoint.manifest.files) {
    std::error_code error;
    if (fs::exists(fs::path(checkpoint.path) / name, error) || error) {
      here.insert(HostPart(name));
    } else {
      absent.insert(name);
    }
  }
  std::erase_if(absent, [&](const std::string& name) {
    return here.empty() || here.contains(HostPart(name));
  });
  return absent;
}

}  // namespace meshrun
