// Reads a YAML document, and refuses what yaml-cpp accepts and nobody means: quotes that are never
// closed, keys that are set twice, a second document, a tree that is nested without end.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace meshrun {

// `name` names the file in errors; `holds`: "a job file holds one job". INVALID_ARGUMENT: the place
// and what is wrong there. Throws YAML::Exception where the text is not YAML.
absl::StatusOr<YAML::Node> LoadYaml(std::string_view name, const std::string& text,
                                    std::string_view holds);

}  // namespace meshrun
