// Claims on blocks of ports that all daemons of a host see.
//
// Daemons of one user exclude each other by locks on files, one for each block, in directories that
// no other user can enter: /run/meshrun/ports where /run/meshrun is this user's or can be made, and
// /tmp/meshrun-ports-<uid>. A name that another user has taken is skipped with a warning, and the
// next one counts: /tmp/meshrun-ports-<uid>-2, ... A claim locks the file in each of these
// directories that is there and can be written, so that daemons which found different ones still
// meet.
//
// Daemons of different users see each other's guards: a UDP socket bound to the block's first port
// on the loopback. Any local process could hold those of all blocks, so a block without a guard is
// taken last, not refused.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun::worker {

class PortLocks {
 public:
  struct Options {
    std::string run_dir = "/run/meshrun";
    std::string tmp_dir = "/tmp";
  };
  // Ends with the value. Each file has what the last holder of the block has written.
  struct Claim {
    std::vector<os::UniqueFd> files;
    // Absent: somebody else holds it.
    os::UniqueFd guard;

    explicit operator bool() const { return !files.empty(); }
  };

  explicit PortLocks(Options options) : options_(std::move(options)) {}

  // Finds the directories, and makes one in tmp_dir where there is none. Call before Try.
  // PERMISSION_DENIED: all names are taken; the message lists them.
  absl::Status Open();
  // Claims the ports from `first` to `last`. A false value: another daemon has them; or, unless
  // `without_guard`, somebody holds their guard. An error: none of the directories takes a file.
  absl::StatusOr<Claim> Try(uint16_t first, uint16_t last, bool without_guard);

 private:
  const Options options_;
  // Those that are there.
  std::vector<std::string> directories_;
  // Held while directories_ are in use: whoever cleans /tmp leaves locked directories alone.
  std::vector<os::UniqueFd> kept_;
  std::set<std::string> warned_;
};

}  // namespace meshrun::worker
