// Reads everything of a checkpoint, a directory of them or a tensor file, and compares what has
// hashes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun::client {

struct VerifiedFile {
  std::string path;
  uint64_t bytes = 0;
  // "XXH3-128", "SHA-256"; empty: it has none.
  std::string hash;
};

struct Damage {
  std::string file;
  // In the file; both 0: all of it.
  uint64_t begin = 0;
  uint64_t end = 0;
  // A sentence with the file, the tensor and the place.
  std::string message;
};

struct Verification {
  std::vector<VerifiedFile> files;
  uint64_t bytes = 0;
  std::vector<Damage> damages;  // the first ones, in the order of files and places
  uint64_t more_damages = 0;    // that are not in the list
  // What a writer has not finished or not removed, under hidden names: it is not read, and no
  // damage. A step-N without manifest.json is damage.
  std::vector<std::string> unfinished;
  // Checkpoints of which other hosts have a part: what is here is read.
  std::vector<std::string> parts;
};

struct VerifyOptions {
  // Threads that read.
  int jobs = 1;
  // Length of the list.
  size_t most_damages = 100;
  // Called several times a second by the thread that called Verify().
  std::function<void(uint64_t done, uint64_t all)> progress = {};
};

// Goes on behind damaged places. Errors: the path cannot be opened at all, or holds no checkpoint.
absl::StatusOr<Verification> Verify(const std::string& path, const VerifyOptions& options);

}  // namespace meshrun::client
