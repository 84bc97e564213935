// Early return on errors, for functions that return absl::Status or absl::StatusOr.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun {

// The same status with `context: ` in front of its message.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), std::string(context) + ": " + std::string(status.message()));
}

}  // namespace meshrun

#define MESHRUN_RETURN_IF_ERROR(expr)                                                           \
  do {                                                                                          \
    if (::absl::Status meshrun_status_ = (expr); !meshrun_status_.ok()) return meshrun_status_; \
  } while (false)

#define MESHRUN_CONCAT_INNER_(a, b) a##b
#define MESHRUN_CONCAT_(a, b) MESHRUN_CONCAT_INNER_(a, b)

// MESHRUN_ASSIGN_OR_RETURN(auto value, FunctionThatReturnsStatusOr());
#define MESHRUN_ASSIGN_OR_RETURN(lhs, expr) \
  MESHRUN_ASSIGN_OR_RETURN_IMPL_(MESHRUN_CONCAT_(meshrun_or_, __LINE__), lhs, expr)
#define MESHRUN_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp.ok()) return std::move(tmp).status();       \
  lhs = *std::move(tmp)
