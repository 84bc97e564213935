#include "core/yaml/file_value.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshrun {

absl::Status WrongIn(std::string_view file, const YAML::Mark& mark, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}:{}:{}: {}", file, std::max(mark.line, 0) + 1,
                                                std::max(mark.column, 0) + 1, what));
}

absl::Status FileValue::Wrong(const absl::Status& status) const {
  return Wrong(std::string_view(status.message().data(), status.message().size()));
}

absl::Status FileValue::WrongAt(const YAML::Node& at, std::string_view what) const {
  return WrongIn(file, at.Mark(), fmt::format("{}: {}", key, what));
}

absl::StatusOr<std::string> FileValue::Text(std::string_view what_to_write) const {
  if (!node.IsScalar() || node.Scalar().empty()) return Wrong(what_to_write);
  return node.Scalar();
}

}  // namespace meshrun
