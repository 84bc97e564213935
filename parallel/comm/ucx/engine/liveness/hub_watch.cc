#include "parallel/comm/ucx/engine/liveness/hub_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
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
#include "core/secret.h"
#include "core/wait_bytes.h"
#include "fmt/format.h"
#include "parallel/comm/ucx/engine/liveness/hub_connection.h"
#include "parallel/comm/ucx/engine/liveness/hub_sockets.h"

namespace meshrun::ucx {
namespace {

using Time = std::chrono::steady_clock::time_point;

constexpr std::chrono::seconds kHelloWithin{10};
constexpr std::chrono::seconds kLeaveWithin{1};
// Strangers that may be connected at once.
constexpr size_t kStrangers = 16;
// Where this process has no descriptor left for one.
constexpr std::chrono::seconds kAcceptAgain{1};
constexpr int kHub = 0;
// How frames begin.
constexpr std::string_view kWaits = "waits ", kRuns = "runs", kVerdict = "verdict ";

using os::UniqueFd;

SteadyNanos steady_now() { return Time::clock::now().time_since_epoch(); }

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
    HubConnection& connection = connections_.emplace_back(std::move(hub));
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
    for (const HubConnection& connection : connections_) {
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
    for (const HubConnection& connection : connections_) {
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
  bool serve(HubConnection& connection) {
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

  bool heard_by_hub(HubConnection& connection, std::string_view frame) {
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
    if (said.size() != 3 || said[0] != "hello" || !SameSecret(said[1], token_)) return false;
    const int rank = rank_of(said[2]);
    const auto is_it = [rank](const HubConnection& other) { return other.rank == rank; };
    if (rank <= kHub || gone_.count(rank) != 0 ||
        std::any_of(connections_.begin(), connections_.end(), is_it)) {
      return false;
    }
    connection.rank = rank;
    for (const auto& [other, news] : gone_) connection.write(news);
    if (is_leaving_) say_farewell(connection);
    return true;
  }

  bool heard_from_hub(HubConnection& hub, std::string_view frame) {
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
    for (HubConnection& connection : connections_) {
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
      for (HubConnection& connection : connections_) {
        if (connection.rank >= 0) connection.write(frame);
      }
      listener_(verdict);
    }
  }

  void say_farewell(HubConnection& connection) {
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
    for (HubConnection& connection : connections_) {
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
  std::vector<HubConnection> connections_;
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
  HubEndpoint endpoint;
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
