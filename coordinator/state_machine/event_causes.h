// What each event is in the course of things, and which earlier event led to it.
//
// A job has at most one open cause: the first failure of its generation, or what somebody asked
// for. What follows until the job runs again, or has ended, is its consequence or what was done
// about it. A node has one too, from its first sign of trouble until it returns.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "meshrun/v1/job.pb.h"

namespace meshrun::coordinator {

class EventCauses {
 public:
  // Fills in the role and the cause of an event that is about to be recorded.
  void Link(v1::ClusterEvent& event);
  // An event that was linked in an earlier term.
  void Restore(const v1::ClusterEvent& event);

 private:
  void Remember(const v1::ClusterEvent& event);

  // Sequence of the open cause.
  std::unordered_map<std::string, uint64_t> of_job_;
  std::unordered_map<std::string, uint64_t> of_node_;
};

}  // namespace meshrun::coordinator
