#include "core/checkpoint/torch_save.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "core/checkpoint/strided_tensor.h"
#include "core/checkpoint/torch_archive.h"
#include "core/checkpoint/torch_files.h"
#include "core/checkpoint/torch_names.h"
#include "core/status.h"

namespace meshrun {
namespace {

class TorchSaveSource : public TensorSource {
 public:
  TorchSaveSource(std::string path, std::string format)
      : path_(std::move(path)), format_(std::move(format)) {}

  std::string Format() const override { return format_; }
  const std::map<std::string, TensorInfo>& Tensors() const override { return infos_; }
  std::map<std::string, std::string> Notes() const override { return notes_; }

  absl::Status Read(const std::string& name, uint64_t begin, std::span<char> to) const override {
    const auto at = tensors_.find(name);
    if (at == tensors_.end()) {
      return absl::NotFoundError(fmt::format("{} has no tensor '{}'", path_, name));
    }
    return ReadStrided(at->second, begin, to);
  }

  void AddTensor(const std::string& name, StridedTensor tensor) {
    infos_.emplace(name, tensor.info);
    tensors_.emplace(name, std::move(tensor));
  }
  void AddNotes(std::map<std::string, std::string> notes) { notes_.merge(std::move(notes)); }

 private:
  const std::string path_;
  const std::string format_;
  std::map<std::string, TensorInfo> infos_;
  std::map<std::string, StridedTensor> tensors_;
  std::map<std::string, std::string> notes_;
};

}  // namespace

absl::StatusOr<TensorSourcePtr> OpenTorchSaveRegion(const FileRegion& region,
                                                    const std::string& format,
                                                    std::map<std::string, std::string> notes) {
  MESHRUN_ASSIGN_OR_RETURN(const auto archive, TorchArchive::Open(region));
  MESHRUN_ASSIGN_OR_RETURN(TorchNames names, NameTorchValues(region.path(), archive->pickle()));
  auto source = std::make_unique<TorchSaveSource>(region.path(), format);
  for (const auto& [name, value] : names.tensors) {
    MESHRUN_ASSIGN_OR_RETURN(StridedTensor tensor, archive->Tensor(*value, name));
    source->AddTensor(name, std::move(tensor));
  }
  source->AddNotes(std::move(notes));
  source->AddNotes(std::move(names.notes));
  return source;
}

absl::StatusOr<TensorSourcePtr> OpenTorchSave(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(const FileRegion region, FileRegion::Open(path));
  return OpenTorchSaveRegion(region, "torch.save", {});
}

}  // namespace meshrun
