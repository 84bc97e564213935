#include "parallel/manager/bootstrap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun {
namespace {

// A text of limited length, with its end.
template <size_t kBytes>
using Text = std::array<char, kBytes>;

template <size_t kBytes>
void put(Text<kBytes>& to, const std::string& text) {
  to.fill('\0');
  std::copy_n(text.data(), std::min(text.size(), kBytes - 1), to.data());
}

template <size_t kBytes>
std::string take(const Text<kBytes>& from) {
  return {from.data(), std::find(from.begin(), from.end(), '\0')};
}

// As they travel: every rank is the same build on the same kind of processor.
struct ReportBytes {
  int32_t joined_rank;
  int32_t joined_size;
  int32_t node_rank;
  int32_t launched_local_rank;
  Text<504> problem;
};

constexpr size_t kMostAddresses = 16;

struct MeetingBytes {
  int32_t port;
  uint32_t addresses;
  Text<64> token;
  Text<504> problem;
  std::array<Text<64>, kMostAddresses> address;
};

}  // namespace

std::string problem_of(const Bootstrap& bootstrap) {
  const auto& [method, rank, size, local_rank, local_size, node, broadcast, all_gather] = bootstrap;
  if (size < 1 || rank < 0 || rank >= size) {
    return fmt::format("rank {} of a world of {}: ranks are 0 to the size - 1", rank, size);
  }
  if (local_size < 1 || local_size > size || local_rank < 0 || local_rank >= local_size) {
    return fmt::format("local rank {} of {} in a world of {}", local_rank, local_size, size);
  }
  if (node < 0 || node >= size) return fmt::format("node {} of a world of {} ranks", node, size);
  if (!broadcast || !all_gather) return "no function to broadcast, or none to gather";
  return "";
}

std::vector<BootstrapReport> exchange_reports(const Bootstrap& bootstrap,
                                              const BootstrapReport& own) {
  ReportBytes bytes{own.joined_rank, own.joined_size, own.node_rank, own.launched_local_rank, {}};
  put(bytes.problem, own.problem);
  std::vector<ReportBytes> all(static_cast<size_t>(bootstrap.world_size));
  bootstrap.all_gather(&bytes, all.data(), sizeof(bytes));
  std::vector<BootstrapReport> reports;
  for (const ReportBytes& one : all) {
    reports.push_back({one.joined_rank, one.joined_size, one.node_rank, one.launched_local_rank,
                       take(one.problem)});
  }
  return reports;
}

BootstrapMeeting exchange_meeting(const Bootstrap& bootstrap, const BootstrapMeeting& own) {
  const size_t count = std::min(own.addresses.size(), kMostAddresses);
  MeetingBytes bytes{own.port, static_cast<uint32_t>(count), {}, {}, {}};
  put(bytes.token, own.token);
  put(bytes.problem, own.problem);
  for (size_t i = 0; i < count; ++i) put(bytes.address[i], own.addresses[i]);
  bootstrap.broadcast(&bytes, sizeof(bytes));
  BootstrapMeeting meeting{take(bytes.problem), bytes.port, take(bytes.token), {}};
  for (size_t i = 0; i < std::min<size_t>(bytes.addresses, kMostAddresses); ++i) {
    meeting.addresses.push_back(take(bytes.address[i]));
  }
  return meeting;
}

absl::StatusOr<std::string> agree_on_address(const Bootstrap& bootstrap,
                                             const std::vector<std::string>& addresses,
                                             const std::vector<bool>& reached) {
  const size_t count = std::min({addresses.size(), reached.size(), kMostAddresses});
  uint32_t own = 0;
  for (size_t i = 0; i < count; ++i) own |= uint32_t{reached[i]} << i;
  std::vector<uint32_t> all(static_cast<size_t>(bootstrap.world_size));
  bootstrap.all_gather(&own, all.data(), sizeof(own));
  uint32_t common = (uint32_t{1} << count) - 1;
  for (const uint32_t one : all) common &= one;
  for (size_t i = 0; i < count; ++i) {
    if (common >> i & 1) return addresses[i];
  }
  // The rank that reached least.
  const auto worst = std::min_element(all.begin(), all.end(), [](uint32_t a, uint32_t b) {
    return __builtin_popcount(a) < __builtin_popcount(b);
  });
  std::vector<std::string> tried(addresses.begin(),
                                 addresses.begin() + static_cast<std::ptrdiff_t>(count));
  return absl::NotFoundError(fmt::format(
      "no address of rank 0's host is reached from all hosts: rank {} reached {} of {} ({}). Open "
      "TCP between the hosts, or start the ranks where they share a network",
      worst - all.begin(), __builtin_popcount(*worst), count, fmt::join(tried, ", ")));
}

}  // namespace meshrun
