#include "core/checkpoint/open_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "core/checkpoint/file_reads.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/safetensors_index.h"
#include "core/checkpoint/step_directory.h"
#include "core/checkpoint/torch_files.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;

// Where the header of a tar has "ustar".
constexpr size_t kTarMagic = 257;
// The fixed part of a zip's first entry; its name follows.
constexpr size_t kZipName = 30;

absl::StatusOr<TensorSourcePtr> OpenDirectory(const std::string& path) {
  const auto has = [&](const char* name) {
    std::error_code error;
    return fs::exists(fs::path(path) / name, error);
  };
  if (has(kManifestName)) return OpenStepDirectory(path);
  if (has(".metadata")) return OpenTorchDistributedCheckpoint(path);
  if (has(kSafetensorsIndexName)) return OpenSafetensorsIndex(path);
  const std::string name = fs::path(path).lexically_normal().filename();
  // What a crash left of a checkpoint has files, and is none.
  if (IsStepName(name) || name.starts_with(std::string(".") + kStepPrefix)) {
    return ReadStepDirectory(path).status();
  }
  if (has("model.safetensors")) return OpenSafetensors(path + "/model.safetensors");
  MESHRUN_ASSIGN_OR_RETURN(const auto steps, ListStepDirectories(path));
  if (!steps.empty()) return OpenStepDirectory(steps.back().path);
  return absl::NotFoundError(
      fmt::format("{} has no tensors: neither a complete step-N, nor {}, nor .metadata of "
                  "torch.distributed.checkpoint",
                  path, kSafetensorsIndexName));
}

// A pickle's first bytes may be a header's length too: a safetensors file also has "{" behind it.
bool IsSafetensors(std::string_view first, uint64_t file_bytes) {
  uint64_t length = 0;
  if (first.size() < sizeof(length) + 1) return false;
  std::memcpy(&length, first.data(), sizeof(length));
  return first[sizeof(length)] == '{' && length <= file_bytes - sizeof(length);
}

bool IsMdlusZip(std::string_view first) {
  const std::string_view name = first.substr(std::min(kZipName, first.size()));
  return name.starts_with("model.pt") || name.starts_with("args.json") ||
         name.starts_with("metadata.json");
}

}  // namespace

absl::StatusOr<TensorSourcePtr> OpenTensors(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return OpenDirectory(path);
  uint64_t bytes = 0;
  std::string first;
  {
    MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd fd, OpenForReads(path, &bytes));
    first.resize(std::min<uint64_t>(bytes, 512));
    MESHRUN_RETURN_IF_ERROR(ReadAt(fd, path, 0, first));
  }
  if (IsSafetensors(first, bytes)) return OpenSafetensors(path);
  if (path.ends_with(".distcp") || path.ends_with(".metadata")) {
    return absl::InvalidArgumentError(fmt::format(
        "{} is a part of a checkpoint of torch.distributed.checkpoint: name its directory", path));
  }
  if (first.starts_with("PK\x03\x04")) {
    return IsMdlusZip(first) ? OpenMdlus(path) : OpenTorchSave(path);
  }
  if (std::string_view(first).substr(std::min(kTarMagic, first.size())).starts_with("ustar")) {
    return OpenMdlus(path);
  }
  if (first.size() > 1 && first[0] == '\x80' && first[1] >= '\x02' && first[1] <= '\x05') {
    return OpenTorchSave(path);
  }
  return OpenSafetensors(path);
}

}  // namespace meshrun
