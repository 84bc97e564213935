#include "core/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/checkpoint/file_reads.h"
#include "core/checkpoint/safetensors_constants.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

using nlohmann::ordered_json;

// Data starts at a multiple of 8, as the format's own writers have it.
constexpr uint64_t kAlignment = 8;

using NamedEntry = std::pair<const std::string, SafetensorsHeader::Entry>;

absl::Status CheckText(const std::string& path, std::string_view what, const std::string& text) {
  if (IsUtf8(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: {} is not UTF-8: '{}'", path, what, EscapeBytes(text)));
}

// In the order of the file.
std::vector<const NamedEntry*> InOrder(const SafetensorsHeader& header) {
  std::vector<const NamedEntry*> entries;
  for (const NamedEntry& entry : header.tensors) entries.push_back(&entry);
  std::stable_sort(entries.begin(), entries.end(), [](const NamedEntry* a, const NamedEntry* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  return entries;
}

class SafetensorsSource : public TensorSource {
 public:
  SafetensorsSource(std::string path, SafetensorsHeader header, os::UniqueFd fd)
      : path_(std::move(path)), header_(std::move(header)), fd_(std::move(fd)) {
    for (const auto& [name, entry] : header_.tensors) tensors_[name] = entry.tensor;
  }

  std::string Format() const override { return "safetensors"; }
  const std::map<std::string, TensorInfo>& Tensors() const override { return tensors_; }
  std::map<std::string, std::string> Notes() const override { return header_.metadata; }

  absl::Status Read(const std::string& name, uint64_t begin, std::span<char> to) const override {
    const auto found = header_.tensors.find(name);
    if (found == header_.tensors.end()) {
      return absl::NotFoundError(fmt::format("{} has no tensor {}", path_, name));
    }
    const SafetensorsHeader::Entry& entry = found->second;
    if (begin > entry.end - entry.begin || to.size() > entry.end - entry.begin - begin) {
      return absl::InvalidArgumentError(
          fmt::format("{}: {} has fewer bytes than are read", path_, name));
    }
    return ReadAt(fd_, path_, entry.begin + begin, to);
  }

 private:
  const std::string path_;
  const SafetensorsHeader header_;
  const os::UniqueFd fd_;
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace

absl::StatusOr<SafetensorsHeader> LayOutSafetensors(
    const std::string& path, const std::map<std::string, TensorInfo>& tensors,
    const std::map<std::string, std::string>& metadata) {
  for (const auto& [key, value] : metadata) {
    MESHRUN_RETURN_IF_ERROR(CheckText(path, "a key of the metadata", key));
    MESHRUN_RETURN_IF_ERROR(CheckText(path, "the metadata's value of '" + key + "'", value));
  }
  SafetensorsHeader header;
  header.metadata = metadata;
  std::map<uint64_t, std::vector<std::string>, std::greater<>> by_element;
  for (const auto& [name, tensor] : tensors) {
    MESHRUN_RETURN_IF_ERROR(CheckText(path, "a tensor's name", name));
    if (name == kSafetensorsMetadata) {
      return absl::InvalidArgumentError(
          fmt::format("{}: a tensor has the name {}, which the format reserves", path, name));
    }
    const auto bytes = TensorBytes(name, tensor);
    if (!bytes.ok()) return Annotate(bytes.status(), path);
    header.tensors[name] = {.tensor = tensor, .begin = 0, .end = *bytes};
    by_element[*ElementBytes(tensor.dtype)].push_back(name);
  }
  uint64_t end = 0;
  for (const auto& [element, names] : by_element) {
    for (const std::string& name : names) {
      SafetensorsHeader::Entry& entry = header.tensors[name];
      entry.begin = end;
      if (__builtin_add_overflow(end, entry.end, &end)) {
        return absl::InvalidArgumentError(path + ": the tensors have more bytes than any file");
      }
      entry.end = end;
    }
  }
  // The header's length follows from offsets within the data, and places the data in the file.
  const uint64_t data_begin = EncodeSafetensorsHeader(header).size();
  if (data_begin - kHeaderLengthBytes > kMostHeaderBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}: the header has {} bytes, and the format allows {}", path,
                    data_begin - kHeaderLengthBytes, kMostHeaderBytes));
  }
  if (__builtin_add_overflow(end, data_begin, &header.file_bytes)) {
    return absl::InvalidArgumentError(path + ": the tensors have more bytes than any file");
  }
  for (auto& [name, entry] : header.tensors) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  return header;
}

std::string EncodeSafetensorsHeader(const SafetensorsHeader& header) {
  const std::vector<const NamedEntry*> entries = InOrder(header);
  const uint64_t data_begin = entries.empty() ? 0 : entries.front()->second.begin;
  ordered_json object = ordered_json::object();
  if (!header.metadata.empty()) object[kSafetensorsMetadata] = header.metadata;
  std::string text = object.dump();
  // A tensor at a time: an ordered_json looks for each key among all that it has.
  text.pop_back();
  for (const NamedEntry* entry : entries) {
    const ordered_json value = {
        {"dtype", entry->second.tensor.dtype},
        {"shape", entry->second.tensor.shape},
        {"data_offsets", {entry->second.begin - data_begin, entry->second.end - data_begin}}};
    text += fmt::format("{}{}:{}", text.size() > 1 ? "," : "", ordered_json(entry->first).dump(),
                        value.dump());
  }
  text += '}';
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  const uint64_t length = text.size();
  std::string content(kHeaderLengthBytes, '\0');
  std::memcpy(content.data(), &length, kHeaderLengthBytes);
  return content + text;
}

absl::StatusOr<TensorSourcePtr> OpenSafetensors(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::path(path) / ".metadata", error)) {
    return absl::DataLossError(fmt::format(
        "{} is a checkpoint of torch.distributed.checkpoint, not a safetensors file: 'meshrun "
        "checkpoint convert' writes its tensors into one",
        path));
  }
  MESHRUN_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(path));
  uint64_t bytes = 0;
  MESHRUN_ASSIGN_OR_RETURN(os::UniqueFd fd, OpenForReads(path, &bytes));
  if (bytes != header.file_bytes) {
    return absl::DataLossError(path + " was replaced while it was opened");
  }
  return std::make_unique<SafetensorsSource>(path, std::move(header), std::move(fd));
}

}  // namespace meshrun
