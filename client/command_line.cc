#include "client/command_line.h"

#include <fmt/format.h>

#include <utility>

namespace meshrun::client {

absl::StatusOr<std::vector<std::string>> SplitCommandLine(std::string_view line) {
  std::vector<std::string> parts;
  std::string part;
  bool in_part = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else if (c == '\\' && quote == '"' && i + 1 < line.size() &&
                 (line[i + 1] == '"' || line[i + 1] == '\\' || line[i + 1] == '$')) {
        part += line[++i];
      } else {
        part += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_part = true;
    } else if (c == '\\' && i + 1 < line.size()) {
      part += line[++i];
      in_part = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (in_part) parts.push_back(std::exchange(part, ""));
      in_part = false;
    } else if (std::string_view("|&;<>`$").find(c) != std::string_view::npos) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' would need a shell: quote it, or write the command as a list: [sh, -c, \"...\"]",
          c));
    } else {
      part += c;
      in_part = true;
    }
  }
  if (quote != 0) {
    return absl::InvalidArgumentError(fmt::format("a {} is never closed", quote));
  }
  if (in_part) parts.push_back(part);
  return parts;
}

}  // namespace meshrun::client
