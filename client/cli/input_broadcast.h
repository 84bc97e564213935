// Copies standard input to every rank: one FIFO for each, in a directory of its own, which ranks
// may open at any time, and again after a restart. The input goes on as fast as the slowest reader;
// one that never reads holds the others up after 64 KiB.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "client/run_directory.h"
#include "core/os/fd.h"

namespace meshrun::client {

class InputBroadcast {
 public:
  // Errors: from the file system.
  static absl::StatusOr<std::unique_ptr<InputBroadcast>> Start(uint32_t ranks);
  // Reads no further, and removes the directory.
  ~InputBroadcast();

  // Holds FIFOs named 0, 1, ...
  const std::string& directory() const { return directory_.path(); }

 private:
  InputBroadcast() = default;
  void Run();
  // False when it was told to stop.
  bool Wait(int fd, short events, int milliseconds) const;
  bool WriteToAll(const char* data, size_t size) const;

  RunDirectory directory_;
  std::vector<os::UniqueFd> fifos_;
  os::UniqueFd stop_;
  std::thread thread_;
};

}  // namespace meshrun::client
