// Who asked for which change, and what was refused to whom: a durable record of each, in the order
// in which the calls were taken.
//
// Changes are calls of clients that change jobs, nodes or the policy, whatever became of them, and
// hosts that join. Of other calls those are recorded that the caller may not make.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/refusal_limit.h"
#include "coordinator/state_machine/row_log.h"
#include "meshrun/v1/audit.pb.h"

namespace meshrun::coordinator {

class Audit {
 public:
  using Records = RowLog<v1::AuditRecord, &v1::AuditRecord::at>;

  Audit(Context& context, JobTable& jobs) : context_(context), jobs_(jobs) {}

  // The event has been stepped. `outcome`: its answer; absent: it has none yet, and none of these
  // is an error. `submitted`: the job that it made; empty: none.
  void OnStepped(const v1::StateEvent& event, const std::optional<absl::Status>& outcome,
                 const std::string& submitted);
  // The event that is being stepped changes nothing: the same was asked for before.
  void IsRepeated() { is_repeated_ = true; }

  void Restore(const v1::StateRow& row) { records_.Restore(context_, row); }
  void ContinueAfter(uint64_t sequence) { records_.ContinueAfter(sequence); }
  const Records& records() const { return records_; }

 private:
  std::string TargetOf(const v1::StateEvent& event) const;

  Context& context_;
  JobTable& jobs_;
  Records records_{v1::STATE_TABLE_AUDIT};
  RefusalLimit limit_;
  bool is_repeated_ = false;
};

}  // namespace meshrun::coordinator
