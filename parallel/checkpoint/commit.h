// The job's checkpoint right, as the coordinator grants it: a checkpoint that lies complete under a
// temporary name is committed by a compare-and-set, and renamed only then. A writer of an older
// generation is refused, whatever it believes. Outside meshrun every commit is granted.
//
// Threads: any. Only rank 0 commits, and asks for commits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "agent/agent.h"
#include "parallel/checkpoint/step_directories.h"

namespace meshrun {

class CommitRight {
 public:
  // Right to commit the checkpoints of `directory`. `agent` is null outside meshrun.
  CommitRight(std::shared_ptr<agent::Agent> agent, const std::string& directory);

  // Worker or host, number of the save and generation, which make a temporary name unique.
  std::string writer(const std::string& save) const;
  uint64_t generation() const { return generation_; }
  // The newest commit; absent: there is none, or nobody keeps them.
  std::optional<agent::Checkpoint> newest() const;
  // Raises CommitRefused where another generation has the right; std::runtime_error where the
  // coordinator cannot be reached.
  void commit(int64_t step, const std::string& digest, const std::string& temporary) const;

 private:
  std::shared_ptr<agent::Agent> agent_;
  std::string name_;
  std::string host_;
  uint64_t generation_ = 0;
};

// Right of this process, in the world that it is in.
CommitRight right_of(const std::string& path);
// `save`: the save's number.
StepWriter writer_of(const CommitRight& right, const std::string& save);

// Gives the job's newest checkpoint its own name, if its writer died before it did.
void finish_committed(const std::string& path, const CommitRight& right);

// The same on the rank that leads site 0 of several (sites.h). Returns what finish_as_told() needs
// to give the job's newest checkpoint its name at another site, too. Where nobody keeps commits,
// one that has its name at site 0 is committed.
std::string finish_and_tell(const std::string& path, const CommitRight& right);
void finish_as_told(const std::string& path, const std::string& told);

}  // namespace meshrun
