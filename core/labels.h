// Labels of nodes, and the constraints that jobs put on them. Pure.
//
//   zone=a     the label zone has this value        nvlink   there is such a label
//   zone!=a    it has another value, or none        !spot    there is none
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/map.h"

namespace meshrun {

using Labels = google::protobuf::Map<std::string, std::string>;

// "zone=a" or "nvlink" (its value is empty). Names and values: letters, digits, '.', '_', '-' and
// '/', at most 63 characters. INVALID_ARGUMENT shows the right form.
absl::StatusOr<std::pair<std::string, std::string>> ParseLabel(std::string_view text);

// INVALID_ARGUMENT shows the four forms.
absl::Status CheckConstraint(std::string_view text);

// Whether a node with these labels satisfies a constraint that CheckConstraint accepts.
bool Satisfies(const Labels& labels, std::string_view constraint);

}  // namespace meshrun
