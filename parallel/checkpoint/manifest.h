// manifest.json of a checkpoint: what the tensors beside it belong to. Without LibTorch.
//
//   {"format": "meshrun-checkpoint", "version": 1, "sequence": 3, "step": 500,
//    "identity": {"job": "geoid", "--lr": "0.002", ...},
//    "sampler": {"seed": "1", "next_step": "500"},
//    "random_generators": {"cpu": "<hexadecimal>", "sharded_operations": "<hexadecimal>"},
//    "random_generators_by_rank": [{"cpu": ...}, ...],
//    "optimizer": "Adam",
//    "optimizer_options": [{"lr": 0.002, "beta1": 0.9, ...}, ...],
//    "kept_values": {"scheduler": "<hexadecimal>", ...},
//    "files": {"model.safetensors": {"bytes": 1234, "sha256": "..."}, ...}}
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

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
  // Rank 0's states of LibTorch's default generators (random_streams.h); bytes.
  std::map<std::string, std::string> random_generators;
  // Those of all ranks; empty where they were equal, and in checkpoints of earlier versions.
  std::vector<std::map<std::string, std::string>> random_generators_by_rank;
  // The optimizer's class.
  std::string optimizer;
  // By group of parameters (optimizer_state.h); empty in checkpoints of earlier versions. In the
  // file an infinity is "inf" or "-inf", and NaN "nan".
  std::vector<std::map<std::string, double>> optimizer_options;
  // What the program keeps as bytes (kept_values.h).
  std::map<std::string, std::string> kept_values;
  std::map<std::string, File> files;
};

std::string encode_manifest(const Manifest& manifest);

// Raises DamagedCheckpoint, which names `path`, for content that is not a manifest, or one of a
// later version of the format.
Manifest decode_manifest(const std::string& path, const std::string& content);

// The reverse of HexEncode. Raises std::invalid_argument.
std::string bytes_from_hex(const std::string& text);

}  // namespace meshrun
