#include "parallel/comm/point_to_point/gathered_comparison.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/size_table.h"

namespace meshrun {
namespace {

// The longest side of a sentence.
constexpr size_t kMaxText = 400;

// What every rank says, by rank. `own` is one-dimensional and as long on all ranks.
at::Tensor gathered(c10d::Backend& backend, at::Tensor own, const Comparison& comparison) {
  at::Tensor all = at::empty({backend.getSize() * own.numel()}, own.options());
  c10d::AllgatherOptions options;
  options.timeout = comparison.timeout;
  options.asyncOp = false;
  if (const auto work = backend._allgather_base(all, own, options)) work->wait();
  return all.view({backend.getSize(), own.numel()});
}

// Every rank's text.
std::vector<std::string> gathered_texts(c10d::Backend& backend, std::string_view own,
                                        const Comparison& comparison) {
  const at::Tensor bytes = at::zeros({static_cast<int64_t>(kMaxText + 1)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<uint8_t>(), own.data(), std::min(own.size(), kMaxText));
  const at::Tensor all = gathered(backend, bytes, comparison);
  std::vector<std::string> texts;
  const auto* text = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
  for (int rank = 0; rank < backend.getSize(); ++rank, text += kMaxText + 1) {
    texts.emplace_back(text);
  }
  return texts;
}

std::string name_of(const c10d::Backend& backend, const Comparison& comparison) {
  return fmt::format("{} of group \"{}\"", comparison.row.call, backend.getGroupUid());
}

}  // namespace

bool compares_by_gathering() {
  const char* check = std::getenv("MESHRUN_CHECK_COLLECTIVES");
  return check == nullptr || std::string_view(check) != "0";
}

void compare_by_gathering(c10d::Backend& backend, const Comparison& comparison) {
  const auto size = static_cast<size_t>(backend.getSize());
  const size_t numbers = 2 + 2 * size;
  const bool has_problem = !comparison.problem.empty();
  const at::Tensor own = at::zeros({static_cast<int64_t>(numbers)}, at::kLong);
  int64_t* const mine = own.mutable_data_ptr<int64_t>();
  mine[0] = static_cast<int64_t>(comparison.digest);
  mine[1] = has_problem ? 1 : 0;
  if (!has_problem) {
    std::copy_n(comparison.row.sent.begin(), size, mine + 2);
    std::copy_n(comparison.row.expected.begin(), size, mine + 2 + size);
  }
  const at::Tensor all = gathered(backend, own, comparison);
  const int64_t* const first = all.const_data_ptr<int64_t>();

  std::optional<size_t> wrong, other;
  std::vector<SizeRow> rows;
  for (size_t rank = 0; rank < size; ++rank) {
    const int64_t* const its = first + rank * numbers;
    if (!wrong && its[1] != 0) wrong = rank;
    if (!other && its[0] != first[0]) other = rank;
    rows.push_back({.sent = {its + 2, size}, .expected = {its + 2 + size, size}});
  }
  if (wrong) {
    const auto texts =
        gathered_texts(backend, has_problem ? comparison.problem : comparison.what, comparison);
    throw CollectiveArgumentError(fmt::format("{} has wrong arguments on rank {}: {}",
                                              name_of(backend, comparison), *wrong, texts[*wrong]));
  }
  if (other) {
    const auto texts = gathered_texts(backend, comparison.what, comparison);
    throw CollectiveMismatchError(
        fmt::format("Ranks disagree on {}: rank 0 called {}; rank {} called {}. No tensor was "
                    "written, and the group can still be used.",
                    name_of(backend, comparison), texts[0], *other, texts[*other]));
  }
  if (const std::optional<SizeDifference> found = first_difference(rows)) {
    throw CollectiveMismatchError(
        fmt::format("Ranks disagree on the sizes of {}: {}. No tensor was written, and the group "
                    "can still be used.",
                    name_of(backend, comparison), found->words));
  }
}

}  // namespace meshrun
