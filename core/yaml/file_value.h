// One value of a job file, with its place for errors: "job.yaml:3:17: procs_per_node: ...".
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun {

// INVALID_ARGUMENT at a place of the file, counted from 1.
absl::Status WrongIn(std::string_view file, const YAML::Mark& mark, std::string_view what);

struct FileValue {
  std::string_view file;
  std::string key;
  YAML::Node node;

  // INVALID_ARGUMENT: the place of this value or of a part of it, the key, and what is wrong.
  absl::Status Wrong(std::string_view what) const { return WrongAt(node, what); }
  absl::Status Wrong(const absl::Status& status) const;
  absl::Status WrongAt(const YAML::Node& at, std::string_view what) const;

  // A text with at least one character.
  absl::StatusOr<std::string> Text(std::string_view what_to_write) const;
};

}  // namespace meshrun
