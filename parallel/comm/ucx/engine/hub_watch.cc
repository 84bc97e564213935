#include "parallel/comm/ucx/engine/hub_watch.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/ids.h"
#include "core/mutex.h"
#include "core/os/fd.h"
#include "core/wait_bytes.h"
#include "fmt/format.h"

namespace meshrun::ucx {
namespace {

using Time = std::chrono::steady_clock::time_point;

// A report lists the members of a group, a verdict those of several; what is longer is not sent,
// and the operation's timeout decides.
constexpr size_t kLongestFrame = 1 << 20;
// Of a stranger.
constexpr size_t kLongestHello = 1000;
constexpr size_t kReadAtOnce = 64 << 10;
constexpr std::chrono::seconds kHelloWithin{10};
constexpr std::chrono::seconds kLeaveWithin{1};
// Strangers that may be connected at once.
constexpr size_t kStrangers = 16;
// Where this process has no descriptor left for one.
constexpr std::chrono::seconds kAcceptAgain{1};
constexpr int kHub = 0;
// How frames begin.
constexpr std::string_view kWaits = "waits ", kRuns = "runs", kVerdict = "verdict ";
constexpr const char* kEnded = "its process ended";

using os::UniqueFd;

// ---- Addresses

struct Endpoint {
  std::string token;
  std::string port;
  std::string address;

  std::string text() const { return fmt::format("{} {} {}", token, port, address); }
  std::string name() const { return fmt::format("{} port {}", address, port); }
};

std::vector<std::string_view> words(std::string_view text, size_t most) {
  std::vector<std::string_view> found;
  while (!text.empty() && found.size() + 1 < most) {
    const size_t end = text.find(' ');
    found.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  if (!text.empty()) found.push_back(text);
  return found;
}

struct Addresses {
  Addresses() = default;
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() {
    if (list != nullptr) freeaddrinfo(list);
  }
  // Null for `name`: all of this host's.
  int resolve(const char* name, const char* port, int family, int flags) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    return getaddrinfo(name, port, &hints, &list);
  }
  addrinfo* list = nullptr;
};

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

absl::Status unavailable(const std::string& what, int error) {
  return absl::UnavailableError(fmt::format("{}: {}", what, std::strerror(error)));
}

// A dead host is noticed within 5 s, whether or not something is being sent.
void watch_peer(int fd) {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

absl::StatusOr<UniqueFd> listen_at(const std::string& address, int backlog, std::string* port) {
  const std::string what = fmt::format("rank 0 cannot listen at {}", address);
  Addresses own, all;
  if (const int error = own.resolve(address.c_str(), "0", AF_UNSPEC, 0)) {
    return absl::UnavailableError(fmt::format("{}: {}", what, gai_strerror(error)));
  }
  const addrinfo* at = own.list;
  if (!is_loopback(*at->ai_addr)) {
    if (const int error = all.resolve(nullptr, "0", at->ai_family, AI_PASSIVE)) {
      return absl::UnavailableError(fmt::format("{}: {}", what, gai_strerror(error)));
    }
    at = all.list;
  }
  UniqueFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  auto* const bound_address = reinterpret_cast<sockaddr*>(&bound);
  if (!fd || bind(fd.get(), at->ai_addr, at->ai_addrlen) != 0 || listen(fd.get(), backlog) != 0 ||
      getsockname(fd.get(), bound_address, &length) != 0) {
    return unavailable(what, errno);
  }
  std::array<char, NI_MAXSERV> service{};
  getnameinfo(bound_address, length, nullptr, 0, service.data(), service.size(), NI_NUMERICSERV);
  *port = service.data();
  return fd;
}

int milliseconds_until(Time deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Time::clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

absl::StatusOr<UniqueFd> connect_to(const Endpoint& hub, Time deadline) {
  const std::string what = fmt::format("rank 0 cannot be reached at {}", hub.name());
  Addresses found;
  if (const int error = found.resolve(hub.address.c_str(), hub.port.c_str(), AF_UNSPEC, 0)) {
    return absl::UnavailableError(fmt::format("{}: {}", what, gai_strerror(error)));
  }
  int error = ETIMEDOUT;
  for (const addrinfo* at = found.list; at != nullptr; at = at->ai_next) {
    UniqueFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd && connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0) return fd;
    error = errno;
    if (!fd || error != EINPROGRESS) continue;
    pollfd event{fd.get(), POLLOUT, 0};
    while (poll(&event, 1, milliseconds_until(deadline)) < 0 && errno == EINTR) continue;
    if (event.revents == 0) return unavailable(what, ETIMEDOUT);
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) return fd;
  }
  return unavailable(what, error);
}

// ---- The watch

SteadyNanos steady_now() { return Time::clock::now().time_since_epoch(); }

// Frames over a socket that never blocks: four bytes that count, the lowest first, and so many.
class Connection {
 public:
  explicit Connection(UniqueFd fd) : fd_(std::move(fd)) { watch_peer(fd_.get()); }

