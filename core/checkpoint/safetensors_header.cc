// The header's JSON is read event by event: a header of 100 MB costs no more memory than what it
// describes, and no nesting makes it more.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/checkpoint/file_reads.h"
#include "core/checkpoint/json_fields.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/safetensors_constants.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

using nlohmann::json;

constexpr size_t kMostNamed = 200;  // bytes of a text from the file in a sentence

std::string Named(std::string_view text) {
  if (text.size() <= kMostNamed) return std::string(text);
  return fmt::format("{}...", Utf8Prefix(text, kMostNamed));
}

absl::Status HeaderError(const std::string& path, std::string_view problem) {
  return absl::DataLossError(
      fmt::format("{} is damaged: its header is not a safetensors header: {}", path, problem));
}

// What a file is that does not begin as a safetensors file does; empty: not known.
std::string OtherFormat(std::string_view path, std::string_view first) {
  const bool is_zip = first.starts_with("PK\x03\x04");
  const bool is_pickle =
      first.size() > 1 && first[0] == '\x80' && first[1] >= '\x02' && first[1] <= '\x05';
  if (path.ends_with(".distcp") || path.ends_with(".metadata")) {
    return "is part of a checkpoint of torch.distributed.checkpoint, not a safetensors file: give "
           "its directory to 'meshrun checkpoint convert'";
  }
  if (is_zip || is_pickle) {
    return "was written by torch.save() or torch::save(), and is not a safetensors file: 'meshrun "
           "checkpoint convert' writes its tensors into one";
  }
  const size_t text = first.find_first_not_of(" \t\r\n");
  if (text != first.npos && first[text] == '{') return "is JSON, not a safetensors file";
  return "";
}

// Takes the parser's events. Tensors have their offsets from the beginning of the data.
class HeaderEvents : public nlohmann::json_sax<json> {
 public:
  HeaderEvents(std::string_view text, SafetensorsHeader* header) : text_(text), header_(*header) {}

  // Empty: the text is a header.
  const std::string& problem() const { return problem_; }

  bool null() override { return Other("null"); }
  bool boolean(bool) override { return Other("a truth value"); }
  bool number_integer(number_integer_t) override { return Other("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Other("a fraction"); }
  bool binary(binary_t&) override { return Other("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3 || list_ == nullptr) return Other("a number");
    list_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[key_] = value;
      return true;
    }
    if (depth_ == 2 && key_ == "dtype") {
      entry_.tensor.dtype = value;
      return true;
    }
    return Other("a text");
  }

  bool key(string_t& name) override {
    if (depth_ == 1) name_ = name;
    if (depth_ == 2) key_ = name;
    if (depth_ == 1 && !names_.insert(name).second) return Fail(Named(name) + " is there twice");
    if (depth_ == 2 && !keys_.insert(name).second) {
      return Fail(fmt::format("{} of {} is there twice", Named(name), Named(name_)));
    }
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ == 1) {
      entry_ = {};
      shape_.clear();
      offsets_.clear();
      keys_.clear();
      in_metadata_ = name_ == kSafetensorsMetadata;
    } else if (depth_ > 1 && !Ignored()) {
      return Other("an object");
    }
    ++depth_;
    return true;
  }

  bool end_object() override {
    --depth_;
    return depth_ != 1 || in_metadata_ || FinishTensor();
  }

  bool start_array(size_t) override {
    list_ = nullptr;
    if (depth_ == 2 && !in_metadata_) {
      if (key_ == "shape") list_ = &shape_;
      if (key_ == "data_offsets") list_ = &offsets_;
    }
    if (list_ == nullptr && (depth_ < 2 || !Ignored())) return Other("a list");
    ++depth_;
    return true;
  }

  bool end_array() override {
    --depth_;
    list_ = nullptr;
    return true;
  }

  bool parse_error(size_t read, const std::string&, const json::exception&) override {
    return Fail(JsonProblem(text_, read, /*begin=*/kHeaderLengthBytes));
  }

 private:
  bool Fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  // Whether the parser is in a field that the format does not know: such fields are skipped.
  bool Ignored() const {
    return depth_ >= 2 && !in_metadata_ && key_ != "dtype" && key_ != "shape" &&
           key_ != "data_offsets";
  }

  bool Other(std::string_view what) {
    if (Ignored()) return true;
    if (depth_ == 0) return Fail(fmt::format("it is {}, not an object", what));
    if (depth_ == 1) return Fail(fmt::format("{} is {}, not an object", Named(name_), what));
    return Fail(fmt::format("{} of {} is, or has, {}", Named(key_), Named(name_), what));
  }

  bool FinishTensor() {
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!keys_.contains(key)) return Fail(fmt::format("{} has no {}", Named(name_), key));
    }
    if (offsets_.size() != 2) {
      return Fail(fmt::format("{} has {} data_offsets", Named(name_), offsets_.size()));
    }
    for (const uint64_t extent : shape_) {
      if (extent > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Fail(Named(name_) + " has an impossible shape");
      }
      entry_.tensor.shape.push_back(static_cast<int64_t>(extent));
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    header_.tensors[name_] = std::move(entry_);
    return true;
  }

