// Where the coordinator's state survives: rows in tables (v1.StateTable), changed in atomic
// batches.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// One owner, one thread.
class StateStore {
 public:
  virtual ~StateStore() = default;

  // Every row, in the order of tables and of keys. Errors: INTERNAL, RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::vector<v1::StateRow>> Load() = 0;

  // All changes or none; durable when it returns OK. Later rows of one key win. After an error only
  // Load tells what is on disk. Errors: INTERNAL, RESOURCE_EXHAUSTED (disk full).
  virtual absl::Status Commit(const std::vector<v1::StateRow>& rows) = 0;
};

}  // namespace meshrun::coordinator
