#include "coordinator/leadership/not_leading.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "core/error_detail.h"

namespace meshrun::coordinator {

absl::Status NotLeading(std::string_view name, const Leadership& leadership, std::string_view why) {
  v1::ErrorDetail detail;
  detail.set_standby(true);
  std::string text = fmt::format("coordinator {} is a standby", name);
  const std::optional<Leadership::Candidate> leader = leadership.Leader();
  // It may have been this one.
  if (leader.has_value() && leader->name != name) {
    detail.set_leader(leader->address);
    text += fmt::format(": {} leads at {}", leader->name, leader->address);
  } else {
    text += ", and no coordinator leads now";
    const std::string problem = leadership.Problem();
    const std::string_view reason = problem.empty() ? why : std::string_view(problem);
    if (!reason.empty()) text += fmt::format(": {}", reason);
  }
  absl::Status status = absl::UnavailableError(text);
  SetDetail(&status, detail);
  return status;
}

}  // namespace meshrun::coordinator
