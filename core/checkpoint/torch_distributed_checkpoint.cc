#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/file_region.h"
#include "core/checkpoint/pickle.h"
#include "core/checkpoint/pickle_text.h"
#include "core/checkpoint/tensor_boxes.h"
#include "core/checkpoint/torch_archive.h"
#include "core/checkpoint/torch_distributed_source.h"
#include "core/checkpoint/torch_dtype.h"
#include "core/checkpoint/torch_files.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr size_t kLongestDcpName = 4096;

// What .metadata says.
class DcpMetadata {
 public:
  DcpMetadata(std::string directory, const Pickle& pickle)
      : directory_(std::move(directory)),
        path_(directory_ + "/.metadata"),
        pickle_(pickle),
        visits_(pickle.bytes.size()) {}

  absl::StatusOr<std::unique_ptr<DcpSource>> Run() {
    const PickleValue& root = pickle_.root;
    const PickleValue* tensors = root.Find("state_dict_metadata");
    const PickleValue* storage = root.Find("storage_data");
    if (!root.Calls(kMetadataModule, "Metadata") || tensors == nullptr || storage == nullptr ||
        !tensors->Is(Kind::kDict) || !storage->Is(Kind::kDict)) {
      return Damaged("it is not the metadata of torch.distributed.checkpoint");
    }
    MESHRUN_RETURN_IF_ERROR(ReadStorage(*storage));
    auto source = std::make_unique<DcpSource>(directory_, files_);
    for (size_t k = 0; k + 1 < tensors->items().size(); k += 2) {
      const PickleValue& name = tensors->items()[k];
      if (!name.Is(Kind::kText) || !IsUtf8(name.text()) || name.size > kLongestDcpName) {
        return Damaged("a name is not a text, or too long");
      }
      MESHRUN_RETURN_IF_ERROR(Add(std::string(name.text()), tensors->items()[k + 1], source.get()));
    }
    return source;
  }

 private:
  // A name in the pickle, and the chunk's begin; bytes have no begin.
  using Key = std::pair<std::string_view, std::vector<int64_t>>;

  absl::Status Damaged(std::string_view reason) const {
    return absl::DataLossError(fmt::format("{} is damaged: {}", path_, reason));
  }

  absl::Status ReadStorage(const PickleValue& storage);
  absl::StatusOr<DcpItem> ReadItem(std::string_view name, const PickleValue& info);
  absl::Status Add(const std::string& name, const PickleValue& value, DcpSource* source);
  absl::StatusOr<DcpItem> TakeItem(const std::string& name, std::vector<int64_t> begin);

  const std::string directory_;
  const std::string path_;
  const Pickle& pickle_;
  uint64_t visits_;  // chunks that may still come; shared lists could stand for endlessly many
  std::map<Key, DcpItem> items_;
  std::vector<std::string> files_;
  std::vector<uint64_t> file_bytes_;
  std::map<std::string_view, size_t> file_places_;
};

absl::Status DcpMetadata::ReadStorage(const PickleValue& storage) {
  for (size_t k = 0; k + 1 < storage.items().size(); k += 2) {
    const PickleValue& index = storage.items()[k];
    const PickleValue* name = index.Find("fqn");
    const PickleValue* offset = index.Find("offset");
    if (!index.Calls(kMetadataModule, "MetadataIndex") || name == nullptr ||
        !name->Is(Kind::kText) || name->size > kLongestDcpName) {
      return Damaged("a key of storage_data is not a MetadataIndex");
    }
    std::vector<int64_t> begin;
    if (offset != nullptr && !offset->Is(Kind::kNone)) {
      auto dimensions = PickleDimensions(*offset);
      if (!dimensions) return Damaged("a MetadataIndex has an impossible offset");
      begin = *std::move(dimensions);
    }
    MESHRUN_ASSIGN_OR_RETURN(const DcpItem item, ReadItem(name->text(), storage.items()[k + 1]));
    items_.insert_or_assign(Key(name->text(), std::move(begin)), item);
  }
  return absl::OkStatus();
}

