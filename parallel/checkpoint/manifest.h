// manifest.json of a checkpoint: what the tensors beside it belong to. Without LibTorch.
//
//   {"format": "meshrun-checkpoint", "version": 1, "sequence": 3, "step": 500,
//    "identity": {"job": "geoid", "--lr": "0.002", ...},
//    "sampler": {"seed": "1", "next_step": "500"},
//    "random_generators": {"cpu": "<hexadecimal>"},
//    "optimizer": "Adam",
//    "files": {"model.safetensors": {"bytes": 1234, "sha256": "..."}, ...}}
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

namespace meshrun {

// A file of a checkpoint is truncated or damaged; the text names it.
class DamagedCheckpoint : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Manifest {
  struct File {
    uint64_t bytes = 0;
    std::string sha256;  // hexadecimal
  };

  // Orders the checkpoints of a directory: each is one above those that were there.
  int64_t sequence = 0;
  // Done when the checkpoint was taken.
  int64_t step = 0;
  // What must be the same in two runs for the second to go on where the first stopped. Texts of any
  // bytes, as the sampler's are; those that are not UTF-8 stand in hexadecimal in the file.
  std::map<std::string, std::string> identity;
  std::map<std::string, std::string> sampler;
  // States of LibTorch's default generators, by kind of device; bytes.
  std::map<std::string, std::string> random_generators;
  // The optimizer's class.
  std::string optimizer;
  std::map<std::string, File> files;
};

std::string encode_manifest(const Manifest& manifest);

// Raises DamagedCheckpoint, which names `path`, for content that is not a manifest, or one of a
// later version of the format.
Manifest decode_manifest(const std::string& path, const std::string& content);

}  // namespace meshrun
