// One save on one rank: a thread that brings its ranges to the disk, agrees with the other ranks'
// threads through a SaveMeeting, and, on the ranks that lead, makes a checkpoint of the whole. Each
// site (sites.h) has a directory of its own, and a leader; rank 0 is one of them.
//
//   leaders  make their directories and files                 -> "made"
//   all      write their ranges, flush, note their hashes      -> "written"
//   leaders  tell each other what their files are, and write one manifest, the same at each site
//            -> "described"
//   rank 0   commits and renames                               -> "finished"
//   leaders  the others rename                                 -> "renamed"
//   leaders  remove old checkpoints; nobody waits for that, except the next save
//
// With one site "described" and "renamed" are left out. A crash leaves each site with the former
// checkpoint, or with the new one, whose name the next load or save gives it where it is missing.
// A problem of any rank ends the save on all, with the same words, and leaves the checkpoints that
// were there. While it takes long it says so: "rank 3 writes step 600 for 40 s, 1.2 of 3.0 GiB".
//
// Threads: one caller at a time. No errors leave it: see SaveOutcome.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
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

// A file of the checkpoint, alike on all ranks of a site.
struct SavedFile {
  std::string name;
  std::string head;  // its first bytes, which the leader writes
  uint64_t bytes = 0;
};

// The pieces of files, by the names of the files and of the stored tensors.
using PiecesByFile = std::map<std::string, std::map<std::string, Manifest::Piece>>;

struct SaveTask {
  std::string directory;
  // Those of this rank's site, and the pieces in the files of all sites.
  std::vector<SavedFile> files;
  PiecesByFile pieces;
  // A text beside them, which has no hash; without a name there is none.
  std::string index_name;
  std::string index;
  // Complete except for files and sequence; the same on all leaders.
  Manifest manifest;
  int rank = 0;
  int ranks = 1;
  int site = 0;
  int sites = 1;
  bool leads = true;
  StepWriter writer;
  Retention retention;
  // Null: nobody is called with the result.
  std::shared_ptr<CommitHook> hook;
  // Absent: no limit.
  std::optional<std::chrono::milliseconds> timeout;
  // What rank 0 does before it makes its directory. With several sites it returns a text, with
  // which the other leaders do their part.
  std::function<std::string()> prepare = [] { return ""; };
  std::function<void(const std::string& of_rank_0)> prepare_as_told = [](const std::string&) {};
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
