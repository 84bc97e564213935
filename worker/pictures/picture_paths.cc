#include "worker/pictures/picture_paths.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/log.h"
#include "worker/pictures/picture_directory.h"

namespace meshrun::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix = 'p';

struct Name {
  int rank = 0;
  uint64_t generation = 0;
};

// What the name of a directory below `ranks` says.
std::optional<Name> ParseName(std::string_view text) {
  if (!text.starts_with(kPrefix)) return std::nullopt;
  Name out;
  const char* const end = text.data() + text.size();
  const auto rank = std::from_chars(text.data() + 1, end, out.rank);
  if (rank.ec != std::errc() || rank.ptr == end || *rank.ptr != '.') return std::nullopt;
  const auto generation = std::from_chars(rank.ptr + 1, end, out.generation);
  if (generation.ec != std::errc() || generation.ptr != end) return std::nullopt;
  return out;
}

}  // namespace

std::string PicturesPath(const std::string& ranks, const std::string& logs, int rank,
                         uint64_t generation) {
  if (ranks.empty()) return KeptPicturesPath(logs, rank);
  return fmt::format("{}/{}{}.{}", ranks, kPrefix, rank, generation);
}

std::string KeptPicturesPath(const std::string& logs, int rank) {
  return fmt::format("{}/{}.pictures", logs, rank);
}

void KeepPictures(const std::string& ranks, const std::string& logs_of_job) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(ranks, error)) {
    const auto name = ParseName(entry.path().filename().string());
    if (!name) continue;
    const std::string path = entry.path().string();
    const std::string logs = fmt::format("{}/{}", logs_of_job, name->generation);
    const absl::Status kept = logs_of_job.empty()
                                  ? absl::OkStatus()
                                  : CopyPictures(path, KeptPicturesPath(logs, name->rank));
    // The generation's logs may have been removed.
    if (!kept.ok() && !absl::IsNotFound(kept)) {
      log::Warning("pictures of a rank are not kept", {{"rank", name->rank}, {"error", kept}});
    }
    if (const absl::Status removed = RemovePictures(path); !removed.ok()) {
      log::Warning("pictures of a rank are not removed",
                   {{"rank", name->rank}, {"error", removed}});
    }
  }
}

}  // namespace meshrun::worker
