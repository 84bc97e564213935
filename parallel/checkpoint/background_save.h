// One save on one rank: a thread that brings its ranges to the disk, agrees with the other ranks'
// threads through a SaveMeeting, and, on the rank that leads, makes a checkpoint of the whole.
//
//   leader   makes the directory and its files              -> "made"
//   all      write their ranges, flush, note their hashes    -> "written"
//   leader   manifest, commit, rename                        -> "finished"
//   leader   removes old checkpoints; nobody waits for that, except the next save
//
// A problem of any rank ends the save on all, with the same words, and leaves the checkpoints that
// were there. While it takes long it says so: "rank 3 writes step 600 for 40 s, 1.2 of 3.0 GiB".
//
// Threads: one caller at a time. No errors leave it: see SaveOutcome.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "parallel/checkpoint/commit_hook.h"
#include "parallel/checkpoint/range_writer.h"
#include "parallel/checkpoint/save_meeting.h"
#include "parallel/checkpoint/step_directories.h"

namespace meshrun {

struct SaveOutcome {
  enum class Kind {
    kWritten,
    kRefused,  // another generation has the right to write checkpoints
    kFailed,   // a file cannot be written, on this rank or another one
    kGivenUp,  // by give_up(), or because this rank cannot speak with the others
  };
  Kind kind = Kind::kWritten;
  std::string problem;
  int64_t sequence = 0;  // of a written one
};

// A file of the checkpoint, alike on all ranks.
struct SavedFile {
  std::string name;
  std::string head;  // its first bytes, which the leader writes
  uint64_t bytes = 0;
};

struct SaveTask {
  std::string directory;
  std::vector<SavedFile> files;
  // Complete except for files and sequence.
  Manifest manifest;
  int rank = 0;
  int ranks = 1;
  // Rank 0 leads. Ranks that do not see its directory write nothing.
  bool sees_directory = true;
  StepWriter writer;
  Retention retention;
  // Null: nobody is called with the result.
  std::shared_ptr<CommitHook> hook;
  // Absent: no limit.
  std::optional<std::chrono::milliseconds> timeout;
  // What the leader does before it makes the directory.
  std::function<void()> prepare = [] {};
  // One sentence about a save that takes long, or about an old checkpoint that stays.
  std::function<void(const std::string&)> say;
};

class BackgroundSave {
 public:
  // Begins. `make_meeting` gets the function that tells whether the save is given up.
  using MakeMeeting = std::function<SaveMeeting(std::function<bool()> is_stopped)>;
  BackgroundSave(SaveTask task, const MakeMeeting& make_meeting);
  // Gives up what is not done, and waits some seconds. One that was given up before is not waited
  // for: its thread ends by itself, and holds what it needs.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Ranges of a file that this rank writes, in order; `keep` lives until they are written.
  void add(size_t file, std::vector<FileRange> ranges, std::shared_ptr<void> keep = nullptr);
  // Nothing more is added.
  void close();
  // This rank has no ranges, for this reason: the save fails on all ranks.
  void fail(const std::string& problem);
  // Waits until it is done, or no more than `most_left` bytes of what was added are unwritten, or
  // nothing more is written; at most `most`. Returns whether that is so.
  bool wait_for(std::chrono::milliseconds most, uint64_t most_left = 0) const;
  bool is_done() const;
  // Outcome of a save that is done.
  SaveOutcome outcome() const;
  // Whether it is the first time that somebody asks, so that an error is raised once.
  bool is_news();
  // Lets it end soon: kGivenUp, unless its commit is under way.
  void give_up();
  bool is_given_up() const;
  // The same, and waits some seconds for the thread; then it is done, whatever the thread does.
  void give_up_and_wait();
  // Waits until the thread has removed old checkpoints, too, or is given up.
  void wait_left() const;
  int64_t step() const;
  // "1.2 of 3.0 GiB".
  std::string progress() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace meshrun
