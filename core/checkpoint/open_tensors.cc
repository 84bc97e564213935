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

// Without the "/" that a shell's completion puts behind it.
fs::path Plain(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// Says which checkpoint of `directory` may be read instead of `damaged`, one in it.
absl::Status WithOther(const absl::Status& status, const fs::path& directory,
                       const fs::path& damaged = {}) {
  if (!absl::IsDataLoss(status)) return status;
  auto others = ListStepDirectories(directory.empty() ? "." : directory, /*tolerant=*/true);
  if (!others.ok()) return status;
  std::erase_if(*others, [&](const StepDirectory& other) {
    return fs::path(other.path).filename() == damaged.filename();
  });
  if (others->empty()) return status;
  return absl::DataLossError(fmt::format("{}; another checkpoint to use: {}",
                                         std::string(status.message()), others->back().path));
}

absl::StatusOr<TensorSourcePtr> OpenStep(const fs::path& path, StepFiles files) {
  auto opened = OpenStepDirectory(path, files);
  if (!opened.ok()) return WithOther(opened.status(), path.parent_path(), path);
  return opened;
}

absl::StatusOr<TensorSourcePtr> OpenDirectory(const std::string& path, StepFiles files) {
  const auto has = [&](const char* name) {
    std::error_code error;
    return fs::exists(fs::path(path) / name, error);
  };
  if (has(kManifestName)) return OpenStep(Plain(path), files);
  if (has(".metadata")) return OpenTorchDistributedCheckpoint(path);
  if (has(kSafetensorsIndexName)) return OpenSafetensorsIndex(path);
  const std::string name = Plain(path).filename();
  // What a crash left of a checkpoint has files, and is none.
  if (IsStepName(name) || name.starts_with(std::string(".") + kStepPrefix)) {
    return WithOther(ReadStepDirectory(Plain(path)).status(), Plain(path).parent_path());
  }
  if (has("model.safetensors")) return OpenSafetensors(path + "/model.safetensors");
  const auto steps = ListStepDirectories(path);
  if (!steps.ok()) return WithOther(steps.status(), path);
  if (!steps->empty()) return OpenStep(steps->back().path, files);
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

absl::StatusOr<TensorSourcePtr> OpenTensors(const std::string& path, StepFiles files) {
  std::error_code error;
  if (fs::is_directory(path, error)) return OpenDirectory(path, files);
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
