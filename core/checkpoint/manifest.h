// manifest.json of a checkpoint: what the tensors beside it belong to.
//
//   {"format": "meshrun-checkpoint", "version": 2, "sequence": 3, "step": 500,
//    "save": "4be1c2...", "written": 1795938345,
//    "identity": {"job": "geoid", "--lr": "0.002", ...},
//    "sampler": {"seed": "1", "next_step": "500"},
//    "random_generators": {"cpu": "<hexadecimal>", "sharded_operations": "<hexadecimal>"},
//    "random_generators_by_rank": [{"cpu": ...}, ...],
//    "optimizer": "Adam",
//    "optimizer_options": [{"lr": 0.002, "beta1": 0.9, ...}, ...],
//    "kept_values": {"scheduler": "<hexadecimal>", ...},
//    "files": {"model.safetensors": {"bytes": 1234, "chunks": [[1234, "<XXH3-128>"]]}, ...}}
//
// A chunk has at most 1 GiB.
//
// Hosts that share no file system have files of their own, "model-00001-of-00002.safetensors" and
// so on, and the same manifest, which lists the files of all. It has "hosts": ["node-a", "node-b"],
// in the order of the files' numbers. A file that holds pieces has "pieces": {"<stored tensor>":
// {"tensor": "w", "global_shape": [8, 4], "begin": [4, 0]}, ...}. Its other tensors are whole, and
// the same at each host.
//
// Version 1 has "sha256" of each file in place of its chunks, and neither "save" nor "written".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/xxh3.h"

namespace meshrun {

struct Manifest {
  // A part of a file that was hashed by itself. Chunks follow one another and cover the file.
  struct Chunk {
    uint64_t end = 0;  // in the file; it begins where the one before ends
    Xxh3Hash hash;

    bool operator==(const Chunk&) const = default;
  };
  // A box of a tensor that ranks hold in pieces, stored as a tensor of its own.
  struct Piece {
    std::string tensor;                 // name of the whole
    std::vector<int64_t> global_shape;  // its shape
    std::vector<int64_t> begin;         // place of the box in it

    bool operator==(const Piece&) const = default;
  };
  struct File {
    uint64_t bytes = 0;
    std::string sha256;         // hexadecimal; of version 1
    std::vector<Chunk> chunks;  // of version 2
    // Pieces in the file, by the name of the stored tensor. All other tensors are whole.
    std::map<std::string, Piece> pieces;
  };

  // Orders the checkpoints of a directory: each is one above those that were there.
  int64_t sequence = 0;
  // Done when the checkpoint was taken.
  int64_t step = 0;
  // Number of the save, random: the same on all hosts that wrote a part of it. Empty in version 1.
  std::string save;
  // Unix time in seconds; 0 in version 1.
  int64_t written = 0;
  // What must be the same in two runs for the second to go on where the first stopped. Texts of any
  // bytes, as the sampler's are; those that are not UTF-8 stand in hexadecimal in the file.
  std::map<std::string, std::string> identity;
  std::map<std::string, std::string> sampler;
  // Rank 0's states of LibTorch's default generators; bytes.
  std::map<std::string, std::string> random_generators;
  // Those of all ranks; empty where they were equal, and in checkpoints of earlier versions.
  std::vector<std::map<std::string, std::string>> random_generators_by_rank;
  // The optimizer's class.
  std::string optimizer;
  // By group of parameters; empty in checkpoints of earlier versions. In the file an infinity is
  // "inf" or "-inf", and NaN "nan".
  std::vector<std::map<std::string, double>> optimizer_options;
  // What the program keeps as bytes.
  std::map<std::string, std::string> kept_values;
  std::map<std::string, File> files;
  // Hosts that wrote a part each, where they share no file system; empty: all is in this directory.
  std::vector<std::string> hosts;
};

// The text has version 2, or version 1 if a file has a SHA-256 and no chunks.
std::string EncodeManifest(const Manifest& manifest);

// DATA_LOSS, with `path`: content that is not a manifest, or one of a later version of the format.
absl::StatusOr<Manifest> DecodeManifest(const std::string& path, const std::string& content);

// The reverse of HexEncode. Absent: not hexadecimal.
absl::StatusOr<std::string> BytesFromHex(const std::string& text);

}  // namespace meshrun
