#include "core/checkpoint/torch_distributed_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "core/checkpoint/pickle.h"
#include "core/checkpoint/torch_archive.h"
#include "core/checkpoint/torch_names.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

// A longer value beside tensors is not read.
constexpr uint64_t kLongestDcpNote = 64 << 10;
// What reading one costs beside its bytes.
constexpr uint64_t kDcpNoteCost = 4096;

}  // namespace

void DcpSource::AddTensor(const std::string& name, DcpTensor tensor) {
  infos_.emplace(name, tensor.dtype->Tell(tensor.shape));
  tensors_.emplace(name, std::move(tensor));
}

absl::StatusOr<FileRegion> DcpSource::Open(const DcpItem& item) const {
  MESHRUN_ASSIGN_OR_RETURN(const FileRegion file, FileRegion::Open(files_[item.file]));
  return file.Part(item.offset, item.length, "an item of .metadata");
}

absl::StatusOr<StridedTensor> DcpSource::OpenChunk(const std::string& name, const DcpTensor& tensor,
                                                   const DcpChunk& chunk) const {
  MESHRUN_ASSIGN_OR_RETURN(const FileRegion region, Open(chunk.item));
  MESHRUN_ASSIGN_OR_RETURN(const auto archive, TorchArchive::Open(region));
  MESHRUN_ASSIGN_OR_RETURN(StridedTensor stored, archive->Tensor(archive->pickle().root, name));
  const TensorInfo expected = tensor.dtype->Tell(chunk.box.sizes);
  if (stored.info != expected || stored.element_bytes != tensor.dtype->bytes) {
    return absl::DataLossError(fmt::format(
        "{} is damaged: it has {} for the chunk of '{}' at [{}], which is {} in .metadata",
        region.Describe(), DescribeTensor(stored.info), EscapeControls(name),
        fmt::join(chunk.box.begin, ", "), DescribeTensor(expected)));
  }
  return stored;
}

absl::Status DcpSource::Read(const std::string& name, uint64_t begin, std::span<char> to) const {
  const auto at = tensors_.find(name);
  if (at == tensors_.end()) {
    return absl::NotFoundError(fmt::format("{} has no tensor '{}'", directory_, name));
  }
  const DcpTensor& tensor = at->second;
  if (to.empty()) return absl::OkStatus();
  for (const DcpChunk& chunk : tensor.chunks) {
    std::optional<StridedTensor> stored;
    const auto read = [&](uint64_t from, std::span<char> bytes) -> absl::Status {
      if (!stored) {
        MESHRUN_ASSIGN_OR_RETURN(stored, OpenChunk(name, tensor, chunk));
      }
      return ReadStrided(*stored, from, bytes);
    };
    MESHRUN_RETURN_IF_ERROR(
        ReadFromBox(tensor.shape, tensor.dtype->bytes, chunk.box, begin, to, read));
  }
  return absl::OkStatus();
}

void DcpSource::AddNote(const std::string& name, const DcpItem& item) {
  std::string size = fmt::format("{} bytes", item.length);
  if (item.length <= kLongestDcpNote && notes_budget_ >= kDcpNoteCost) {
    notes_budget_ -= kDcpNoteCost;
    const auto region = Open(item);
    const auto archive = region.ok() ? TorchArchive::Open(*region) : region.status();
    auto names = archive.ok() ? NameTorchValues(region->path(), (*archive)->pickle())
                              : absl::StatusOr<TorchNames>(archive.status());
    if (names.ok() && names->tensors.empty()) {
      for (auto& [part, text] : names->notes) {
        std::string full = part == kUnnamedValue ? name : name + "." + part;
        notes_budget_ -= std::min<uint64_t>(notes_budget_, full.size() + text.size());
        notes_.insert_or_assign(std::move(full), std::move(text));
      }
      return;
    }
  }
  notes_.insert_or_assign(name, std::move(size));
}

}  // namespace meshrun
