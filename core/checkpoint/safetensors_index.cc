#include "core/checkpoint/safetensors_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/checkpoint/file_reads.h"
#include "core/checkpoint/json_fields.h"
#include "core/checkpoint/safetensors.h"
#include "core/status.h"

namespace meshrun {
namespace {

using nlohmann::json;

constexpr uint64_t kMostIndexBytes = 100'000'000;

struct Index {
  std::map<std::string, std::string> files;  // by tensor
  std::map<std::string, std::string> notes;
};

absl::StatusOr<Index> DecodeIndex(const std::string& content) {
  MESHRUN_ASSIGN_OR_RETURN(const json parsed, ParseJson(content));
  MESHRUN_RETURN_IF_ERROR(CheckJson("it", parsed, JsonKind::kObject));
  Index index;
  MESHRUN_ASSIGN_OR_RETURN(const json* files, JsonField(parsed, "weight_map", JsonKind::kObject));
  for (const auto& [tensor, file] : files->items()) {
    MESHRUN_RETURN_IF_ERROR(CheckJson("the file of " + tensor, file, JsonKind::kText));
    index.files[tensor] = file.get<std::string>();
  }
  MESHRUN_ASSIGN_OR_RETURN(const json* metadata,
                           OptionalJsonField(parsed, "metadata", JsonKind::kObject));
  for (const auto& [key, value] : metadata->items()) {
    index.notes[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return index;
}

class IndexSource : public TensorSource {
 public:
  IndexSource(std::string path, Index index) : path_(std::move(path)), index_(std::move(index)) {}

  absl::Status Open(const std::string& directory) {
    for (const auto& [tensor, file] : index_.files) {
      if (file.empty() || file == "." || file == ".." || file.find('/') != file.npos ||
          file.find('\0') != file.npos) {
        return absl::DataLossError(
            fmt::format("{} is damaged: the file of {} is not in its directory", path_, tensor));
      }
      TensorSourcePtr& opened = sources_[file];
      if (opened == nullptr) {
        MESHRUN_ASSIGN_OR_RETURN(opened, OpenSafetensors(directory + "/" + file));
      }
      const auto found = opened->Tensors().find(tensor);
      if (found == opened->Tensors().end()) {
        return absl::DataLossError(
            fmt::format("{}/{} has no tensor {}, which {} names", directory, file, tensor, path_));
      }
      tensors_[tensor] = found->second;
    }
    return absl::OkStatus();
  }

  std::string Format() const override { return "safetensors"; }
  const std::map<std::string, TensorInfo>& Tensors() const override { return tensors_; }
  std::map<std::string, std::string> Notes() const override { return index_.notes; }

  absl::Status Read(const std::string& name, uint64_t begin, std::span<char> to) const override {
    const auto file = index_.files.find(name);
    if (file == index_.files.end()) {
      return absl::NotFoundError(fmt::format("{} has no tensor {}", path_, name));
    }
    return sources_.at(file->second)->Read(name, begin, to);
  }

 private:
  const std::string path_;
  const Index index_;
  std::map<std::string, TensorSourcePtr> sources_;  // by file
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace

absl::StatusOr<TensorSourcePtr> OpenSafetensorsIndex(const std::string& directory) {
  const std::string path = directory + "/" + kSafetensorsIndexName;
  MESHRUN_ASSIGN_OR_RETURN(const std::string content, ReadSmallFile(path, kMostIndexBytes));
  auto index = DecodeIndex(content);
  if (!index.ok()) return Annotate(index.status(), path + " is damaged");
  auto source = std::make_unique<IndexSource>(path, *std::move(index));
  MESHRUN_RETURN_IF_ERROR(source->Open(directory));
  return source;
}

}  // namespace meshrun
