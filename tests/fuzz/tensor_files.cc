#include "tests/fuzz/tensor_files.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/safetensors_index.h"
#include "core/checkpoint/tensor_source.h"
#include "core/checkpoint/torch_files.h"
#include "tests/core/checkpoint/support/torch_file_builder.h"

namespace meshrun::fuzz {
namespace {

using namespace meshrun::testing;  // NOLINT

constexpr size_t kTarBlock = 512;

// Readers take paths: a directory of this process.
class Directory {
 public:
  Directory() {
    path_ = std::filesystem::temp_directory_path() / "fuzzed-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) {
      std::perror(path_.c_str());
      std::abort();
    }
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const std::string& path() const { return path_; }
  // Returns the file's path.
  std::string Write(const std::string& name, std::string_view content) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

 private:
  std::string path_;
};

// The end of each tensor, and all texts.
void ReadAll(const absl::StatusOr<TensorSourcePtr>& source) {
  constexpr uint64_t kMost = 4096;
  if (!source.ok()) return;
  (void)(*source)->Notes();
  for (const auto& [name, tensor] : (*source)->Tensors()) {
    const uint64_t size = TensorBytes(name, tensor).value_or(0);
    std::string bytes(std::min(size, kMost), '\0');
    (void)(*source)->Read(name, size - bytes.size(), bytes);
  }
}

std::string SafetensorsBytes() {
  const auto header =
      LayOutSafetensors("f", {{"w", {"F32", {2, 3}}}, {"b", {"BF16", {}}}}, {{"format", "pt"}});
  return header.ok() ? EncodeSafetensorsHeader(*header) + std::string(26, 'd') : "";
}

void ParseSafetensors(std::string_view bytes) {
  const auto end = SafetensorsHeaderEnd("f", bytes, bytes.size());
  if (end.ok()) (void)DecodeSafetensorsHeader("f", bytes.substr(0, *end), bytes.size());
}

std::string OneTensor() {
  return TorchFile(Dict({Text("w"), FloatTensor("0", 6, 0, {2, 3}, {3, 1}), Text("step"), Int(7)}),
                   {std::string(24, 'd')});
}

const std::vector<std::pair<std::string, std::string>>& MdlusMembers() {
  static const auto* const members = new std::vector<std::pair<std::string, std::string>>{
      {"args.json", R"({"__name__": "M", "__args__": {"width": 3}})"},
      {"metadata.json", R"({"mdlus_file_version": "0.1.0"})"},
      {"model.pt", OneTensor()}};
  return *members;
}

std::string ZipMdlus() {
  ZipBuilder zip;
  for (const auto& [name, content] : MdlusMembers()) zip.Add(name, content);
  return zip.Finish();
}

// Makes the checksums right, so that what comes behind them is reached.
std::string WithTarChecksums(std::string bytes) {
  constexpr size_t kMagic = 257;
  constexpr size_t kChecksum = 148;
  for (size_t at = 0; at + kTarBlock <= bytes.size(); at += kTarBlock) {
    if (bytes.compare(at + kMagic, 5, "ustar") != 0) continue;
    bytes.replace(at + kChecksum, 8, 8, ' ');
    unsigned sum = 0;
    for (size_t k = 0; k < kTarBlock; ++k) sum += static_cast<unsigned char>(bytes[at + k]);
    char digits[8];
    std::snprintf(digits, sizeof(digits), "%06o", sum);
    bytes.replace(at + kChecksum, 7, digits, 7);
  }
  return bytes;
}

std::string TarMdlus() {
  std::string tar;
  for (const auto& [name, content] : MdlusMembers()) {
    char header[kTarBlock] = {};
    std::snprintf(header, 100, "%s", name.c_str());
    std::snprintf(header + 124, 12, "%011zo", content.size());
    header[156] = '0';
    std::snprintf(header + 257, 6, "ustar");
    tar.append(header, kTarBlock);
    tar += content;
    tar.resize((tar.size() + kTarBlock - 1) / kTarBlock * kTarBlock);
  }
  return WithTarChecksums(tar + std::string(2 * kTarBlock, '\0'));
}

const Directory& OurDirectory() {
  static const Directory directory;
  return directory;
}

}  // namespace

std::vector<Parser> TensorFileParsers() {
  const TorchDistributedFiles chunked =
      MakeTorchDistributedFiles({4, 3}, {{{0, 0}, {4, 2}}, {{0, 2}, {4, 1}}});
  return {
      {"safetensors", ParseSafetensors, {SafetensorsBytes()}},
      {"safetensors_index",
       [](std::string_view bytes) {
         OurDirectory().Write("a.safetensors", SafetensorsBytes());
         OurDirectory().Write(kSafetensorsIndexName, bytes);
         ReadAll(OpenSafetensorsIndex(OurDirectory().path()));
       },
       {R"({"metadata": {"n": 2}, "weight_map": {"w": "a.safetensors", "b": "a.safetensors"}})"}},
      {"torch_save",
       [](std::string_view bytes) { ReadAll(OpenTorchSave(OurDirectory().Write("a.pt", bytes))); },
       {OneTensor(), TorchFile(List({Call(Name("torch", "device"), {Text("cpu")}), Text("x")}))}},
      {"torch_distributed",
       [data = chunked.data](std::string_view bytes) {
         OurDirectory().Write("__0_0.distcp", data);
         OurDirectory().Write(".metadata", bytes);
         ReadAll(OpenTorchDistributedCheckpoint(OurDirectory().path()));
       },
       {chunked.metadata}},
      {"mdlus",
       [](std::string_view bytes) {
         ReadAll(OpenMdlus(OurDirectory().Write("a.mdlus", WithTarChecksums(std::string(bytes)))));
       },
       {ZipMdlus(), TarMdlus()}},
  };
}

}  // namespace meshrun::fuzz
