// Small checkpoints on the disk.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/step_directory.h"
#include "core/checkpoint/xxh3.h"
#include "core/hash.h"
#include "tests/core/checkpoint/temporary_directory.h"

namespace meshrun::testing {

struct StoredTensor {
  TensorInfo info;
  std::string bytes;
};
using StoredTensors = std::map<std::string, StoredTensor>;

inline std::string EncodeTensors(const StoredTensors& tensors,
                                 const std::map<std::string, std::string>& metadata = {}) {
  std::map<std::string, TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) infos[name] = tensor.info;
  const auto header = LayOutSafetensors("test", infos, metadata);
  EXPECT_TRUE(header.ok()) << header.status();
  std::string content = EncodeSafetensorsHeader(*header);
  content.resize(header->file_bytes);
  for (const auto& [name, entry] : header->tensors) {
    EXPECT_EQ(tensors.at(name).bytes.size(), entry.end - entry.begin) << name;
    content.replace(entry.begin, entry.end - entry.begin, tensors.at(name).bytes);
  }
  return content;
}

// Chunks of `most` bytes; the header has its own.
inline Manifest::File Hashed(const std::string& content, uint64_t most) {
  Manifest::File file{.bytes = content.size()};
  uint64_t end = *SafetensorsHeaderEnd("test", content, content.size());
  for (uint64_t begin = 0; begin < content.size();
       begin = end, end = std::min<uint64_t>(content.size(), end + most)) {
    file.chunks.push_back({end, Xxh3(std::string_view(content).substr(begin, end - begin))});
  }
  return file;
}

inline Manifest::File HashedAsAWhole(const std::string& content) {
  return {.bytes = content.size(), .sha256 = HexEncode(Sha256(content))};
}

// Writes DIR/step-N with its files. `manifest` gets their hashes.
inline std::string WriteStep(const TemporaryDirectory& directory, Manifest manifest,
                             const std::map<std::string, std::string>& files, int version = 2,
                             uint64_t most = 16) {
  const std::string step = kStepPrefix + std::to_string(manifest.step);
  for (const auto& [name, content] : files) {
    directory.Write(step + "/" + name, content);
    Manifest::File file = version == 1 ? HashedAsAWhole(content) : Hashed(content, most);
    file.pieces = manifest.files[name].pieces;
    manifest.files[name] = file;
  }
  directory.Write(step + "/" + kManifestName, EncodeManifest(manifest));
  return directory / step;
}

}  // namespace meshrun::testing
