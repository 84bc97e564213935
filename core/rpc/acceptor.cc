#include "core/rpc/acceptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "core/log.h"
#include "core/os/tcp_listeners.h"
#include "core/status.h"

namespace meshrun::rpc {
namespace {

// What may wait in the kernel of one connection. gRPC takes all of it at once, and others have
// their turn after it: 6 MB of headers would keep them waiting for a second.
constexpr int kReceiveBytes = 64 << 10;
constexpr size_t kOtherDescriptors = 256;
// From one listener, before the ends of connections are looked at.
constexpr int kAcceptedAtOnce = 64;
constexpr std::chrono::seconds kBetweenWarnings(10);
constexpr std::chrono::milliseconds kExhaustedPause(50);
// What a flood is at least, at a hundred bytes a call. A handshake and a first call have less.
constexpr double kBusyBytes = 32 << 10;
constexpr double kBusyBytesPerSecond = 64 << 10;
// Between two looks that can be compared.
constexpr double kLeastSeconds = 0.05;
constexpr double kMostSeconds = 2;

size_t LimitOfDescriptors() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return 1024;
  return files.rlim_cur;
}

Acceptor::Limits Completed(Acceptor::Limits limits) {
  if (limits.in_all == 0) {
    const size_t descriptors = std::max(LimitOfDescriptors(), 2 * kOtherDescriptors);
    limits.in_all = (descriptors - kOtherDescriptors) / 2;
  }
  if (limits.per_owner == 0) limits.per_owner = std::max<size_t>(limits.in_all / 8, 32);
  limits.unproven = std::min(limits.unproven, std::max<size_t>(limits.in_all / 2, 1));
  return limits;
}

// gRPC writes the brackets and the percent of an IPv6 address as %XX.
std::string WithoutPercents(std::string_view peer) {
  std::string text;
  text.reserve(peer.size());
  for (size_t i = 0; i < peer.size(); ++i) {
    unsigned byte = 0;
    const char* const digits = peer.data() + i + 1;
    if (peer[i] == '%' && i + 2 < peer.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      text += static_cast<char>(byte);
      i += 2;
    } else {
      text += peer[i];
    }
  }
  return text;
}

void SetOption(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof value);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const std::string& address,
                                                           const Limits& limits) {
  MESHRUN_ASSIGN_OR_RETURN(os::TcpListeners listeners, os::ListenOnTcp(address, kReceiveBytes));
  return std::unique_ptr<Acceptor>(
      new Acceptor(limits, std::move(listeners.sockets), listeners.port));
}

Acceptor::Acceptor(const Limits& limits, std::vector<os::UniqueFd> listeners, int port)
    : limits_(Completed(limits)), listeners_(std::move(listeners)), port_(port) {}

void Acceptor::Serve(grpc::ServerBuilder& builder,
                     std::shared_ptr<grpc::ServerCredentials> credentials) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  server_ =
      builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, std::move(credentials));
}

void Acceptor::Start() {
  events_ = os::UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  stop_ = os::UniqueFd(::eventfd(0, EFD_CLOEXEC));
  const auto watch = [this](int fd) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event);
  };
  watch(stop_.get());
  for (const os::UniqueFd& listener : listeners_) watch(listener.get());
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof one) < 0) return;
  thread_.join();
  MutexLock lock(mu_);
  // Their ends are the server's from here on.
  connections_.clear();
  unproven_.clear();
  addresses_.clear();
  owners_.clear();
}

void Acceptor::Run() {
  std::array<epoll_event, 256> ready{};
  while (true) {
    const int count =
        ::epoll_wait(events_.get(), ready.data(), static_cast<int>(ready.size()), /*timeout=*/-1);
    for (int i = 0; i < count; ++i) {
      const int fd = ready[i].data.fd;
      if (fd == stop_.get()) return;
      const bool listens = std::any_of(listeners_.begin(), listeners_.end(),
                                       [fd](const auto& listener) { return listener.get() == fd; });
      if (listens) {
        for (int n = 0; n < kAcceptedAtOnce && AcceptOne(fd); ++n) {
        }
      } else {
        MutexLock lock(mu_);
        Forget(fd);
      }
    }
  }
}

