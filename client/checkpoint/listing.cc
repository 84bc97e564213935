#include "client/checkpoint/listing.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>
#include <utility>

#include "core/checkpoint/open_tensors.h"
#include "core/checkpoint/step_directory.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

namespace fs = std::filesystem;

// What a writer has not finished, or a crash has left: ".step-600.node-a.3.unfinished".
bool IsHiddenStep(const std::string& name) {
  return name.starts_with(std::string(".") + kStepPrefix);
}

int64_t ModifiedAt(const fs::path& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_mtime) : 0;
}

// Files that are there, for a checkpoint whose manifest does not say it.
void CountFiles(const fs::path& path, CheckpointEntry* entry) {
  std::error_code error;
  for (fs::directory_iterator files(path, error); !error && files != fs::directory_iterator();
       files.increment(error)) {
    std::error_code gone;
    if (!files->is_regular_file(gone) || files->path().filename() == kManifestName) continue;
    const uint64_t bytes = files->file_size(gone);
    if (gone) continue;
    entry->bytes += bytes;
    ++entry->files;
  }
  entry->written = ModifiedAt(path);
}

void CheckFiles(const StepDirectory& checkpoint, CheckpointEntry* entry) {
  const fs::path path = checkpoint.path;
  const std::set<std::string> elsewhere = FilesOfOtherHosts(checkpoint);
  entry->files_elsewhere = elsewhere.size();
  for (const auto& [name, file] : checkpoint.manifest.files) {
    if (elsewhere.contains(name)) continue;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path / name, error);
    if (error) {
      entry->problem = name + " is missing";
    } else if (bytes != file.bytes) {
      entry->problem =
          fmt::format("{} is {}: {} bytes, {} were written", name,
                      bytes < file.bytes ? "truncated" : "too long", bytes, file.bytes);
    }
    if (!error) entry->bytes += bytes;
    if (!error) ++entry->files;
  }
  if (!entry->problem.empty()) entry->state = CheckpointEntry::State::kDamaged;
}

CheckpointEntry Look(const fs::path& path) {
  CheckpointEntry entry;
  entry.name = path.filename();
  entry.step = StepInName(entry.name);
  std::error_code error;
  if (IsHiddenStep(entry.name) || !fs::exists(path / kManifestName, error)) {
    entry.state = CheckpointEntry::State::kUnfinished;
    entry.problem = entry.name.ends_with(".removed") ? "a removal has not ended"
                    : IsHiddenStep(entry.name)       ? "it is being written, or its writer ended"
                                                     : fmt::format("it has no {}", kManifestName);
    CountFiles(path, &entry);
    return entry;
  }
  const auto read = ReadStepDirectory(path.string());
  if (!read.ok()) {
    entry.state = CheckpointEntry::State::kDamaged;
    entry.problem = std::string(read.status().message());
    CountFiles(path, &entry);
    return entry;
  }
  const Manifest& manifest = read->manifest;
  entry.step = manifest.step;
  entry.sequence = manifest.sequence;
  entry.written = manifest.written != 0 ? manifest.written : ModifiedAt(path / kManifestName);
  CheckFiles(*read, &entry);
  return entry;
}

}  // namespace

bool HoldsCheckpoints(const std::string& path) {
  std::error_code error;
  for (const char* of_one : {kManifestName, ".metadata", "model.safetensors.index.json"}) {
    if (fs::exists(fs::path(path) / of_one, error)) return false;
  }
  for (fs::directory_iterator entries(path, error); !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    const std::string name = entries->path().filename();
    if (IsStepName(name) || IsHiddenStep(name)) return true;
  }
  return false;
}

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& directory) {
  std::vector<CheckpointEntry> found;
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename();
    if (IsStepName(name) || IsHiddenStep(name)) found.push_back(Look(entries->path()));
  }
  if (error) return os::ErrnoStatus(error.value(), directory);
  std::sort(found.begin(), found.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    const auto key = [](const CheckpointEntry& entry) {
      return std::tuple(entry.state == CheckpointEntry::State::kUnfinished, entry.sequence,
                        entry.step, entry.name);
    };
    return key(a) < key(b);
  });
  return found;
}

std::vector<std::string> PassedOverIn(const std::string& path) {
  if (!HoldsCheckpoints(path)) return {};
  const auto complete = ListStepDirectories(path);
  if (!complete.ok() || complete->empty()) return {};
  std::vector<std::string> sentences;
  for (const std::string& name : IncompleteSteps(path)) {
    const std::string sentence = PassedOver(name, complete->back().manifest.step);
    if (!sentence.empty()) sentences.push_back(path + "/" + sentence);
  }
  return sentences;
}

absl::StatusOr<TensorListing> ListTensors(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(const TensorSourcePtr source, OpenTensors(path));
  TensorListing listing;
  listing.format = source->Format();
  listing.tensors = source->Tensors();
  listing.notes = source->Notes();
  for (const auto& [name, tensor] : listing.tensors) {
    MESHRUN_ASSIGN_OR_RETURN(listing.bytes[name], TensorBytes(name, tensor));
    listing.total_bytes += listing.bytes[name];
    listing.total_elements += listing.bytes[name] / ElementBytes(tensor.dtype).value_or(1);
  }
  std::error_code error;
  if (fs::exists(fs::path(path) / kManifestName, error)) {
    MESHRUN_ASSIGN_OR_RETURN(StepDirectory checkpoint, ReadStepDirectory(path));
    listing.manifest = std::move(checkpoint.manifest);
  }
  return listing;
}

}  // namespace meshrun::client
