// Turns the absl::Status of units without LibTorch into an exception; the only place that does.
// Headers that programs outside this repository include leave it out: those programs need no
// abseil.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun {

template <typename ErrorType>
void throw_if_error(const absl::Status& status) {
  if (!status.ok()) throw ErrorType(std::string(status.message()));
}

template <typename ErrorType, typename T>
T value_or_throw(absl::StatusOr<T> result) {
  throw_if_error<ErrorType>(result.status());
  return *std::move(result);
}

}  // namespace meshrun
