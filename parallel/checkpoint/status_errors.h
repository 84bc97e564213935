// Errors of core/checkpoint, which returns them, as exceptions of this folder.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun {

// A file of a checkpoint is truncated or damaged; the text names it.
class DamagedCheckpoint : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// DATA_LOSS and UNIMPLEMENTED raise DamagedCheckpoint, other errors std::runtime_error. `what`:
// words before the text.
inline void check_status(const absl::Status& status, const std::string& what = "") {
  if (status.ok()) return;
  const std::string text = (what.empty() ? "" : what + " ") +
                           std::string(status.message().data(), status.message().size());
  if (absl::IsDataLoss(status) || absl::IsUnimplemented(status)) throw DamagedCheckpoint(text);
  throw std::runtime_error(text);
}

template <typename Value>
Value value_of(absl::StatusOr<Value> result, const std::string& what = "") {
  check_status(result.status(), what);
  return *std::move(result);
}

}  // namespace meshrun
