// Named statements at which a rank ends itself, so that a test decides between which two statements
// it is killed.
//
//   MESHRUN_KILL_AT="1:3:forward 0:5:average"    RANK:STEP:STATEMENT; the n-th entry holds in
//                                                generation n, so that a new process in the killed
//                                                rank's place comes past the same statement
//   MESHRUN_KILL_AT="0:end:barrier"              STEP is "end" after the loop
//   MESHRUN_KILL_AT="2:9:forward:stop"           SIGSTOP in place of SIGKILL, for a test that then
//                                                ends the rank's whole host
//
// Threads: any, after enter().
#pragma once

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace meshrun::acceptance {

class KillPoints {
 public:
  KillPoints() {
    const char* const text = std::getenv("MESHRUN_KILL_AT");
    std::istringstream entries(text == nullptr ? "" : text);
    for (std::string entry; entries >> entry;) entries_.push_back(entry);
  }

  // This process's place from now on.
  void enter(uint64_t generation, int rank) {
    entry_ = generation >= 1 && generation <= entries_.size()
                 ? entries_[static_cast<size_t>(generation - 1)]
                 : std::string();
    prefix_ = std::to_string(rank) + ":";
  }

  // Does not return where this rank ends here.
  void pass(int64_t step, const std::string& statement) const {
    pass_named(std::to_string(step) + ":" + statement);
  }
  void pass_at_end(const std::string& statement) const { pass_named("end:" + statement); }

  // Whether this rank, or some rank, is to end at this statement after the loop.
  bool is_due_at_end(const std::string& statement) const {
    return entry_ == prefix_ + "end:" + statement;
  }
  bool is_used_at_end(const std::string& statement) const {
    return entry_.ends_with(":end:" + statement);
  }

 private:
  void pass_named(const std::string& name) const {
    if (entry_ == prefix_ + name) kill(getpid(), SIGKILL);
    if (entry_ == prefix_ + name + ":stop") kill(getpid(), SIGSTOP);
  }

  std::vector<std::string> entries_;
  std::string entry_;   // of this generation
  std::string prefix_;  // of this rank's entries
};

}  // namespace meshrun::acceptance