  int fd() const { return fd_.get(); }
  bool wants_to_write() const { return !out_.empty(); }

  void write(std::string_view frame) {
    frame = frame.substr(0, kLongestFrame);
    for (size_t byte = 0; byte < kCount; ++byte) {
      out_.push_back(static_cast<char>(frame.size() >> (8 * byte)));
    }
    out_.append(frame);
    flush();
  }
  void flush() {
    while (!out_.empty()) {
      const ssize_t sent = send(fd(), out_.data(), out_.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      // What is wrong is found by reading.
      if (sent < 0) return;
      out_.erase(0, static_cast<size_t>(sent));
    }
    if (is_ending_) shutdown(fd(), SHUT_WR);
  }
  // After what is written.
  void end() {
    is_ending_ = true;
    flush();
  }
  // What has come, or part of it. False: nothing more does, for the reason given.
  bool read(std::string* reason) {
    std::array<char, 4096> part;
    for (size_t left = kReadAtOnce; left > 0;) {
      const ssize_t got = recv(fd(), part.data(), std::min(part.size(), left), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return true;
      if (got <= 0) {
        *reason = got < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH)
                      ? "its host does not answer"
                      : kEnded;
        return false;
      }
      in_.append(part.data(), static_cast<size_t>(got));
      left -= static_cast<size_t>(got);
    }
    return true;
  }
  // The next of what was read; absent: it is not all there, or never will be.
  std::optional<std::string> next() {
    if (in_.size() < kCount || is_garbled()) return std::nullopt;
    const size_t length = next_length();
    if (in_.size() < kCount + length) return std::nullopt;
    std::string frame = in_.substr(kCount, length);
    in_.erase(0, kCount + length);
    return frame;
  }
  bool is_garbled() const {
    return in_.size() >= kCount && next_length() > (rank < 0 ? kLongestHello : kLongestFrame);
  }

  int rank = -1;  // -1: a stranger
  bool has_left = false;
  Time since = Time::clock::now();

 private:
  static constexpr size_t kCount = 4;

  size_t next_length() const {
    size_t length = 0;
    for (size_t byte = 0; byte < kCount; ++byte) {
      length |= size_t{static_cast<unsigned char>(in_[byte])} << (8 * byte);
    }
    return length;
  }

  UniqueFd fd_;
  std::string in_, out_;
  bool is_ending_ = false;
};

class HubWatch final : public PeerWatch {
 public:
  // The hub has a listener, the others a connection to it.
  HubWatch(const HubWatchOptions& options, std::string token, UniqueFd listener, UniqueFd hub)
      : rank_(options.world_rank),
        size_(options.world_size),
        token_(std::move(token)),
        listener_fd_(std::move(listener)),
        wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!hub) return;
    Connection& connection = connections_.emplace_back(std::move(hub));
    connection.rank = kHub;
    connection.write(fmt::format("hello {} {}", token_, rank_));
  }
  ~HubWatch() override { stop(); }

  void start(Listener listener) override {
    const MutexLock lock(starting_);
    listener_ = std::move(listener);
    thread_ = std::thread([this] { run(); });
  }
  void report(const WaitReport& report) override { set_blocked(report); }
  void withdraw(int) override { set_blocked(std::nullopt); }

  void stop() override {
    if (is_stopping_.exchange(true)) return;
    if (!thread_.joinable()) return leave();
    eventfd_write(wake_fd_.get(), 1);
    thread_.join();
  }

 private:
  bool is_hub() const { return rank_ == kHub; }

  void run() {
    { const MutexLock started(starting_); }
    while (!is_stopping_) {
      tell_blocked();
      if (Time::clock::now() >= decide_at_) decide();
      step(next_deadline());
    }
    leave();
  }

  // When the first stranger has been one for too long, accepting is tried again, or a verdict is
  // due.
  Time next_deadline() const {
    Time next = accepts_after_ > Time::clock::now() ? accepts_after_ : Time::max();
    next = std::min(next, decide_at_);
    for (const Connection& connection : connections_) {
      if (connection.rank < 0) next = std::min(next, connection.since + kHelloWithin);
    }
    return next;
  }

