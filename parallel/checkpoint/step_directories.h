// The directories of checkpoints on one file system: how one becomes visible as a whole, which are
// removed. Without LibTorch. core/checkpoint/step_directory.h lists and reads them.
//
//   DIR/step-500/{model.safetensors, optimizer.safetensors, manifest.json}
//   DIR/.step-600.node-a.3.unfinished/...   written by node-a in generation 3, and not, or not yet,
//                                           a checkpoint. Removed by a writer of its own or a later
//                                           generation, or, if it was committed, finished
//
// Hosts that share no file system have a directory each, with the same steps, which are the same
// checkpoint by the digest of their manifest.
//
// A directory belongs to one run, and one job at a time may write it. What the writer has written
// aside becomes a checkpoint only after `commit`. A run that starts anew in the directory replaces
// what is there: the newest checkpoint is the one that was written last, whatever its step. Only
// whole checkpoints are replaced or outdated: any other step-N stays until a person removes it.
//
// Errors: DamagedCheckpoint; std::runtime_error with the path and the system's reason.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/step_directory.h"
#include "core/os/files.h"
#include "parallel/checkpoint/status_errors.h"

namespace meshrun {

// Another writer holds the right to write checkpoints.
class CommitRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using SayLine = std::function<void(const std::string& line)>;

// The writer, and what makes the result a checkpoint.
struct StepWriter {
  // Part of the temporary name.
  std::string name;
  uint64_t generation = 0;
  // Called when all is on the disk, with the step, the SHA-256 of the manifest and the temporary
  // name. Raises CommitRefused. The files stay even then, because the first try may have been
  // committed: if its answer was lost with the coordinator, the second try is refused once its
  // generation is over.
  std::function<void(int64_t step, const std::string& digest, const std::string& temporary)> commit;
  // Takes lines for the log.
  SayLine say;
  // Brings the names in a directory to the disk: os::SyncDirectory. Tests look at that moment.
  std::function<absl::Status(const std::string& directory)> flush = os::SyncDirectory;
};

// Which complete checkpoints stay when a new one has been written. One whose manifest cannot be
// read stays, too.
struct Retention {
  // The newest ones, at least 1.
  int64_t keep = 2;
  // Those that were written less than so long ago; absent: age does not count.
  std::optional<std::chrono::seconds> keep_for = {};
  // Those whose step is a multiple of it; 0: none.
  int64_t keep_every = 0;
  // Those with one of these names, since somebody still reads them.
  std::set<std::string> held = {};
};

// Paths of those that go, the oldest first. `checkpoints`: the newest last; `now`: Unix time.
std::vector<std::string> outdated(const std::vector<StepDirectory>& checkpoints,
                                  const Retention& retention, int64_t now);

// Makes the directory where it is absent, and for a moment a file in it. The error names the
// directory. Lack of room is none: there may be room when a checkpoint is written.
absl::Status probe_directory(const std::string& directory);

// Where a checkpoint lies.
std::string named_path(const std::string& directory, int64_t step);

// Where the files of a step are written until they are a checkpoint.
std::string unfinished_path(const std::string& directory, int64_t step, const std::string& writer);

// A checkpoint while it is written.
class UnfinishedStep {
 public:
  // Makes the directory, empty, and removes what crashes left in DIR.
  UnfinishedStep(std::string directory, int64_t step, StepWriter writer);

  // Where its files are to be written.
  const std::string& path() const { return path_; }
  // Where they are afterwards.
  std::string named_path() const;
  // Creates a file of `bytes` in it, without content. RESOURCE_EXHAUSTED at once where the file
  // system can tell that it has no room.
  absl::Status create_file(const std::string& name, uint64_t bytes) const;

  // That of the newest checkpoint that is there; 0: there is none.
  int64_t last_sequence() const;
  // Writes the manifest, and brings it and the directory's name to the disk.
  void describe(const Manifest& manifest);
  // Makes what describe() has written a checkpoint.
  void commit() const;
  // Renames it to step-N, in the place of a checkpoint of that step. That one, and what is
  // outdated, is hidden only when the new one's name is on the disk. A step-N that is not a whole
  // checkpoint is kept as step-N.incomplete-1, and the writer says so. Returns why an outdated
  // checkpoint stays; empty: none does.
  std::string publish(const Retention& retention);
  // Removes what finish() has hidden. That may take as long as writing it took.
  void remove_hidden();
  // For a save that is given up before its commit.
  void remove() const;

 private:
  const std::string directory_;
  const int64_t step_;
  const StepWriter writer_;
  std::string path_;
  std::string digest_;  // of the manifest
  std::vector<std::string> hidden_;
};

// A checkpoint that is committed: the SHA-256 of its manifest.
struct CommittedStep {
  int64_t step = 0;
  std::string digest;
};

// The newest checkpoint that has its own name; absent: there is none.
std::optional<CommittedStep> newest_named(const std::string& directory);

// Checkpoints that are written and have no name, or not yet. One whose manifest cannot be read is
// left out.
std::vector<StepDirectory> unfinished_steps(const std::string& directory);

// Whether the step has its own name in the directory.
bool is_named(const std::string& directory, const CommittedStep& committed);

// The temporary name that it has there; empty: it has none.
std::string temporary_name_of(const std::string& directory, const CommittedStep& committed);

// Renames the checkpoint of `step` that was committed as `temporary`, if its writer ended before it
// could. What has the name and is not a whole checkpoint is kept, as by publish(). Returns whether
// it is there under its own name now. If not, it lies on another host, or was removed or replaced.
bool finish_step_directory(const std::string& directory, int64_t step, const std::string& digest,
                           const std::string& temporary, const SayLine& say);

}  // namespace meshrun
