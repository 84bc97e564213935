#include "core/http/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/certificates/certificate.h"
#include "core/error_detail.h"
#include "core/http/exchange.h"
#include "core/http/tls_context.h"
#include "core/http/wire.h"
#include "core/log.h"
#include "core/mutex.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/os/tcp_listeners.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"

namespace meshrun::http {
namespace {

using std::chrono::steady_clock;

constexpr int kReceiveBytes = 64 << 10;
constexpr int kBacklog = 1024;
constexpr std::chrono::seconds kBetweenWarnings(10);
constexpr std::chrono::milliseconds kExhaustedPause(50);
constexpr std::chrono::seconds kStreamRetry(5);
constexpr char kUnixPeer[] = "unix";

absl::StatusOr<os::UniqueFd> ListenOnUnix(const std::string& path) {
  os::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // SocketClaim has checked that it fits.
  std::memcpy(address.sun_path, path.data(), path.size());
  if (!socket ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return os::ErrnoStatus(errno, path);
  }
  return socket;
}

// The kernel sends signals of the process to its other threads, and none of a broken pipe here.
void BlockSignals() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

class RunningServer : public Server {
 public:
  RunningServer(Options options, std::unique_ptr<TlsContext> tls, rpc::SocketClaim claim,
                std::vector<os::UniqueFd> listeners, int port, std::string address)
      : options_(std::move(options)),
        tls_(std::move(tls)),
        claim_(std::move(claim)),
        listeners_(std::move(listeners)),
        port_(port),
        address_(std::move(address)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        thread_([this] { Run(); }) {}
  ~RunningServer() override { Stop(); }

  const std::string& address() const override { return address_; }
  int port() const override { return port_; }
  Counts counts() const override {
    MutexLock lock(mu_);
    return counts_;
  }
  void EndStreams() override;
  void Stop() override;

 private:
  struct Connection : ExchangeHost {
    Connection(RunningServer& in, os::UniqueFd fd, os::Peer from)
        : server(in), socket(std::move(fd)), peer(std::move(from)) {}

    const Limits& limits() const override { return server.options_.limits; }
    const Handler& handler() const override { return server.options_.handler; }
    certificates::Standing* standing() const override { return server.options_.standing; }
    void OnRequest() override { server.OnRequest(*this); }
    absl::Status OnStream() override { return server.OnStream(*this); }
    void OnStreamEnd() override { server.OnStreamEnd(*this); }

    RunningServer& server;
    const os::UniqueFd socket;
    const os::Peer peer;
    // Whose certificate it shows; set once, by its own thread.
    std::string user;
    // The rest is guarded by the server's mutex. A request of it has come.
    bool proven = false;
    // It reads a request, or waits for one.
    bool waits = true;
    // It sends an endless body.
    bool streams = false;
    // Among the counts of its address and its user: neither shut down for others nor ended.
    bool counted = true;
    bool ended = false;
    steady_clock::time_point since = steady_clock::now();
    std::thread thread;
  };

  void OnRequest(Connection& connection);
  absl::Status OnStream(Connection& connection);
  void OnStreamEnd(Connection& connection);

  void Wake();
  void Run();
  bool HasRoomForThreads() const {
    MutexLock lock(mu_);
    return connections_.size() < 2 * options_.limits.connections;
  }
  // False: nothing waits there.
  bool AcceptOne(int listener);
  void Admit(os::UniqueFd socket, os::Peer peer);
  // Shuts one of these connections down that waits for its client. False: there is none.
  bool MakeRoom(const std::function<bool(const Connection&)>& of = [](const Connection&) {
    return true;
  }) MESHRUN_REQUIRES(mu_);
  void Discount(Connection& connection) MESHRUN_REQUIRES(mu_);
  void Refuse(const std::string& address) MESHRUN_REQUIRES(mu_);
  void TellClosed(const std::string& address) MESHRUN_REQUIRES(mu_);
  // Joins the threads of connections that have ended.
  void Reap();

  // On a connection's thread.
  void Serve(Connection& connection);
  // Learns who the caller is. False: the connection ends.
  bool Introduce(Connection& connection, Wire& wire, Exchange& exchange);
  bool CountUser(Connection& connection, const std::string& user);

  const Options options_;
  // Null: plaintext.
  const std::unique_ptr<TlsContext> tls_;
  const rpc::SocketClaim claim_;
  const std::vector<os::UniqueFd> listeners_;
  const int port_;
  const std::string address_;
  const os::UniqueFd wake_;
  std::atomic<bool> stopping_{false};

  mutable Mutex mu_;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_ MESHRUN_GUARDED_BY(mu_);
  uint64_t last_id_ MESHRUN_GUARDED_BY(mu_) = 0;
  // Counted connections of each address, and of each user that has shown a certificate.
  std::map<std::string, size_t> addresses_ MESHRUN_GUARDED_BY(mu_);
  std::map<std::string, size_t> users_ MESHRUN_GUARDED_BY(mu_);
  // Endless bodies of each user.
  std::map<std::string, size_t> streams_ MESHRUN_GUARDED_BY(mu_);
  Counts counts_ MESHRUN_GUARDED_BY(mu_);
  std::optional<steady_clock::time_point> told_at_ MESHRUN_GUARDED_BY(mu_);

  // The last member: it uses all others.
  std::thread thread_;
};

void RunningServer::EndStreams() {
  MutexLock lock(mu_);
  for (const auto& [id, connection] : connections_) {
    if (connection->streams) ::shutdown(connection->socket.get(), SHUT_RDWR);
  }
}

void RunningServer::Stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  Wake();
  thread_.join();
  std::map<uint64_t, std::unique_ptr<Connection>> left;
  {
    MutexLock lock(mu_);
    left.swap(connections_);
    for (const auto& [id, connection] : left) ::shutdown(connection->socket.get(), SHUT_RDWR);
  }
  for (const auto& [id, connection] : left) connection->thread.join();
  if (const auto path = rpc::UnixPath(options_.listen)) ::unlink(path->c_str());
}

void RunningServer::OnRequest(Connection& connection) {
  MutexLock lock(mu_);
  ++counts_.requests;
  connection.proven = true;
  connection.waits = false;
}

absl::Status RunningServer::OnStream(Connection& connection) {
  const Limits& limits = options_.limits;
  MutexLock lock(mu_);
  const auto found = streams_.find(connection.user);
  const size_t own = found == streams_.end() ? 0 : found->second;
  const bool user_is_known = tls_ != nullptr;
  if (counts_.streams >= limits.streams || (user_is_known && own >= limits.streams_per_user)) {
    return TryAgainLater(
        fmt::format("{} endless answers are open, {} of them for this user, and the most are {} "
                    "and {}: close one",
                    counts_.streams, own, limits.streams, limits.streams_per_user),
        kStreamRetry);
  }
  ++streams_[connection.user];
  ++counts_.streams;
  connection.streams = true;
  return absl::OkStatus();
}

void RunningServer::OnStreamEnd(Connection& connection) {
  MutexLock lock(mu_);
  connection.streams = false;
  --counts_.streams;
  const auto own = streams_.find(connection.user);
  if (--own->second == 0) streams_.erase(own);
}

void RunningServer::Wake() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) return;
}

