#include "parallel/base/size_table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun {
namespace {

// At most kShown of them.
std::string words_of(std::span<const int64_t> sizes) {
  constexpr size_t kShown = 16;
  const std::string more =
      sizes.size() > kShown ? fmt::format(", ... {} in all", sizes.size()) : "";
  return fmt::format("{}{}", fmt::join(sizes.first(std::min(sizes.size(), kShown)), ", "), more);
}

}  // namespace

std::optional<SizeDifference> first_difference(std::span<const SizeRow> rows) {
  for (size_t sender = 0; sender < rows.size(); ++sender) {
    for (size_t receiver = 0; receiver < rows.size(); ++receiver) {
      const SizeRow& from = rows[sender];
      const SizeRow& to = rows[receiver];
      if (sender == receiver || !from.is_known || !to.is_known) continue;
      const int64_t sent = from.sent[receiver], expected = to.expected[sender];
      if (sent * from.sent_slice == expected * to.expected_slice) continue;
      std::string words =
          sent == expected
              ? fmt::format(
                    "rank {} sends {} slices of {} elements to rank {}, which expects slices of {}",
                    sender, sent, from.sent_slice, receiver, to.expected_slice)
              : fmt::format(
                    "rank {} sends {} to rank {}, which expects {} (rank {} sends [{}] to the "
                    "ranks; rank {} expects [{}] of them)",
                    sender, sent, receiver, expected, sender, words_of(from.sent), receiver,
                    words_of(to.expected));
      return SizeDifference{static_cast<int>(sender), static_cast<int>(receiver), std::move(words)};
    }
  }
  return std::nullopt;
}

}  // namespace meshrun
