#include "worker/generations/port_range.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/os/files.h"
#include "core/parse_integer.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

constexpr int kBlockSize = 64;
// A line has 17 bytes.
constexpr size_t kLongestFile = kBlockSize * 32;

// True when one could listen there, on every address of the host.
bool CanListen(uint16_t port) {
  const os::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(port);
  return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
         ::listen(fd.get(), 1) == 0;
}

// The ports that the kernel gives to outgoing connections.
PortInterval EphemeralPorts() {
  PortInterval out{32768, 60999};
  if (const auto content = os::ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); content.ok()) {
    uint16_t first = 0, last = 0;
    if (std::istringstream(*content) >> first >> last) out = {first, last};
  }
  return out;
}

}  // namespace

absl::StatusOr<PortInterval> ParsePortInterval(const std::string& text) {
  const std::string_view ports = text;
  const size_t dash = std::min(ports.find('-'), ports.size());
  const auto first = ParseInteger<uint16_t>(ports.substr(0, dash));
  const auto last = ParseInteger<uint16_t>(ports.substr(std::min(dash + 1, ports.size())));
  if (!first || !last || *first < 1024 || *first > *last) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a range of ports from 1024 to 65535: write 20000-29999", text));
  }
  return PortInterval{*first, *last};
}

absl::StatusOr<uint16_t> PortRange::Take() {
  for (const Block& block : blocks_) {
    if (auto port = TakeFrom(block); port.ok()) return port;
  }
  MESHRUN_RETURN_IF_ERROR(ClaimBlock());
  return TakeFrom(blocks_.back());
}

void PortRange::GiveBack(uint16_t port) {
  if (taken_.erase(port) == 0) return;
  resting_until_[port] = clock_.SteadyNow() + kRest;
  WriteRests(port);
}

void PortRange::ReadRests(const Block& block) {
  const SteadyNanos now = clock_.SteadyNow();
  const auto wall = std::chrono::floor<std::chrono::seconds>(clock_.WallNow());
  for (const os::UniqueFd& file : block.claim.files) {
    char content[kLongestFile];
    const ssize_t size = ::pread(file.get(), content, sizeof(content), 0);
    std::istringstream lines(std::string(content, std::max<ssize_t>(size, 0)));
    unsigned port = 0;
    int64_t free_at = 0;
    while (lines >> port >> free_at) {
      if (port < block.first || port > block.last) continue;
      // In use when its holder ended: the holder's ranks may still be ending.
      const auto rest = free_at == 0 ? kRest
                                     : std::clamp(std::chrono::seconds(free_at) - wall,
                                                  std::chrono::seconds(0), kRest);
      SteadyNanos& until = resting_until_[static_cast<uint16_t>(port)];
      until = std::max<SteadyNanos>(until, now + rest);
    }
  }
}

void PortRange::WriteRests(uint16_t changed) const {
  const auto block = std::find_if(blocks_.begin(), blocks_.end(), [changed](const Block& b) {
    return b.first <= changed && changed <= b.last;
  });
  // Kept from an earlier incarnation, whose block is not claimed yet.
  if (block == blocks_.end()) return;
  const SteadyNanos now = clock_.SteadyNow();
  std::string content;
  for (int port = block->first; port <= block->last; ++port) {
    if (taken_.contains(static_cast<uint16_t>(port))) {
      content += fmt::format("{} 0\n", port);
    } else if (const auto rest = resting_until_.find(static_cast<uint16_t>(port));
               rest != resting_until_.end() && rest->second > now) {
      const auto free_at =
          std::chrono::ceil<std::chrono::seconds>(clock_.WallNow() + (rest->second - now));
      content += fmt::format("{} {}\n", port, free_at.count());
    }
  }
  // If this fails, the next holder knows less; the kernel still keeps it off a port that is
  // listened on.
  for (const os::UniqueFd& file : block->claim.files) {
    (void)!::ftruncate(file.get(), 0);
    (void)!::pwrite(file.get(), content.data(), content.size(), 0);
  }
}

absl::StatusOr<uint16_t> PortRange::TakeFrom(const Block& block) {
  const SteadyNanos now = clock_.SteadyNow();
  std::erase_if(resting_until_, [now](const auto& entry) { return entry.second <= now; });
  const int size = block.last - block.first + 1;
  const int start = next_ >= block.first && next_ <= block.last ? next_ - block.first : 0;
  for (int i = 0; i < size; ++i) {
    const auto port = static_cast<uint16_t>(block.first + (start + i) % size);
    if (taken_.contains(port) || resting_until_.contains(port) || !CanListen(port)) continue;
    taken_.insert(port);
    next_ = static_cast<uint16_t>(port + 1);
    WriteRests(port);
    return port;
  }
  return absl::ResourceExhaustedError(fmt::format(
      "no free port from {} to {} for MASTER_PORT: {} in use, {} used in the last minute, by this "
      "worker or the one before it",
      block.first, block.last, taken_.size(), resting_until_.size()));
}

absl::Status PortRange::ClaimBlock() {
  MESHRUN_RETURN_IF_ERROR(locks_.Open());
  const PortInterval& all = options_.interval;
  const int count = std::max(1, (all.last - all.first + 1) / kBlockSize);
  const PortInterval ephemeral = EphemeralPorts();
  // First the blocks that no outgoing connection can be on, and that no other user seems to have.
  for (const auto& [without_guard, overlapping] :
       {std::pair(false, false), {false, true}, {true, false}, {true, true}}) {
    for (int i = 0; i < count; ++i) {
      const int index = static_cast<int>((options_.seed + i) % count);
      const auto first = static_cast<uint16_t>(all.first + index * kBlockSize);
      const auto last = static_cast<uint16_t>(std::min<int>(first + kBlockSize - 1, all.last));
      if (overlapping != (first <= ephemeral.last && last >= ephemeral.first)) continue;
      MESHRUN_ASSIGN_OR_RETURN(PortLocks::Claim claim, locks_.Try(first, last, without_guard));
      if (!claim) continue;
      blocks_.push_back({first, last, std::move(claim)});
      ReadRests(blocks_.back());
      return absl::OkStatus();
    }
  }
  return absl::ResourceExhaustedError(fmt::format(
      "every block of ports from {} to {} belongs to a worker of this host: pass another "
      "--port-range",
      all.first, all.last));
}

}  // namespace meshrun::worker
