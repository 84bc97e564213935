#include "coordinator/state_store/state_store.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "coordinator/state_store/meta_keys.h"

namespace meshrun::coordinator {

absl::Status StateStore::ForEachRowOf(v1::StateTable table, const TakeRow& take) {
  return ForEachRow([&](v1::StateRow row) {
    if (row.table() == table) return take(std::move(row));
    return row.table() < table;
  });
}

absl::StatusOr<std::vector<v1::StateRow>> StateStore::Load() {
  std::vector<v1::StateRow> rows;
  const absl::Status status = ForEachRow([&rows](v1::StateRow row) {
    rows.push_back(std::move(row));
    return true;
  });
  if (!status.ok()) return status;
  return rows;
}

v1::StateRow TermRow(uint64_t term) { return MetaRow("term", std::to_string(term)); }

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

absl::Status CheckLimits(const std::vector<v1::StateRow>& rows, const StateStore::Limits& limits) {
  size_t bytes = 0;
  for (const v1::StateRow& row : rows) bytes += row.key().size() + row.value().size();
  if (rows.size() <= limits.rows && bytes <= limits.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("a transaction of {} rows and {} bytes; at most {} and {} are taken", rows.size(),
                  bytes, limits.rows, limits.bytes));
}

}  // namespace meshrun::coordinator
