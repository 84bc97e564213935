// The job's checkpoint right, as the coordinator grants it: a checkpoint that lies complete under a
// temporary name is committed by a compare-and-set, and renamed only then. A writer of an older
// generation is refused, whatever it believes. Outside meshrun every commit is granted.
//
// Threads: one at a time. Only rank 0 commits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "agent/agent.h"
#include "parallel/checkpoint/step_directories.h"

namespace meshrun {

class CommitRight {
 public:
  // Right to commit the checkpoints of `directory`. `agent` is null outside meshrun.
  CommitRight(agent::Agent* agent, const std::string& directory);

  // Host and generation of this writer, which make its temporary names unique.
  const std::string& writer() const { return writer_; }
  uint64_t generation() const { return generation_; }
  // The newest commit; absent: there is none, or nobody keeps them.
  std::optional<agent::Checkpoint> newest() const;
  // Raises CommitRefused where another generation has the right; std::runtime_error where the
  // coordinator cannot be reached.
  void commit(int64_t step, const std::string& digest, const std::string& temporary) const;

 private:
  agent::Agent* const agent_;
  std::string name_;
  std::string writer_;
  uint64_t generation_ = 0;
};

}  // namespace meshrun
