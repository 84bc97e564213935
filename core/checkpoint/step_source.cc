// The tensors of a complete checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "core/checkpoint/checked_file.h"
#include "core/checkpoint/step_directory.h"
#include "core/checkpoint/tensor_boxes.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

// A file, and the chunk of it that was read last: whoever reads a tensor range by range reads each
// chunk once.
class ChunkReader {
 public:
  ChunkReader(const Manifest::File& file, std::unique_ptr<CheckedFile> checked)
      : file_(file), checked_(std::move(checked)) {}

  const CheckedFile& checked() const { return *checked_; }

  absl::Status Read(uint64_t begin, std::span<char> to) {
    if (file_.chunks.empty()) {
      // Version 1 has one hash: the file is read as a whole before its first bytes are given out.
      std::call_once(verified_once_, [this] { verified_ = checked_->VerifyAll(); });
      MESHRUN_RETURN_IF_ERROR(verified_);
      return Copy(begin, begin + to.size(), begin, to);
    }
    const uint64_t end = begin + to.size();
    auto chunk = std::upper_bound(file_.chunks.begin(), file_.chunks.end(), begin,
                                  [](uint64_t at, const auto& each) { return at < each.end; });
    for (uint64_t at = begin; at < end; ++chunk) {
      const uint64_t chunk_begin = chunk == file_.chunks.begin() ? 0 : (chunk - 1)->end;
      const uint64_t part_end = std::min(end, chunk->end);
      const std::span<char> part = to.subspan(at - begin, part_end - at);
      if (at == chunk_begin && part_end == chunk->end) {
        MESHRUN_RETURN_IF_ERROR(Copy(at, part_end, at, part));
      } else {
        MESHRUN_ASSIGN_OR_RETURN(const auto bytes, Chunk(chunk_begin, chunk->end));
        std::memcpy(part.data(), bytes->data() + (at - chunk_begin), part.size());
      }
      at = part_end;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Copy(uint64_t begin, uint64_t end, uint64_t origin, std::span<char> to) const {
    const CheckedFile::Interval interval = {begin, end};
    return checked_->Read(std::span(&interval, 1), [&](uint64_t offset, std::string_view bytes) {
      std::memcpy(to.data() + (offset - origin), bytes.data(), bytes.size());
    });
  }

  absl::StatusOr<std::shared_ptr<const std::string>> Chunk(uint64_t begin, uint64_t end) {
    {
      const MutexLock lock(mutex_);
      if (last_ != nullptr && last_begin_ == begin) return last_;
    }
    auto bytes = std::make_shared<std::string>(end - begin, '\0');
    MESHRUN_RETURN_IF_ERROR(Copy(begin, end, begin, *bytes));
    const MutexLock lock(mutex_);
    last_ = bytes;
    last_begin_ = begin;
    return bytes;
  }

  const Manifest::File& file_;
  const std::unique_ptr<CheckedFile> checked_;
  std::once_flag verified_once_;
  absl::Status verified_;
  Mutex mutex_;
  std::shared_ptr<const std::string> last_ MESHRUN_GUARDED_BY(mutex_);
  uint64_t last_begin_ MESHRUN_GUARDED_BY(mutex_) = 0;
};

// "model.safetensors" and what a host or a rank wrote of it: names as they are. Others are below
// the file's own name: "optimizer/".
std::string PrefixOf(const std::string& file) {
  const std::string base = file.substr(file.rfind('/') + 1);
  const std::string kind = base.substr(0, base.find_first_of(".-"));
  return kind == "model" ? "" : kind + "/";
}

class StepSource : public TensorSource {
 public:
  explicit StepSource(StepDirectory checkpoint)
      : checkpoint_(std::move(checkpoint)), others_(FilesOfOtherHosts(checkpoint_)) {}

  absl::Status Open(StepFiles files) {
    for (const auto& [name, file] : checkpoint_.manifest.files) {
      if (files == StepFiles::kModel && !PrefixOf(name).empty()) {
        left_out_.push_back(name);
        continue;
      }
      MESHRUN_RETURN_IF_ERROR(OpenFile(name, file));
    }
    // Pieces of tensors of which no other file has any.
    for (const std::string& name : elsewhere_) {
      if (!parts_.contains(name)) return missing_;
    }
    for (auto& [name, parts] : parts_) {
      const std::string subject = fmt::format("{}: {}", checkpoint_.path, name);
      const TensorInfo& tensor = tensors_[name];
      const auto bytes = TensorBytes(name, tensor);
      if (!bytes.ok()) return Damaged(std::string(bytes.status().message()));
      std::vector<const TensorBox*> boxes;
      for (const Part& part : parts) boxes.push_back(&part.box);
      const absl::Status covered = CheckCover(subject, tensor.shape, boxes);
      if (!covered.ok()) return missing_.ok() ? covered : missing_;
      std::erase_if(parts, [](const Part& part) {
        return std::ranges::find(part.box.sizes, 0) != part.box.sizes.end();
      });
    }
    return absl::OkStatus();
  }

  std::string Format() const override { return "meshrun checkpoint"; }
  const std::map<std::string, TensorInfo>& Tensors() const override { return tensors_; }
  std::vector<std::string> FilesLeftOut() const override { return left_out_; }

  std::map<std::string, std::string> Notes() const override {
    const Manifest& manifest = checkpoint_.manifest;
    std::map<std::string, std::string> notes = {{"step", std::to_string(manifest.step)},
                                                {"optimizer", EscapeBytes(manifest.optimizer)}};
    for (const auto& [key, value] : manifest.identity) {
      notes["identity/" + EscapeBytes(key)] = EscapeBytes(value);
    }
    return notes;
  }

  absl::Status Read(const std::string& name, uint64_t begin, std::span<char> to) const override {
    const auto found = parts_.find(name);
    if (found == parts_.end()) {
      return absl::NotFoundError(fmt::format("{} has no tensor {}", checkpoint_.path, name));
    }
    const TensorInfo& tensor = tensors_.at(name);
    const uint64_t bytes = *TensorBytes(name, tensor);
    if (begin > bytes || to.size() > bytes - begin) {
      return absl::InvalidArgumentError(
          fmt::format("{}: {} has fewer bytes than are read", checkpoint_.path, name));
    }
    for (const Part& part : found->second) {
      MESHRUN_RETURN_IF_ERROR(ReadFromBox(tensor.shape, *ElementBytes(tensor.dtype), part.box,
                                          begin, to, [&](uint64_t at, std::span<char> bytes) {
                                            return part.file->Read(part.begin + at, bytes);
                                          }));
    }
    return absl::OkStatus();
  }

 private:
  struct Part {
    TensorBox box;
    ChunkReader* file;
    uint64_t begin;  // in the file
  };

  absl::Status Damaged(std::string_view problem) const {
    return absl::DataLossError(fmt::format("{} is damaged: {}", checkpoint_.path, problem));
  }

  // A file of another host may be missing: each host has all that is not in pieces.
  absl::Status OpenFile(const std::string& name, const Manifest::File& file) {
    const std::vector<std::string>& hosts = checkpoint_.manifest.hosts;
    auto checked = CheckedFile::Open(checkpoint_.path + "/" + name, file);
    if (!checked.ok() && !hosts.empty()) {
      const absl::Status problem(
          checked.status().code(),
          fmt::format("{}; the hosts {} wrote a part of this checkpoint each",
                      std::string(checked.status().message()), fmt::join(hosts, ", ")));
      if (!others_.contains(name)) return problem;
      if (missing_.ok()) missing_ = problem;
      for (const auto& [stored, piece] : file.pieces) {
        elsewhere_.push_back(PrefixOf(name) + piece.tensor);
      }
      return absl::OkStatus();
    }
    if (!checked.ok()) return checked.status();
    files_.push_back(std::make_unique<ChunkReader>(file, *std::move(checked)));
    ChunkReader* const reader = files_.back().get();
    const std::string prefix = PrefixOf(name);
    for (const auto& [stored, entry] : reader->checked().header().tensors) {
      const auto piece = file.pieces.find(stored);
      const bool is_whole = piece == file.pieces.end();
      TensorInfo whole = entry.tensor;
      TensorBox box = {std::vector<int64_t>(whole.shape.size()), whole.shape};
      if (!is_whole) {
        whole.shape = piece->second.global_shape;
        box.begin = piece->second.begin;
      }
      const std::string full = prefix + (is_whole ? stored : piece->second.tensor);
      const auto [at, is_new] = tensors_.emplace(full, whole);
      if (!is_new && is_whole && hosts.empty()) return Damaged(full + " is stored twice");
      if (at->second != whole) return Damaged("the pieces of " + full + " differ in their whole");
      std::vector<Part>& parts = parts_[full];
      // Several hosts have it.
      if (!hosts.empty() && std::ranges::find(parts, box, &Part::box) != parts.end()) continue;
      parts.push_back({std::move(box), reader, entry.begin});
    }
    return absl::OkStatus();
  }

  const StepDirectory checkpoint_;
  const std::set<std::string> others_;
  std::vector<std::string> left_out_;
  std::vector<std::unique_ptr<ChunkReader>> files_;
  // Why a file of another host is not read; OK: all are here.
  absl::Status missing_;
  // Tensors of which such files have pieces.
  std::vector<std::string> elsewhere_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::vector<Part>> parts_;
};

}  // namespace

absl::StatusOr<TensorSourcePtr> OpenStepDirectory(const std::string& path, StepFiles files) {
  MESHRUN_ASSIGN_OR_RETURN(StepDirectory checkpoint, ReadStepDirectory(path));
  auto source = std::make_unique<StepSource>(std::move(checkpoint));
  MESHRUN_RETURN_IF_ERROR(source->Open(files));
  return source;
}

}  // namespace meshrun
