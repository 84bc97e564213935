// The part of a save (background_save.h) that a leader does for its site: it makes the directory
// and its files, and a checkpoint of them when all ranks have written.
//
// Threads: one at a time. Errors: SaveGivenUp, and those of the meeting's store; all others are
// texts of stages.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "parallel/checkpoint/background_save.h"

namespace meshrun {

// First characters of the text that ends a stage.
inline constexpr char kWrittenText = 'w';  // and the checkpoint's sequence
inline constexpr char kToldText = 't';     // and what a leader tells the others
inline constexpr char kRefusedText = 'r';  // and the problem
inline constexpr char kFailedText = 'f';   // and the problem

inline constexpr char kMadeStage[] = "made";
inline constexpr char kWrittenStage[] = "written";
inline constexpr char kFinishedStage[] = "finished";
inline constexpr char kRenamedStage[] = "renamed";

// What `work` raises on this rank, as the text of a stage; empty: nothing. SaveGivenUp passes.
std::string problem_of(int rank, const std::function<void()>& work);

// Removes what the meeting of an earlier save of so many sites has left in the store.
void forget_save(SaveMeeting& meeting, const std::string& save, int sites);

class SaveLeader {
 public:
  // `begin_commit` raises SaveGivenUp where the save is given up; then it cannot be any more.
  SaveLeader(SaveTask& task, SaveMeeting& meeting, std::function<void()> begin_commit)
      : task_(task), meeting_(meeting), begin_commit_(std::move(begin_commit)) {}

  // Its part of "made". Returns its problem.
  std::string make();
  // All that follows "written". Returns the text of "finished".
  std::string finish();
  // For a save that ends before its commit.
  void remove() const;
  // What the new checkpoint has replaced, which may take long.
  void remove_hidden();

 private:
  std::map<std::string, Manifest::File> files_written() const;
  // The manifest with the files of all sites. Absent where another leader has told of a problem.
  std::optional<Manifest> describe_all();
  std::string describe();
  void publish();
  std::string commit();

  SaveTask& task_;
  SaveMeeting& meeting_;
  const std::function<void()> begin_commit_;
  std::optional<UnfinishedStep> step_;
  int64_t sequence_ = 0;
};

}  // namespace meshrun