void RunningServer::Run() {
  BlockSignals();
  std::vector<pollfd> watched{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const os::UniqueFd& listener : listeners_) {
    watched.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
  }
  while (!stopping_.load()) {
    // The threads of connections that were shut down for others end in a moment, and wake us.
    const size_t count = HasRoomForThreads() ? watched.size() : 1;
    if (::poll(watched.data(), count, /*timeout=*/-1) < 0) continue;
    uint64_t wakes = 0;
    if (::read(wake_.get(), &wakes, sizeof wakes) > 0) Reap();
    for (size_t i = 1; i < count; ++i) {
      if (watched[i].revents == 0) continue;
      while (HasRoomForThreads() && AcceptOne(watched[i].fd)) {
      }
    }
  }
}

bool RunningServer::AcceptOne(int listener) {
  auto [socket, from, may_be_more, exhausted] = os::Accept(listener);
  if (exhausted) {
    {
      MutexLock lock(mu_);
      MakeRoom();
    }
    std::this_thread::sleep_for(kExhaustedPause);
  }
  if (!socket) return may_be_more;
  Admit(std::move(socket),
        from.ss_family == AF_UNIX ? os::Peer{kUnixPeer, kUnixPeer} : os::PeerOf(from));
  return true;
}

void RunningServer::Admit(os::UniqueFd socket, os::Peer peer) {
  const Limits& limits = options_.limits;
  MutexLock lock(mu_);
  const auto of_address = [&](const Connection& other) {
    return other.peer.address == peer.address;
  };
  const auto own = addresses_.find(peer.address);
  const bool has_most = own != addresses_.end() && own->second >= limits.per_address;
  if (has_most && peer.address != kUnixPeer && !MakeRoom(of_address)) return Refuse(peer.address);
  if (counts_.open >= limits.connections && !MakeRoom()) return Refuse(peer.address);
  ++counts_.open;
  ++addresses_[peer.address];
  const auto [place, is_new] = connections_.emplace(
      ++last_id_, std::make_unique<Connection>(*this, std::move(socket), std::move(peer)));
  Connection& connection = *place->second;
  try {
    connection.thread = std::thread([this, &connection] { Serve(connection); });
  } catch (const std::system_error&) {
    Refuse(connection.peer.address);
    Discount(connection);
    connections_.erase(place);
  }
}

