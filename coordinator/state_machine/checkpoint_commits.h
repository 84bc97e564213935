// The right to make a checkpoint the newest one: a compare-and-set per name of a job, which
// outlives generations. A rank of an older generation is refused, however late it comes.
#pragma once

#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/rendezvous_store.h"

namespace meshrun::coordinator {

class CheckpointCommits {
 public:
  static constexpr int kMaxNames = 16;
  static constexpr size_t kMaxNameBytes = 200;

  CheckpointCommits(Context& context, JobTable& jobs, RendezvousStore& store)
      : context_(context), jobs_(jobs), store_(store) {}

  void Commit(uint64_t call_id, const v1::CommitCheckpointRequest& request);
  void Get(uint64_t call_id, const v1::GetCheckpointRequest& request);

 private:
  Context& context_;
  JobTable& jobs_;
  RendezvousStore& store_;
};

}  // namespace meshrun::coordinator
