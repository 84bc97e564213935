#include "parallel/comm/ucx/engine/transport/rails_transport.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "core/os/fd.h"

namespace meshrun::ucx {
namespace {

constexpr std::string_view kMark = "\xd1rails\x01\n";
constexpr size_t kLengthBytes = 2;

struct RailsAddress {
  std::vector<std::string_view> rails;
  std::string_view host;
};

std::string serialize(const std::vector<std::unique_ptr<Transport>>& rails,
                      const std::string& host) {
  std::string parts, lengths;
  const auto add = [&](const std::string& part) {
    parts += part;
    lengths += static_cast<char>(part.size() & 0xff);
    lengths += static_cast<char>(part.size() >> 8);
  };
  for (const auto& rail : rails) add(rail->address());
  add(host);
  return parts + lengths + static_cast<char>(rails.size()) + std::string(kMark);
}

// Absent: of a transport without rails.
std::optional<RailsAddress> parse(std::string_view address) {
  if (!address.ends_with(kMark)) return std::nullopt;
  address.remove_suffix(kMark.size());
  if (address.empty()) return std::nullopt;
  const size_t rails = static_cast<unsigned char>(address.back());
  address.remove_suffix(1);
  const size_t bytes = (rails + 1) * kLengthBytes;
  if (rails == 0 || address.size() < bytes) return std::nullopt;
  const std::string_view lengths = address.substr(address.size() - bytes);
  address.remove_suffix(bytes);
  RailsAddress parsed;
  for (size_t i = 0; i <= rails; ++i) {
    const auto byte = [&](size_t k) -> size_t {
      return static_cast<unsigned char>(lengths[i * kLengthBytes + k]);
    };
    const size_t length = byte(0) | byte(1) << 8;
    if (address.size() < length) return std::nullopt;
    (i < rails ? parsed.rails.emplace_back() : parsed.host) = address.substr(0, length);
    address.remove_prefix(length);
  }
  if (!address.empty()) return std::nullopt;
  return parsed;
}

class RailsTransport final : public Transport {
 public:
  RailsTransport(std::vector<std::unique_ptr<Transport>> rails, std::string host)
      : rails_(std::move(rails)),
        host_(std::move(host)),
        address_(serialize(rails_, host_)),
        peer_of_(rails_.size()) {}
  ~RailsTransport() override { close(); }

  RailsTransport(const RailsTransport&) = delete;
  RailsTransport& operator=(const RailsTransport&) = delete;

  absl::Status start();

  const std::string& address() const override { return address_; }
  PeerId connect(std::string_view address) override;
  bool send(PeerId to, Tag tag, std::span<const std::byte> bytes, Request& request) override;
  void receive(PeerId from, Tag tag, Tag mask, std::span<std::byte> bytes,
               Request& request) override;
  void cancel(Request& receive) override { rails_[receive.rail]->cancel(receive); }
  bool progress(Completions& completions) override;
  bool arm() override {
    return std::ranges::all_of(rails_, [](const auto& rail) { return rail->arm(); });
  }
  int event_fd() const override { return events_.get(); }
  void wake() override { rails_.front()->wake(); }
  void close() override {
    for (const auto& rail : rails_) rail->close();
  }

 private:
  struct Peer {
    std::vector<PeerId> ids;  // by rail; where it is one, the first leads to all of it
    bool is_broken = false;
  };

  Peer& at(PeerId id) { return peers_[static_cast<size_t>(id)]; }
  static int rail_to(const Peer& peer, Tag tag) {
    return peer.ids.size() == 1 ? 0 : rail_of(tag, static_cast<int>(peer.ids.size()));
  }
  // Those from `first` on are as `rail` calls them.
  void tell_once(size_t rail, std::vector<BrokenPeer>& broken, size_t first);

  const std::vector<std::unique_ptr<Transport>> rails_;
  const std::string host_, address_;
  os::UniqueFd events_;
  std::vector<Peer> peers_;                        // by PeerId, which is the first rail's
  std::vector<std::map<PeerId, PeerId>> peer_of_;  // by rail, of what it calls the peer
};

absl::Status RailsTransport::start() {
  const auto error = [](const char* call) {
    return absl::UnavailableError(fmt::format("{}: {}", call, std::strerror(errno)));
  };
  events_ = os::UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (events_.get() < 0) return error("epoll_create1");
  for (const auto& rail : rails_) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, rail->event_fd(), &event) != 0) {
      return error("epoll_ctl");
    }
  }
  return absl::OkStatus();
}

PeerId RailsTransport::connect(std::string_view address) {
  const std::optional<RailsAddress> parsed = parse(address);
  const PeerId id = rails_.front()->connect(parsed ? parsed->rails.front() : address);
  if (static_cast<size_t>(id) < peers_.size()) return id;
  Peer& peer = peers_.emplace_back();
  const bool has_all = parsed && parsed->host != host_ && parsed->rails.size() == rails_.size();
  for (size_t rail = 0; rail < (has_all ? rails_.size() : 1); ++rail) {
    peer.ids.push_back(rail == 0 ? id : rails_[rail]->connect(parsed->rails[rail]));
    peer_of_[rail][peer.ids.back()] = id;
  }
  return id;
}

bool RailsTransport::send(PeerId to, Tag tag, std::span<const std::byte> bytes, Request& request) {
  const Peer& peer = at(to);
  if (peer.is_broken) {
    request.status = MessageStatus::kFailed;
    return true;
  }
  const auto rail = static_cast<size_t>(rail_to(peer, tag));
  return rails_[rail]->send(peer.ids[rail], tag, bytes, request);
}

void RailsTransport::receive(PeerId from, Tag tag, Tag mask, std::span<std::byte> bytes,
                             Request& request) {
  const int rail = from == kAnyPeer || mask != kExactly ? 0 : rail_to(at(from), tag);
  request.rail = static_cast<uint8_t>(rail);
  rails_[request.rail]->receive(kAnyPeer, tag, mask, bytes, request);
}

bool RailsTransport::progress(Completions& completions) {
  bool moved = false;
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    const size_t told = completions.broken.size();
    moved |= rails_[rail]->progress(completions);
    tell_once(rail, completions.broken, told);
  }
  return moved;
}

void RailsTransport::tell_once(size_t rail, std::vector<BrokenPeer>& broken, size_t first) {
  size_t kept = first;
  for (size_t i = first; i < broken.size(); ++i) {
    const PeerId id = peer_of_[rail].at(broken[i].peer);
    if (std::exchange(at(id).is_broken, true)) continue;
    BrokenPeer told{id, std::move(broken[i].reason)};
    broken[kept++] = std::move(told);
  }
  broken.resize(kept);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> create_rails_transport(
    std::vector<std::unique_ptr<Transport>> rails, std::string host) {
  auto transport = std::make_unique<RailsTransport>(std::move(rails), std::move(host));
  if (absl::Status status = transport->start(); !status.ok()) return status;
  return transport;
}

}  // namespace meshrun::ucx
