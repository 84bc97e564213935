// Copies what ranks write to their log files. A rank writes to a pipe or a pseudo-terminal: a full
// disk does not fail the rank, and a limit on the file holds from byte to byte.
//
// The copying runs on a thread of its own, since a file system may hang. The thread shares nothing
// with its owner but two pipes of messages and takes no lock: the owner goes on forking ranks,
// whose children run ordinary code until exec.
//
//   disk full   in a bounded log the oldest half of the file goes; else what does not fit is lost.
//               Either is a hole in the file: bytes keep their offsets, and readers are told.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/os/fd.h"
#include "worker/supervisor/terminal.h"

namespace meshrun::worker {

class OutputCopier {
 public:
  // In terms of Add's number.
  struct Event {
    uint32_t stream = 0;
    // 0: all that was in the pipe when Drain was called is in the file. Else the errno of the first
    // write that failed.
    int error = 0;
  };

  static absl::StatusOr<std::unique_ptr<OutputCopier>> Start();
  // Copies what the pipes hold. Where the file system does not answer for `kPatience`, the thread
  // is left to the end of the process.
  ~OutputCopier();
  static constexpr std::chrono::seconds kPatience{2};

  // Copies to `file` from its end on. Beyond `limit` bytes on the disk the oldest half goes; 0: all
  // stays. `number`: the stream's number in events. Returns the end that a rank writes to: of a
  // pipe, or of a pseudo-terminal of this size.
  absl::StatusOr<os::UniqueFd> Add(uint32_t number, os::UniqueFd file, uint64_t limit,
                                   const std::optional<TerminalSize>& terminal = std::nullopt);
  // Answered by an event.
  void Drain(uint32_t number);

  // Readable when there are events.
  int fd() const { return events_.get(); }
  std::vector<Event> TakeEvents();

 private:
  OutputCopier() = default;

  os::UniqueFd commands_;
  os::UniqueFd events_;
  std::thread thread_;
};

}  // namespace meshrun::worker