  void step(Time deadline) {
    std::vector<pollfd> events{{wake_fd_.get(), POLLIN, 0}};
    // At most so many strangers; more wait in the listener's queue.
    const bool accepts = listener_fd_ && connections_.size() < size_ + kStrangers &&
                         Time::clock::now() >= accepts_after_;
    events.push_back({accepts ? listener_fd_.get() : -1, POLLIN, 0});
    for (const Connection& connection : connections_) {
      const short wanted = connection.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
      events.push_back({connection.fd(), wanted, 0});
    }
    if (poll(events.data(), events.size(),
             deadline == Time::max() ? -1 : milliseconds_until(deadline)) < 0) {
      return;
    }
    if (events[0].revents & POLLIN) {
      uint64_t ignored;
      eventfd_read(wake_fd_.get(), &ignored);
    }
    // What accept() adds has no event yet; serving may only mark.
    std::vector<bool> ended(connections_.size());
    for (size_t i = 0; i < ended.size(); ++i) {
      if (events[2 + i].revents & POLLOUT) connections_[i].flush();
      if (events[2 + i].revents & ~POLLOUT) ended[i] = !serve(connections_[i]);
      if (connections_[i].rank < 0 && Time::clock::now() >= connections_[i].since + kHelloWithin) {
        ended[i] = true;
      }
    }
    for (size_t i = ended.size(); i-- > 0;) {
      if (ended[i]) connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (events[1].revents & POLLIN) accept_one();
  }

  // False: there is none.
  bool accept_one() {
    UniqueFd fd(accept4(listener_fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      connections_.emplace_back(std::move(fd));
      return true;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      accepts_after_ = Time::clock::now() + kAcceptAgain;
    }
    return false;
  }

  // False: it has ended.
  bool serve(Connection& connection) {
    std::string reason;
    bool goes_on = connection.read(&reason);
    while (const std::optional<std::string> frame = connection.next()) {
      if (!(is_hub() ? heard_by_hub(connection, *frame) : heard_from_hub(connection, *frame))) {
        return false;
      }
    }
    if (goes_on && connection.is_garbled()) {
      goes_on = false;
      reason = "what it sends is not understood";
    }
    if (!goes_on && connection.rank >= 0 && !connection.has_left) {
      gone(connection.rank, fmt::format("lost {} {}", connection.rank, reason));
    }
    return goes_on;
  }

  bool heard_by_hub(Connection& connection, std::string_view frame) {
    if (connection.rank >= 0) {
      if (frame == "bye") {
        connection.has_left = true;
        gone(connection.rank, fmt::format("left {}", connection.rank));
        return false;
      }
      if (frame == kRuns) {
        blocked(connection.rank, std::nullopt);
      } else if (frame.starts_with(kWaits)) {
        std::optional<WaitReport> report = ParseWaitReport(frame.substr(kWaits.size()));
        if (report && report->rank == connection.rank) blocked(connection.rank, *report);
      }
      return true;  // others are of a later version
    }
    const std::vector<std::string_view> said = words(frame, 3);
    if (said.size() != 3 || said[0] != "hello" || said[1] != token_) return false;
    const int rank = rank_of(said[2]);
    const auto is_it = [rank](const Connection& other) { return other.rank == rank; };
    if (rank <= kHub || gone_.count(rank) != 0 ||
        std::any_of(connections_.begin(), connections_.end(), is_it)) {
      return false;
    }
    connection.rank = rank;
    for (const auto& [other, news] : gone_) connection.write(news);
    if (is_leaving_) say_farewell(connection);
    return true;
  }

  bool heard_from_hub(Connection& hub, std::string_view frame) {
    if (frame.starts_with(kVerdict)) {
      if (const auto verdict = ParseWaitVerdict(frame.substr(kVerdict.size()))) listener_(*verdict);
      return true;
    }
    const std::vector<std::string_view> said = words(frame, 3);
    const int rank = said.size() < 2 ? -1 : rank_of(said[1]);
    if (rank < 0 || rank == rank_) return true;
    if (said[0] == "left") {
      hub.has_left = hub.has_left || rank == kHub;
      listener_(PeerLeft{rank});
    } else if (said[0] == "lost" && said.size() == 3) {
      listener_(PeerLost{rank, std::string(said[2])});
    }
    return true;
  }

  // -1: none.
  int rank_of(std::string_view text) const {
    int rank = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
    const bool is_rank = error == std::errc() && end == text.data() + text.size();
    return is_rank && rank >= 0 && rank < size_ ? rank : -1;
  }

  // Once for each rank.
  void gone(int rank, const std::string& news) {
    if (!gone_.emplace(rank, news).second) return;
    for (Connection& connection : connections_) {
      if (is_hub() && connection.rank >= 0 && connection.rank != rank) connection.write(news);
    }
    const std::vector<std::string_view> said = words(news, 3);
    if (said[0] == "left") {
      board_.Left(rank, steady_now());
      changed_ = Time::clock::now();
      decide_at_ = std::min(decide_at_, changed_ + WaitBoard::kSettle);
      listener_(PeerLeft{rank});
    } else {
      blocked(rank, std::nullopt);
      listener_(PeerLost{rank, std::string(said[2])});
    }
  }

  // ---- Blocked ranks

  void set_blocked(std::optional<WaitReport> report) {
    {
      const MutexLock lock(blocked_mu_);
      blocked_ = std::move(report);
      is_told_ = false;
    }
    eventfd_write(wake_fd_.get(), 1);
  }

  // The last of what was set, once the hub has taken what was told before: it may be slow to read.
  void tell_blocked() {
    if (!is_hub() && (connections_.empty() || connections_.front().wants_to_write())) return;
    std::optional<WaitReport> report;
    {
      const MutexLock lock(blocked_mu_);
      if (std::exchange(is_told_, true)) return;
      report = blocked_;
    }
    if (is_hub()) return blocked(kHub, report);
    const std::string frame =
        report ? std::string(kWaits) + Serialize(*report) : std::string(kRuns);
    connections_.front().write(frame.size() > kLongestFrame ? kRuns : frame);
  }

  // On the hub.
  void blocked(int rank, const std::optional<WaitReport>& report) {
    if (report) {
      board_.Report(*report, steady_now());
    } else {
      board_.Withdraw(rank);
    }
    changed_ = Time::clock::now();
    decide_at_ = std::min(decide_at_, changed_ + WaitBoard::kSettle);
  }

  void decide() {
    decide_at_ = changed_ + WaitBoard::kSettle;
    if (decide_at_ <= Time::clock::now()) decide_at_ = Time::max();
    for (const WaitVerdict& verdict : board_.Decide(steady_now())) {
      const std::string frame = std::string(kVerdict) + Serialize(verdict);
      if (frame.size() > kLongestFrame) continue;
      for (Connection& connection : connections_) {
        if (connection.rank >= 0) connection.write(frame);
      }
      listener_(verdict);
    }
  }

  void say_farewell(Connection& connection) {
    connection.write(is_hub() ? "left 0" : "bye");
    connection.end();
  }

  // Says so and waits until it has been read: closing before that may lose it. Ranks whose hello is
  // under way are told, too; for them it would be a death.
  void leave() {
    listener_ = [](const PeerNews&) {};
    is_leaving_ = true;
    while (listener_fd_ && accept_one()) continue;
    listener_fd_.reset();
    for (Connection& connection : connections_) {
      if (connection.rank >= 0) say_farewell(connection);
    }
    const Time deadline = Time::clock::now() + kLeaveWithin;
    while (!connections_.empty() && Time::clock::now() < deadline) step(deadline);
    connections_.clear();
  }

  const int rank_;
  const int size_;
  const std::string token_;
  UniqueFd listener_fd_;
  const UniqueFd wake_fd_;
  std::atomic<bool> is_stopping_{false};
  Mutex starting_;
  std::thread thread_;
  // The thread's, once it runs.
  Listener listener_;
  bool is_leaving_ = false;
  Time accepts_after_ = Time::min();
  std::vector<Connection> connections_;
  std::map<int, std::string> gone_;  // what was told of them
  // The hub's.
  WaitBoard board_;
  Time changed_ = Time::min();
  Time decide_at_ = Time::max();

  Mutex blocked_mu_;
  std::optional<WaitReport> blocked_ MESHRUN_GUARDED_BY(blocked_mu_);
  bool is_told_ MESHRUN_GUARDED_BY(blocked_mu_) = true;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerWatch>> create_hub_watch(const HubWatchOptions& options) {
  Endpoint endpoint;
  UniqueFd listener, hub;
  if (options.world_rank == kHub) {
    RandomIdSource ids;
    endpoint.token = NewRequestId(ids);
    endpoint.address = options.address;
    absl::StatusOr<UniqueFd> fd = listen_at(options.address, options.world_size, &endpoint.port);
    if (!fd.ok()) return fd.status();
    listener = *std::move(fd);
    options.set_endpoint(endpoint.text());
  } else {
    const std::string text = options.get_endpoint();
    const std::vector<std::string_view> said = words(text, 3);
    if (said.size() != 3) {
      return absl::UnavailableError(
          fmt::format("\"{}\" in the store is no endpoint of rank 0's watch", text));
    }
    endpoint = {std::string(said[0]), std::string(said[1]), std::string(said[2])};
    absl::StatusOr<UniqueFd> fd = connect_to(endpoint, Time::clock::now() + options.timeout);
    if (!fd.ok()) return fd.status();
    hub = *std::move(fd);
  }
  return std::make_unique<HubWatch>(options, std::move(endpoint.token), std::move(listener),
                                    std::move(hub));
}

}  // namespace meshrun::ucx
