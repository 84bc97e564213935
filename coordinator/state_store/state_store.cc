#include "coordinator/state_store/state_store.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace meshrun::coordinator {

absl::StatusOr<std::vector<v1::StateRow>> StateStore::Load() {
  std::vector<v1::StateRow> rows;
  const absl::Status status = ForEachRow([&rows](v1::StateRow row) {
    rows.push_back(std::move(row));
    return true;
  });
  if (!status.ok()) return status;
  return rows;
}

v1::StateRow TermRow(uint64_t term) {
  v1::StateRow row;
  row.set_table(v1::STATE_TABLE_META);
  row.set_key("term");
  row.set_value(std::to_string(term));
  return row;
}

absl::StatusOr<uint64_t> ParseTerm(std::string_view text) {
  uint64_t term = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, term);
  if (error != std::errc{} || stop != end) {
    return absl::DataLossError(
        fmt::format("the state is damaged: the term is '{}', which is not a number", text));
  }
  return term;
}

absl::Status CheckTerm(uint64_t stored, uint64_t term) {
  if (stored == term) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "term {} is over: another coordinator has begun term {} on this state", term, stored));
}

}  // namespace meshrun::coordinator
