// A line for each change of a job's world while it is watched. Pure.
#pragma once

#include <map>
#include <string>

#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

class WorldChanges {
 public:
  // The job as it is now. Returns the line to show when a generation runs on other nodes, or with
  // another number of ranks, than the last one that ran; else nothing.
  std::string Update(const v1::Job& job);

 private:
  uint64_t generation_ = 0;
  uint32_t world_size_ = 0;
  // Ranks of each node.
  std::map<std::string, int> nodes_;
  // Why the last generation ended; empty: not known.
  std::string why_;
};

}  // namespace meshrun::client
