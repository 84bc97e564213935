#include "client/checkpoint/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "client/checkpoint/listing.h"
#include "client/checkpoint/parallel_reads.h"
#include "core/checkpoint/checked_file.h"
#include "core/checkpoint/open_tensors.h"
#include "core/checkpoint/step_directory.h"
#include "core/mutex.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

constexpr uint64_t kBlock = 16 << 20;

// What several threads have found.
class Damages {
 public:
  void Add(size_t file, Damage damage) {
    const MutexLock lock(mutex_);
    found_.emplace_back(file, std::move(damage));
  }

  void MoveTo(size_t most, Verification* result) {
    const MutexLock lock(mutex_);
    std::stable_sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first, a.second.begin) < std::tie(b.first, b.second.begin);
    });
    for (auto& [file, damage] : found_) {
      if (result->damages.size() < most) {
        result->damages.push_back(std::move(damage));
      } else {
        ++result->more_damages;
      }
    }
  }

 private:
  Mutex mutex_;
  std::vector<std::pair<size_t, Damage>> found_ MESHRUN_GUARDED_BY(mutex_);
};

class Verifier {
 public:
  explicit Verifier(const VerifyOptions& options) : options_(options) {}

  void AddCheckpoint(const std::string& path) {
    auto read = ReadStepDirectory(path);
    if (!read.ok()) return AddDamage(path + "/" + kManifestName, read.status());
    checkpoints_.push_back(std::make_unique<StepDirectory>(*std::move(read)));
    const std::set<std::string> elsewhere = FilesOfOtherHosts(*checkpoints_.back());
    if (!elsewhere.empty()) result_.parts.push_back(path);
    for (const auto& [name, file] : checkpoints_.back()->manifest.files) {
      if (!elsewhere.contains(name)) AddFile(path + "/" + name, file);
    }
  }

  void AddSource(const std::string& path, TensorSourcePtr source) {
    result_.files.push_back({.path = path});
    const size_t index = result_.files.size() - 1;
    sources_.push_back(std::move(source));
    const TensorSource& tensors = *sources_.back();
    for (const auto& [name, tensor] : tensors.Tensors()) {
      const uint64_t bytes = TensorBytes(name, tensor).value_or(0);
      result_.files[index].bytes += bytes;
      for (uint64_t at = 0; at < bytes; at += kBlock) {
        const uint64_t size = std::min(kBlock, bytes - at);
        work_.push_back({size, [this, index, path, &tensors, name = name, at, size] {
                           std::string content(size, '\0');
                           const absl::Status read = tensors.Read(name, at, content);
                           if (!read.ok()) Found(index, path, 0, 0, read);
                         }});
      }
    }
  }

  Verification Run() {
    RunAll(work_, options_.jobs, options_.progress);
    // Pieces of tensors may be whole as files, and not cover their tensors.
    for (const auto& checkpoint : checkpoints_) {
      if (!sound_) break;
      if (std::ranges::find(result_.parts, checkpoint->path) != result_.parts.end()) continue;
      const auto opened = OpenStepDirectory(checkpoint->path);
      if (!opened.ok()) AddDamage(checkpoint->path, opened.status());
    }
    for (const VerifiedFile& file : result_.files) result_.bytes += file.bytes;
    damages_.MoveTo(options_.most_damages, &result_);
    return std::move(result_);
  }

  std::vector<std::string>& unfinished() { return result_.unfinished; }

 private:
  void AddFile(const std::string& path, const Manifest::File& file) {
    const bool is_whole = file.chunks.empty();
    result_.files.push_back({path, file.bytes, is_whole ? "SHA-256" : "XXH3-128"});
    const size_t index = result_.files.size() - 1;
    auto opened = CheckedFile::Open(path, file, CheckedFile::DamagedHeader::kIsReadAnyway);
    if (!opened.ok()) return Found(index, path, 0, 0, opened.status());
    opened_.push_back(*std::move(opened));
    const CheckedFile& checked = *opened_.back();
    if (is_whole) {
      work_.push_back({file.bytes, [this, index, path, &checked] {
                         const absl::Status whole = checked.VerifyAll();
                         if (!whole.ok()) Found(index, path, 0, 0, whole);
                       }});
    }
    for (size_t first = 0; first < file.chunks.size();) {
      const uint64_t begin = first == 0 ? 0 : file.chunks[first - 1].end;
      size_t last = first + 1;
      while (last < file.chunks.size() && file.chunks[last].end - begin <= kBlock) ++last;
      work_.push_back(
          {file.chunks[last - 1].end - begin, [this, index, path, &file, &checked, first, last] {
             if (checked.Verify(first, last).ok()) return;
             for (size_t i = first; i < last; ++i) {
               const absl::Status chunk = checked.Verify(i, i + 1);
               if (chunk.ok()) continue;
               Found(index, path, i == 0 ? 0 : file.chunks[i - 1].end, file.chunks[i].end, chunk);
             }
           }});
      first = last;
    }
  }

  void AddDamage(const std::string& path, const absl::Status& status) {
    Found(result_.files.size(), path, 0, 0, status);
  }

  void Found(size_t file, const std::string& path, uint64_t begin, uint64_t end,
             const absl::Status& status) {
    sound_ = false;
    damages_.Add(file, {path, begin, end, std::string(status.message())});
  }

  const VerifyOptions& options_;
  std::vector<std::unique_ptr<StepDirectory>> checkpoints_;
  std::vector<std::unique_ptr<CheckedFile>> opened_;
  std::vector<TensorSourcePtr> sources_;
  std::vector<PieceOfWork> work_;
  std::atomic<bool> sound_ = true;
  Damages damages_;
  Verification result_;
};

}  // namespace

absl::StatusOr<Verification> Verify(const std::string& path, const VerifyOptions& options) {
  Verifier verifier(options);
  std::error_code error;
  if (HoldsCheckpoints(path)) {
    MESHRUN_ASSIGN_OR_RETURN(const auto entries, ListCheckpoints(path));
    bool any = false;
    for (const CheckpointEntry& entry : entries) {
      if (!IsStepName(entry.name)) {
        verifier.unfinished().push_back(path + "/" + entry.name);
        continue;
      }
      // Also one without a manifest: no writer leaves it so.
      any = true;
      verifier.AddCheckpoint(path + "/" + entry.name);
    }
    if (!any) return absl::NotFoundError(path + " has no checkpoint, only unfinished ones");
  } else if (std::filesystem::exists(std::filesystem::path(path) / kManifestName, error)) {
    verifier.AddCheckpoint(path);
  } else {
    MESHRUN_ASSIGN_OR_RETURN(TensorSourcePtr source, OpenTensors(path));
    verifier.AddSource(path, std::move(source));
  }
  return verifier.Run();
}

}  // namespace meshrun::client