bool RunningServer::MakeRoom(const std::function<bool(const Connection&)>& of) {
  Connection* found = nullptr;
  // Who has asked for nothing yet goes first, then whoever shares an address with the most, then
  // who has waited longest.
  const auto rank = [this](const Connection& connection) MESHRUN_REQUIRES(mu_) {
    return std::make_tuple(!connection.proven, addresses_.at(connection.peer.address),
                           -connection.since.time_since_epoch());
  };
  for (const auto& [id, connection] : connections_) {
    if (!connection->counted || !connection->waits || !of(*connection)) continue;
    if (found == nullptr || rank(*connection) > rank(*found)) found = connection.get();
  }
  if (found == nullptr) return false;
  ::shutdown(found->socket.get(), SHUT_RDWR);
  Discount(*found);
  ++counts_.closed;
  TellClosed(found->peer.address);
  return true;
}

void RunningServer::Discount(Connection& connection) {
  if (!std::exchange(connection.counted, false)) return;
  --counts_.open;
  const auto address = addresses_.find(connection.peer.address);
  if (--address->second == 0) addresses_.erase(address);
  const auto user = users_.find(connection.user);
  if (user != users_.end() && --user->second == 0) users_.erase(user);
}

void RunningServer::Refuse(const std::string& address) {
  ++counts_.refused;
  TellClosed(address);
}

void RunningServer::TellClosed(const std::string& address) {
  const auto now = steady_clock::now();
  if (told_at_ && now - *told_at_ < kBetweenWarnings) return;
  told_at_ = now;
  log::Warning("too many HTTP connections: those that ask for nothing are closed for others",
               {{"closed", counts_.closed},
                {"refused", counts_.refused},
                {"last_address", address},
                {"open", counts_.open},
                {"at_most", options_.limits.connections}});
}

void RunningServer::Reap() {
  std::vector<std::unique_ptr<Connection>> ended;
  {
    MutexLock lock(mu_);
    for (auto it = connections_.begin(); it != connections_.end();) {
      if (!it->second->ended) {
        ++it;
        continue;
      }
      ended.push_back(std::move(it->second));
      it = connections_.erase(it);
    }
  }
  for (const auto& connection : ended) connection->thread.join();
}

void RunningServer::Serve(Connection& connection) {
  BlockSignals();
  {
    Wire wire(connection.socket.get(), options_.limits,
              tls_ == nullptr ? nullptr : tls_->Current());
    Exchange exchange(connection, wire, stopping_, connection.peer.whole);
    if (Introduce(connection, wire, exchange)) {
      auto time = options_.limits.request;
      while (wire.AwaitRequest(time) && exchange.Serve()) {
        time = options_.limits.idle;
        MutexLock lock(mu_);
        connection.waits = true;
        connection.since = steady_clock::now();
      }
      wire.Close();
    }
  }
  ::shutdown(connection.socket.get(), SHUT_RDWR);
  {
    MutexLock lock(mu_);
    Discount(connection);
    connection.ended = true;
  }
  Wake();
}

bool RunningServer::Introduce(Connection& connection, Wire& wire, Exchange& exchange) {
  if (tls_ == nullptr) return true;
  if (!wire.Handshake()) return false;
  std::string pem = PeerCertificate(*wire.tls());
  const auto certificate = certificates::ReadCertificate(pem);
  if (!certificate.ok() || !CountUser(connection, certificate->common_name)) return false;
  exchange.Authenticate(rpc::MakeIdentity(certificate->common_name, certificate->uris),
                        std::move(pem));
  return true;
}

bool RunningServer::CountUser(Connection& connection, const std::string& user) {
  MutexLock lock(mu_);
  if (!connection.counted) return false;
  const auto own = users_.find(user);
  if (own != users_.end() && own->second >= options_.limits.per_user &&
      !MakeRoom([&](const Connection& other) { return other.user == user; })) {
    Refuse(connection.peer.address);
    return false;
  }
  connection.user = user;
  ++users_[user];
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(Options options) {
  MESHRUN_RETURN_IF_ERROR(rpc::CheckSecurity(options.program, options.listen, options.security));
  rpc::SocketClaim claim;
  std::unique_ptr<TlsContext> tls;
  std::vector<os::UniqueFd> listeners;
  int port = 0;
  std::string address = options.listen;
  if (const std::optional<std::string> path = rpc::UnixPath(options.listen)) {
    MESHRUN_ASSIGN_OR_RETURN(claim, rpc::SocketClaim::Take(*path, options.flag));
    MESHRUN_ASSIGN_OR_RETURN(os::UniqueFd socket, ListenOnUnix(*path));
    listeners.push_back(std::move(socket));
  } else {
    if (!options.security.tls.empty()) {
      MESHRUN_ASSIGN_OR_RETURN(tls,
                               TlsContext::Load(options.security.tls, options.security.reread));
    }
    MESHRUN_ASSIGN_OR_RETURN(os::TcpListeners bound,
                             os::ListenOnTcp(options.listen, kReceiveBytes, options.flag));
    listeners = std::move(bound.sockets);
    port = bound.port;
    address = fmt::format("{}:{}", address.substr(0, address.rfind(':')), port);
  }
  return std::make_unique<RunningServer>(std::move(options), std::move(tls), std::move(claim),
                                         std::move(listeners), port, std::move(address));
}

}  // namespace meshrun::http