absl::StatusOr<DcpItem> DcpMetadata::ReadItem(std::string_view name, const PickleValue& info) {
  const PickleValue* file = info.Find("relative_path");
  const PickleValue* offset = info.Find("offset");
  const PickleValue* length = info.Find("length");
  if (file == nullptr || offset == nullptr || length == nullptr || !file->Is(Kind::kText) ||
      !offset->Is(Kind::kInt) || !length->Is(Kind::kInt) || offset->integer < 0 ||
      length->integer < 0 || file->size > kLongestDcpName) {
    return Damaged(fmt::format("'{}' has no place in a file", EscapeControls(name)));
  }
  const PickleValue* transforms = info.Find("transform_descriptors");
  if (transforms != nullptr && !transforms->items().empty()) {
    return absl::UnimplementedError(
        fmt::format("{}: '{}' is stored with the transform '{}', which is not read", path_,
                    EscapeControls(name), EscapeControls(PickleText(transforms->items()[0]))));
  }
  const auto [known, added] = file_places_.emplace(file->text(), files_.size());
  if (added) {
    const std::filesystem::path path(file->text());
    if (path.is_absolute() || file->text().find('\0') != std::string_view::npos ||
        std::ranges::find(path, "..") != path.end()) {
      return Damaged(fmt::format("'{}' is outside of the directory", EscapeControls(file->text())));
    }
    files_.push_back(directory_ + "/" + path.string());
    MESHRUN_ASSIGN_OR_RETURN(const FileRegion region, FileRegion::Open(files_.back()));
    file_bytes_.push_back(region.size());
  }
  const DcpItem item = {.file = known->second,
                        .offset = static_cast<uint64_t>(offset->integer),
                        .length = static_cast<uint64_t>(length->integer)};
  const uint64_t size = file_bytes_[item.file];
  if (item.offset > size || item.length > size - item.offset) {
    return absl::DataLossError(fmt::format(
        "{} is damaged: it has {} bytes, and '{}' is at byte {} with {} bytes",
        EscapeControls(files_[item.file]), size, EscapeControls(name), item.offset, item.length));
  }
  return item;
}

absl::StatusOr<DcpItem> DcpMetadata::TakeItem(const std::string& name, std::vector<int64_t> begin) {
  const auto at = items_.find(Key(name, begin));
  if (at == items_.end()) {
    return Damaged(fmt::format("no file has the chunk of '{}' at [{}]", EscapeControls(name),
                               fmt::join(begin, ", ")));
  }
  const DcpItem item = at->second;
  items_.erase(at);
  return item;
}

absl::Status DcpMetadata::Add(const std::string& name, const PickleValue& value,
                              DcpSource* source) {
  const std::string subject = fmt::format("'{}'", EscapeControls(name));
  if (value.Calls(kMetadataModule, "BytesStorageMetadata")) {
    MESHRUN_ASSIGN_OR_RETURN(const DcpItem item, TakeItem(name, {}));
    source->AddNote(name, item);
    return absl::OkStatus();
  }
  const PickleValue* properties = value.Find("properties");
  const PickleValue* size = value.Find("size");
  const PickleValue* chunks = value.Find("chunks");
  if (properties == nullptr || size == nullptr || chunks == nullptr ||
      !properties->Is(Kind::kCall) || properties->object->state.items().empty()) {
    return Damaged(
        fmt::format("{} is {}, not the metadata of a tensor", subject, value.Describe()));
  }
  DcpTensor tensor;
  const PickleValue& dtype = properties->object->state.items()[0];
  tensor.dtype = FindTorchDtype(dtype);
  if (tensor.dtype == nullptr) {
    return absl::UnimplementedError(fmt::format("{}: {} has the dtype {}, which is not read", path_,
                                                subject, dtype.Describe()));
  }
  auto shape = PickleDimensions(*size);
  if (!shape) return Damaged(fmt::format("{} has an impossible size", subject));
  tensor.shape = *std::move(shape);
  const auto bytes = TensorBytes(subject, tensor.dtype->Tell(tensor.shape));
  if (!bytes.ok()) return Damaged(std::string(bytes.status().message()));
  for (const PickleValue& chunk : chunks->items()) {
    const PickleValue* offsets = chunk.Find("offsets");
    const PickleValue* sizes = chunk.Find("sizes");
    auto begin = offsets == nullptr ? std::nullopt : PickleDimensions(*offsets);
    auto extent = sizes == nullptr ? std::nullopt : PickleDimensions(*sizes);
    if (!begin || !extent || visits_-- == 0) {
      return Damaged(fmt::format("{} has an impossible chunk", subject));
    }
    // Ranks without a part of the tensor may have saved none.
    if (std::ranges::find(*extent, 0) != extent->end()) continue;
    MESHRUN_ASSIGN_OR_RETURN(const DcpItem item, TakeItem(name, *begin));
    tensor.chunks.push_back(
        {.box = {.begin = *std::move(begin), .sizes = *std::move(extent)}, .item = item});
  }
  std::vector<const TensorBox*> boxes;
  for (const DcpChunk& chunk : tensor.chunks) boxes.push_back(&chunk.box);
  MESHRUN_RETURN_IF_ERROR(CheckCover(fmt::format("{}: {}", path_, subject), tensor.shape, boxes));
  source->AddTensor(name, std::move(tensor));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorSourcePtr> OpenTorchDistributedCheckpoint(const std::string& directory) {
  const std::string path = directory + "/.metadata";
  MESHRUN_ASSIGN_OR_RETURN(const FileRegion region, FileRegion::Open(path));
  MESHRUN_ASSIGN_OR_RETURN(std::string bytes, region.ReadAll(kLongestPickle, "the metadata"));
  MESHRUN_ASSIGN_OR_RETURN(const auto pickle, ReadPickle(path, std::move(bytes)));
  return DcpMetadata(directory, *pickle).Run();
}

}  // namespace meshrun