bool Acceptor::AcceptOne(int listener) {
  auto [socket, from, may_be_more, exhausted] = os::Accept(listener);
  if (exhausted) OnExhausted();
  if (!socket) return may_be_more;
  SetOption(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  os::Peer peer = os::PeerOf(from);
  if (!Admit(socket, std::move(peer.address), std::move(peer.whole))) {
    // A reset, not a wait in FIN_WAIT.
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    return true;
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener;
  connection.fd = socket.release();
  server_->HandleNewConnection(&connection);
  return true;
}

bool Acceptor::Admit(const os::UniqueFd& socket, std::string address, std::string peer) {
  // gRPC pings connections with a call alone: a host that was switched off leaves the others.
  SetOption(socket.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, 60);
  SetOption(socket.get(), IPPROTO_TCP, TCP_KEEPINTVL, 15);
  SetOption(socket.get(), IPPROTO_TCP, TCP_KEEPCNT, 4);
  os::UniqueFd second(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  MutexLock lock(mu_);
  Address& of = addresses_[address];
  // Says only that the connection has ended, also by gRPC, which shuts it down.
  epoll_event event{.events = EPOLLRDHUP, .data = {.fd = second.get()}};
  const bool watched =
      second && ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, second.get(), &event) == 0;
  if (!watched || of.open >= limits_.per_address || connections_.size() >= limits_.in_all) {
    if (watched) ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, second.get(), nullptr);
    ++counts_.refused;
    ++untold_refused_;
    untold_address_ = address;
    if (of.open == 0) addresses_.erase(address);
    TellRefusals();
    return false;
  }
  if (of.unproven.size() >= limits_.unproven_per_address) {
    CloseOldest(of);
  } else if (unproven_.size() >= limits_.unproven) {
    CloseOldestOfAll();
  }
  const int key = second.get();
  ++of.open;
  of.unproven.push_back(key);
  unproven_[peer] = key;
  connections_[key] = {.socket = std::move(second),
                       .address = std::move(address),
                       .peer = std::move(peer),
                       .place = std::prev(of.unproven.end())};
  return true;
}

void Acceptor::CloseOldest(Address& address) {
  const int key = address.unproven.front();
  Connection& connection = connections_.at(key);
  StopsWaiting(connection, key);
  Close(key, connection);
}

void Acceptor::CloseOldestOfAll() {
  const auto most =
      std::max_element(addresses_.begin(), addresses_.end(), [](const auto& a, const auto& b) {
        return a.second.unproven.size() < b.second.unproven.size();
      });
  if (most != addresses_.end() && !most->second.unproven.empty()) CloseOldest(most->second);
}

void Acceptor::StopsWaiting(Connection& connection, int key) {
  addresses_.at(connection.address).unproven.erase(connection.place);
  connection.waits = false;
  // Another connection may have the port by now.
  const auto by_peer = unproven_.find(connection.peer);
  if (by_peer != unproven_.end() && by_peer->second == key) unproven_.erase(by_peer);
}

void Acceptor::Forget(int key) {
  // Closing our descriptor would not do it: gRPC's is of the same socket.
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, key, nullptr);
  const auto found = connections_.find(key);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  const auto address = addresses_.find(connection.address);
  if (connection.waits) StopsWaiting(connection, key);
  if (!connection.owner.empty() && --owners_[connection.owner] == 0) {
    owners_.erase(connection.owner);
  }
  if (--address->second.open == 0) addresses_.erase(address);
  connections_.erase(found);
}

void Acceptor::OnExhausted() {
  {
    MutexLock lock(mu_);
    ++counts_.refused;
    ++untold_refused_;
    untold_address_ = "anybody";
    TellRefusals();
    CloseOldestOfAll();
  }
  std::this_thread::sleep_for(kExhaustedPause);
}

void Acceptor::TellRefusals() {
  const auto now = std::chrono::steady_clock::now();
  if (told_at_ != std::chrono::steady_clock::time_point() && now - told_at_ < kBetweenWarnings) {
    return;
  }
  told_at_ = now;
  log::Warning("too many connections: those that make no call are closed, and new ones refused",
               {{"closed", std::exchange(untold_closed_, 0)},
                {"refused", std::exchange(untold_refused_, 0)},
                {"last_address", untold_address_},
                {"open", connections_.size()},
                {"at_most", limits_.in_all}});
}

void Acceptor::CloseBusiest(std::string_view owner) {
  const auto now = std::chrono::steady_clock::now();
  MutexLock lock(mu_);
  const double seconds = std::chrono::duration<double>(now - looked_at_).count();
  if (seconds < kLeastSeconds) return;
  const bool compares = seconds < kMostSeconds;
  const double busy = std::max(kBusyBytes, kBusyBytesPerSecond * seconds);
  looked_at_ = now;
  // The owner's own first: whether an unproven one is his, nobody knows.
  std::vector<int> own;
  std::vector<int> unproven;
  for (auto& [key, connection] : connections_) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(key, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    const uint64_t received = info.tcpi_bytes_received;
    const auto more = static_cast<double>(received - std::exchange(connection.received, received));
    if (!compares || more < busy) continue;
    if (connection.owner == owner) own.push_back(key);
    if (connection.waits) unproven.push_back(key);
  }
  for (const int key : own.empty() ? unproven : own) Close(key, connections_.at(key));
}

void Acceptor::Close(int key, const Connection& connection) {
  // gRPC finds it ended, and so does Run.
  ::shutdown(key, SHUT_RDWR);
  ++counts_.closed;
  ++untold_closed_;
  untold_address_ = connection.address;
  TellRefusals();
}

void Acceptor::Prove(std::string_view peer, std::string_view owner) {
  MutexLock lock(mu_);
  const auto found = unproven_.find(WithoutPercents(peer));
  if (found == unproven_.end()) return;
  const int key = found->second;
  Connection& connection = connections_.at(key);
  StopsWaiting(connection, key);
  if (owner.empty()) return;
  connection.owner = owner;
  // Nobody is to have all there are.
  if (++owners_[connection.owner] > limits_.per_owner) Close(key, connection);
}

Acceptor::Counts Acceptor::counts() const {
  MutexLock lock(mu_);
  Counts counts = counts_;
  counts.open = connections_.size();
  counts.unproven = unproven_.size();
  return counts;
}

}  // namespace meshrun::rpc