  const std::string_view text_;
  SafetensorsHeader& header_;
  std::string problem_;
  size_t depth_ = 0;
  std::string name_;             // of the tensor, or kSafetensorsMetadata
  std::set<std::string> names_;  // that were there
  std::string key_;              // of the tensor's field
  std::set<std::string> keys_;
  bool in_metadata_ = false;
  SafetensorsHeader::Entry entry_;
  std::vector<uint64_t> shape_;
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t>* list_ = nullptr;  // the list that the parser is in
};

absl::Status CheckEntry(const std::string& path, const std::string& name,
                        const SafetensorsHeader::Entry& entry) {
  const std::string& dtype = entry.tensor.dtype;
  if (dtype == "F4" || dtype == "F6_E2M3" || dtype == "F6_E3M2") {
    return absl::UnimplementedError(
        fmt::format("{}: {} has the dtype {}, of less than a byte, which is not read", path,
                    Named(name), dtype));
  }
  const auto bytes = TensorBytes(Named(name), entry.tensor);
  if (!bytes.ok()) return HeaderError(path, Named(std::string(bytes.status().message())));
  if (entry.begin > entry.end || entry.end - entry.begin != *bytes) {
    return HeaderError(path, fmt::format("{} needs {} bytes, and has the data_offsets {} and {}",
                                         Named(name), *bytes, entry.begin, entry.end));
  }
  return absl::OkStatus();
}

// Checks that tensors follow one another up to the end of the file, and moves their offsets.
absl::Status PlaceTensors(const std::string& path, uint64_t data_begin, SafetensorsHeader* header) {
  std::vector<std::pair<const std::string, SafetensorsHeader::Entry>*> entries;
  for (auto& entry : header->tensors) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  const uint64_t data_bytes = header->file_bytes - data_begin;
  uint64_t end = 0;
  for (const auto* entry : entries) {
    if (entry->second.begin != end) {
      return HeaderError(
          path, fmt::format("{} begins at byte {} of the data, and the tensor before it ends at {}",
                            Named(entry->first), entry->second.begin, end));
    }
    end = entry->second.end;
  }
  if (end != data_bytes) {
    uint64_t expected = 0;
    if (__builtin_add_overflow(data_begin, end, &expected)) {
      return HeaderError(path, "its tensors have more bytes than any file");
    }
    return absl::DataLossError(fmt::format("{} is {}: {} bytes, its header describes {}", path,
                                           end > data_bytes ? "truncated" : "too long",
                                           header->file_bytes, expected));
  }
  for (auto* entry : entries) {
    entry->second.begin += data_begin;
    entry->second.end += data_begin;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> SafetensorsHeaderEnd(const std::string& path, std::string_view first,
                                              uint64_t file_bytes) {
  if (first.size() < kHeaderLengthBytes || file_bytes < kHeaderLengthBytes) {
    return absl::DataLossError(fmt::format(
        "{} is truncated: a safetensors file has at least 8 bytes, this one {}", path, file_bytes));
  }
  uint64_t length = 0;
  std::memcpy(&length, first.data(), kHeaderLengthBytes);
  if (length <= file_bytes - kHeaderLengthBytes && length <= kMostHeaderBytes) {
    return kHeaderLengthBytes + length;
  }
  if (const std::string other = OtherFormat(path, first); !other.empty()) {
    return absl::DataLossError(fmt::format("{} {}", path, other));
  }
  if (length > kMostHeaderBytes) {
    return absl::DataLossError(fmt::format(
        "{} is damaged, or not a safetensors file: its header would have {} bytes, and the format "
        "allows {}",
        path, length, kMostHeaderBytes));
  }
  return absl::DataLossError(fmt::format("{} is truncated: its header has {} bytes, the file {}",
                                         path, length, file_bytes));
}

absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(const std::string& path,
                                                          std::string_view content,
                                                          uint64_t file_bytes) {
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t end, SafetensorsHeaderEnd(path, content, file_bytes));
  if (content.size() != end) return HeaderError(path, "it is cut short");
  SafetensorsHeader header;
  header.file_bytes = file_bytes;
  const std::string_view text = content.substr(kHeaderLengthBytes);
  HeaderEvents events(text, &header);
  if (!json::sax_parse(text.begin(), text.end(), &events)) {
    const std::string other = OtherFormat(path, content.substr(0, kHeaderLengthBytes));
    if (!text.starts_with('{') && !other.empty()) {
      return absl::DataLossError(fmt::format("{} {}", path, other));
    }
    return HeaderError(path, events.problem());
  }
  for (const auto& [name, entry] : header.tensors) {
    MESHRUN_RETURN_IF_ERROR(CheckEntry(path, name, entry));
  }
  MESHRUN_RETURN_IF_ERROR(PlaceTensors(path, end, &header));
  return header;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path) {
  uint64_t bytes = 0;
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd fd, OpenForReads(path, &bytes));
  std::string content(std::min(bytes, kHeaderLengthBytes), '\0');
  MESHRUN_RETURN_IF_ERROR(ReadAt(fd, path, 0, content));
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t end, SafetensorsHeaderEnd(path, content, bytes));
  content.resize(end);
  MESHRUN_RETURN_IF_ERROR(
      ReadAt(fd, path, kHeaderLengthBytes, std::span(content).subspan(kHeaderLengthBytes)));
  return DecodeSafetensorsHeader(path, content, bytes);
}

}  // namespace meshrun
