#include "parallel/checkpoint/safetensors.h"

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/utf8.h"
#include "parallel/checkpoint/atomic_file.h"

namespace meshrun {
namespace {

using nlohmann::json;

constexpr char kMetadata[] = "__metadata__";
constexpr uint64_t kLengthBytes = 8;
// Data starts at a multiple of 8, as the format's own writers have it.
constexpr uint64_t kAlignment = 8;

const std::map<std::string, uint64_t>& dtype_sizes() {
  static const auto* sizes = new std::map<std::string, uint64_t>{
      {"BOOL", 1}, {"U8", 1},      {"I8", 1},      {"U16", 2},     {"I16", 2}, {"U32", 4},
      {"I32", 4},  {"U64", 8},     {"I64", 8},     {"F8_E4M3", 1}, {"F16", 2}, {"F32", 4},
      {"F64", 8},  {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"BF16", 2},    {"C64", 8}};
  return *sizes;
}

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw SafetensorsError("tensor file " + path + ": " + problem);
}

// Raises for an unknown dtype, a negative extent, or a product that overflows.
uint64_t byte_size(const std::string& path, const std::string& name, const std::string& dtype,
                   const std::vector<int64_t>& shape) {
  const auto size = dtype_sizes().find(dtype);
  if (size == dtype_sizes().end()) fail(path, name + " has the unknown dtype " + dtype);
  uint64_t bytes = size->second;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) {
      fail(path, name + " has an impossible shape");
    }
  }
  return bytes;
}

constexpr char kDcp[] =
    "is part of a checkpoint of torch.distributed.checkpoint, not a safetensors file: convert it "
    "in Python with torch.distributed.checkpoint.format_utils.dcp_to_torch_save(DIRECTORY, "
    "\"model.pt\"), then safetensors.torch.save_file(torch.load(\"model.pt\"), "
    "\"model.safetensors\") for a flat dict of tensors";
constexpr char kTorchSave[] =
    "was written by torch.save() or torch::save(), and is not a safetensors file: convert it in "
    "Python with safetensors.torch.save_file(torch.load(\"model.pt\"), \"model.safetensors\") for "
    "a flat dict of tensors; in C++ load it with torch::load() and call "
    "meshrun::write_parameters()";

// What a file is that does not begin as a safetensors file does; empty: not known.
std::string other_format(std::string_view path, std::string_view content) {
  const bool is_zip = content.starts_with("PK\x03\x04");
  const bool is_pickle =
      content.size() > 1 && content[0] == '\x80' && content[1] >= '\x02' && content[1] <= '\x05';
  if (!is_zip && !is_pickle) return "";
  return path.ends_with(".distcp") || path.ends_with(".metadata") ? kDcp : kTorchSave;
}

void check_text(const std::string& path, const std::string& what, const std::string& text) {
  if (!IsUtf8(text)) fail(path, what + " is not UTF-8: '" + EscapeBytes(text) + "'");
}

json parse_header(const std::string& path, const std::string& content, uint64_t& data_begin) {
  uint64_t length = 0;
  if (content.size() < kLengthBytes) {
    fail(path, "truncated: it has " + std::to_string(content.size()) + " bytes");
  }
  std::memcpy(&length, content.data(), kLengthBytes);
  if (length > content.size() - kLengthBytes) {
    const std::string known = other_format(path, content);
    if (!known.empty()) fail(path, known);
    fail(path, "truncated: the header has " + std::to_string(length) + " bytes, the file " +
                   std::to_string(content.size()));
  }
  data_begin = kLengthBytes + length;
  json header = json::parse(content.begin() + kLengthBytes,
                            content.begin() + static_cast<int64_t>(data_begin), nullptr,
                            /*allow_exceptions=*/false);
  if (!header.is_object()) fail(path, "its header is not a JSON object");
  return header;
}

}  // namespace

std::string encode_safetensors(const std::string& path, const TensorFile& file) {
  json header = json::object();
  for (const auto& [key, value] : file.metadata) {
    check_text(path, "a key of the metadata", key);
    check_text(path, "the metadata's value of '" + key + "'", value);
  }
  if (!file.metadata.empty()) header[kMetadata] = file.metadata;
  std::string data;
  for (const auto& [name, tensor] : file.tensors) {
    check_text(path, "a tensor's name", name);
    const uint64_t expected = byte_size(path, name, tensor.dtype, tensor.shape);
    if (expected != tensor.bytes.size()) {
      fail(path, name + " has " + std::to_string(tensor.bytes.size()) +
                     " bytes, its shape and dtype " + std::to_string(expected));
    }
    const uint64_t begin = data.size();
    data += tensor.bytes;
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  const uint64_t length = text.size();
  std::string content(kLengthBytes, '\0');
  std::memcpy(content.data(), &length, kLengthBytes);
  content.reserve(kLengthBytes + text.size() + data.size());
  content += text;
  content += data;
  return content;
}

TensorFile decode_safetensors(const std::string& path, const std::string& content) {
  uint64_t data_begin = 0;
  const json header = parse_header(path, content, data_begin);
  const uint64_t data_size = content.size() - data_begin;
  TensorFile file;
  try {
    for (const auto& [name, entry] : header.items()) {
      if (name == kMetadata) {
        file.metadata = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      StoredTensor tensor;
      tensor.dtype = entry.at("dtype").get<std::string>();
      tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
      const auto begin = entry.at("data_offsets").at(0).get<uint64_t>();
      const auto end = entry.at("data_offsets").at(1).get<uint64_t>();
      const uint64_t size = byte_size(path, name, tensor.dtype, tensor.shape);
      if (begin > end || end > data_size || end - begin != size) {
        fail(path, name + " needs " + std::to_string(size) + " bytes, has the range " +
                       std::to_string(begin) + " to " + std::to_string(end) + " of " +
                       std::to_string(data_size));
      }
      tensor.bytes = content.substr(data_begin + begin, size);
      file.tensors[name] = std::move(tensor);
    }
  } catch (const json::exception& error) {
    fail(path, std::string("its header is not a safetensors header: ") + error.what());
  }
  return file;
}

void write_safetensors(const std::string& path, const TensorFile& file) {
  write_file_atomically(path, encode_safetensors(path, file));
}

TensorFile read_safetensors(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    const bool is_dcp = std::filesystem::exists(std::filesystem::path(path) / ".metadata");
    fail(path, is_dcp ? kDcp : "is a directory");
  }
  return decode_safetensors(path, read_file(path));
}

}  // namespace meshrun
