#include "parallel/comm/store/tcp_store.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/errors.h"
#include "parallel/base/network.h"
#include "parallel/base/process.h"
#include "parallel/base/spent_time.h"
#include "parallel/comm/store/connect_tcp_store.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The server of a run that is just ending may still hold the port.
constexpr milliseconds kPortGrace(2000);
// Rank 0 writes its identity within milliseconds of listening. A store that has none by then is not
// meshrun's.
constexpr milliseconds kIdentityTimeout(10000);
constexpr milliseconds kShortestRetry(2);
constexpr milliseconds kLongestRetry(100);
// The others hear from rank 0 who is missing, so they wait a little longer than it does.
constexpr milliseconds kVerdictGrace(2000);
constexpr char kReady[] = "ready";
constexpr char kRankZero[] = "rank0";
constexpr char kRefused[] = "refused";
// How long a rank 0 that finds the port taken asks who has it.
constexpr milliseconds kProbeTimeout(500);
// An identity ends with what all ranks of a job are started with: LaunchEnvironment::identity.
constexpr std::string_view kSettings = ", world size ";

class Deadline {
 public:
  explicit Deadline(milliseconds timeout) : end_(Clock::now() + timeout) {}
  milliseconds left() const {
    return std::max(std::chrono::duration_cast<milliseconds>(end_ - Clock::now()), milliseconds(0));
  }
  bool passed() const { return Clock::now() >= end_; }

 private:
  Clock::time_point end_;
};

std::string seconds(milliseconds duration) {
  return fmt::format("{:g} s", static_cast<double>(duration.count()) / 1000);
}

// Where a store of this host is reached from this host: it listens at a loopback address or at all.
// IPv4 only: "localhost" may resolve to ::1, where rank 0 does not listen.
std::string own_address(const std::string& host) {
  return is_loopback(host) && host != "localhost" ? host : "127.0.0.1";
}

std::string job_of(const std::string& identity) {
  return identity.substr(0, identity.find(kSettings));
}

// Empty: it has none.
std::string settings_of(const std::string& identity) {
  const size_t at = identity.find(kSettings);
  return at == std::string::npos ? "" : identity.substr(at + 2);
}

// This process as a rank, unique also where one host starts a rank twice.
std::string own_process() { return fmt::format("{} {}", host_name(), getpid()); }

// Host and process of a claim.
std::string without_introduction(const std::string& claim) {
  return claim.substr(0, claim.find(' ', claim.find(' ') + 1));
}

// A rank of the same job that cannot join: rank 0 would wait for it in vain.
void tell_rank_zero(c10d::Store& store, const std::string& why) noexcept {
  try {
    store.set(kRefused, why);
  } catch (const std::exception&) {
    // It finds out by its own timeout.
  }
}

// What a rank 0 that cannot listen says where another rank 0 of its job does; the other one hears
// of it. Empty: somebody else does.
std::string find_twin(const TcpStoreOptions& options) {
  try {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<uint16_t>(options.port);
    tcp.waitWorkers = false;
    tcp.timeout = kProbeTimeout;
    c10d::PrefixStore store("meshrun/" + options.prefix,
                            connect_tcp_store(own_address(options.host), tcp));
    if (!store.check({"identity", kRankZero})) return "";
    if (job_of(store.get_to_str("identity")) != job_of(options.identity)) return "";
    const std::string text = fmt::format(
        "two processes have RANK=0 of \"{}\" at {}:{}: host and process {}, and {}. Give every "
        "process its own RANK, and every job its own MASTER_PORT",
        options.identity, options.host, options.port,
        without_introduction(store.get_to_str(kRankZero)), own_process());
    tell_rank_zero(store, text);
    return text;
  } catch (const std::exception&) {
    return "";
  }
}

// Listens too: of two processes that bind at one time both may succeed, and only one may listen.
absl::StatusOr<os::UniqueFd> listen_at(const std::string& host, int port) {
  absl::StatusOr<os::UniqueFd> socket = bind_port(host, port);
  if (!socket.ok() || ::listen(socket->get(), SOMAXCONN) == 0) return socket;
  const std::string text = fmt::format("cannot listen on port {}: {}", port, std::strerror(errno));
  return errno == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::InvalidArgumentError(text);
}

os::UniqueFd listen_or_explain(const TcpStoreOptions& options) {
  const Deadline deadline(std::min(kPortGrace, options.timeout));
  while (true) {
    absl::StatusOr<os::UniqueFd> socket = listen_at(options.host, options.port);
    if (socket.ok()) return *std::move(socket);
    if (!absl::IsAlreadyExists(socket.status())) {
      throw RendezvousError(fmt::format("rank 0 cannot host the store at {}:{}: {}", options.host,
                                        options.port, std::string(socket.status().message())));
    }
    if (deadline.passed()) {
      if (const std::string twin = find_twin(options); !twin.empty()) throw RendezvousError(twin);
      throw RendezvousError(fmt::format(
          "port {} is taken on this host, so rank 0 cannot host the store of \"{}\": another job "
          "or program listens "
          "there. Set MASTER_PORT to a free port on every rank (\"ss -ltnp\" lists those in use)",
          options.port, options.identity));
    }
    std::this_thread::sleep_for(kLongestRetry);
  }
}

// c10d's client retries a refused connection only after hundreds of milliseconds; ranks that start
// before rank 0 are the normal case, so the wait is done here. Where it listens, numeric.
std::string await_listener(const TcpStoreOptions& options, const Deadline& deadline) {
  const std::string host = options.host == "localhost" ? own_address(options.host) : options.host;
  bool warned = false;
  const Clock::time_point start = Clock::now();
  for (milliseconds retry = kShortestRetry;; retry = std::min(retry * 2, kLongestRetry)) {
    absl::StatusOr<std::string> address =
        probe(host, options.port,
              std::max(std::min(deadline.left(), milliseconds(5000)), milliseconds(1)));
    if (address.ok()) return *std::move(address);
    const absl::Status& status = address.status();
    if (deadline.passed()) {
      throw RendezvousError(
          fmt::format("rank {} found nobody at {}:{} within {} ({}): is rank 0 running, and do "
                      "MASTER_ADDR and MASTER_PORT name its "
                      "host on every rank?",
                      options.rank, options.host, options.port, seconds(options.timeout),
                      std::string(status.message())));
    }
    if (!warned && Clock::now() - start > std::chrono::seconds(10)) {
      TORCH_WARN("rank ", options.rank, " still waits for rank 0 at ", options.host, ":",
                 options.port, " (", std::string(status.message()), "), at most ",
                 seconds(deadline.left()), " more");
      warned = true;
    }
    std::this_thread::sleep_for(std::min(retry, deadline.left()));
  }
}

c10::intrusive_ptr<c10d::Store> open_store(const TcpStoreOptions& options,
                                           const Deadline& deadline) {
  std::string address = own_address(options.host);
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(options.port);
  tcp.isServer = options.rank == 0 && !options.is_hosted;
  tcp.waitWorkers = false;
  tcp.timeout = options.timeout;
  if (tcp.isServer) {
    const bool is_open = options.listener != nullptr && *options.listener;
    tcp.masterListenFd =
        (is_open ? std::move(*options.listener) : listen_or_explain(options)).release();
  } else {
    address = await_listener(options, deadline);
    // Somebody listens; a store answers at once, and another program perhaps never.
    tcp.timeout = std::max(std::min(deadline.left(), kIdentityTimeout), milliseconds(1));
  }
  auto store = connect_tcp_store(address, tcp);
  store->setTimeout(options.timeout);
  return c10::make_intrusive<c10d::PrefixStore>("meshrun/" + options.prefix, std::move(store));
}

// The store belongs to the job that this process was in before, under another identity: it ends
// when rank 0 has left that job too.
struct StoreIsEnding {
  c10::intrusive_ptr<c10d::Store> store;
  std::string identity;
};

RendezvousError refusal(const TcpStoreOptions& options, const std::string& theirs) {
  return RendezvousError(
      fmt::format("rank {} of \"{}\" was refused by the store at {}:{}, which belongs to \"{}\": "
                  "two jobs use one port. Set MASTER_PORT to a free port on every rank of one of "
                  "them; if these are ranks of one job, set MESHRUN_JOB_ID to the same text on "
                  "all of them",
                  options.rank, options.identity, options.host, options.port, theirs));
}

// The ranks' settings differ, `theirs` are rank 0's or the first one's: raises, and rank 0 hears.
[[noreturn]] void refuse_settings(c10d::Store& store, const TcpStoreOptions& options,
                                  const std::string& theirs) {
  const std::string text = fmt::format(
      "the ranks of \"{}\" were started with different settings: rank {} with {}, and the rank "
      "that came to {}:{} first with {}. Give all of them the same WORLD_SIZE and "
      "MODEL_PARALLEL_SIZE",
      job_of(options.identity), options.rank, settings_of(options.identity), options.host,
      options.port, theirs);
  tell_rank_zero(store, text);
  throw RendezvousError(text);
}

[[noreturn]] void refuse_identity(c10d::Store& store, const TcpStoreOptions& options,
                                  const std::string& theirs) {
  if (job_of(theirs) == job_of(options.identity)) {
    refuse_settings(store, options, settings_of(theirs));
  }
  throw refusal(options, theirs);
}

void check_identity(const c10::intrusive_ptr<c10d::Store>& base, const TcpStoreOptions& options,
                    const Deadline& deadline, const InstanceHistory& history) {
  c10d::Store& store = *base;
  std::string theirs = options.identity;
  if (options.is_hosted) {
    // Nobody hosts for us, so the first rank to come says who we are. The launcher's store outlives
    // instances, which may have other settings.
    theirs = store.compareSet("identity", std::string(), job_of(options.identity));
    if (theirs != job_of(options.identity)) throw refusal(options, theirs);
    return;
  }
  if (options.rank == 0) {
    store.set("identity", options.identity);
  } else {
    const milliseconds patience = std::min(deadline.left(), kIdentityTimeout);
    try {
      store.wait({"identity"}, patience);
    } catch (const c10::DistStoreError&) {
      throw RendezvousError(fmt::format(
          "rank {} of \"{}\" reached {}:{}, but the store there has not said whose it is within "
          "{}: it belongs to another "
          "program. Set MASTER_PORT to a free port on every rank",
          options.rank, options.identity, options.host, options.port, seconds(patience)));
    }
    theirs = store.get_to_str("identity");
  }
  if (theirs == options.identity) return;
  if (options.rank != 0 && theirs == history.identity) throw StoreIsEnding{base, theirs};
  refuse_identity(store, options, theirs);
}

std::string join_key(int rank) { return fmt::format("join/{}", rank); }

std::string heard_key(int rank) { return fmt::format("heard/{}", rank); }

// The store ends with rank 0, which therefore waits until the ranks that came know why it gives up.
void await_heard(c10d::Store& store, int world_size) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < world_size; ++rank) {
    if (store.check({join_key(rank)})) keys.push_back(heard_key(rank));
  }
  try {
    if (!keys.empty()) store.wait(keys, kVerdictGrace);
  } catch (const c10::DistError&) {
    // Some rank is slow or gone; rank 0's own report stands.
  }
}

// Rank 0 counts; what it finds is what every rank reports. `base`: where a rank that was refused
// says so.
void await_all(c10d::Store& base, c10d::Store& store, const TcpStoreOptions& options,
               const Deadline& deadline) {
  std::string verdict;
  if (options.rank == 0) {
    std::vector<std::string> keys;
    for (int rank = 0; rank < options.world_size; ++rank) keys.push_back(join_key(rank));
    bool complete = store.check(keys);
    for (milliseconds retry = kShortestRetry; !complete && verdict.empty() && !deadline.passed();
         retry = std::min(retry * 2, kLongestRetry)) {
      std::this_thread::sleep_for(std::min(retry, deadline.left()));
      complete = store.check(keys);
      if (!complete && base.check({kRefused})) {
        verdict = base.get_to_str(kRefused);
        base.deleteKey(kRefused);
      }
    }
    if (!complete && verdict.empty()) {
      std::vector<int> missing;
      for (int rank = 0; rank < options.world_size; ++rank) {
        if (!store.check({join_key(rank)})) missing.push_back(rank);
      }
      verdict = fmt::format("{} of {} ranks joined within {}; missing: rank {}",
                            options.world_size - static_cast<int>(missing.size()),
                            options.world_size, seconds(options.timeout), fmt::join(missing, ", "));
    }
    if (!verdict.empty()) give_up_instance(store);
    store.set(kReady, verdict);
    if (!verdict.empty()) await_heard(store, options.world_size);
  } else {
    store.wait({kReady}, deadline.left() + kVerdictGrace);
    verdict = store.get_to_str(kReady);
    if (!verdict.empty()) store.set(heard_key(options.rank), verdict);
  }
  if (!verdict.empty()) throw RendezvousError(verdict);
}

// Makes `key` say that this process is the rank, and adds its introduction.
void claim_rank(c10d::Store& store, const std::string& key, const TcpStoreOptions& options) {
  const std::string introduction = options.introduction ? options.introduction() : "";
  const std::string claim = fmt::format("{} {}", own_process(), introduction);
  const std::string owner = store.compareSet(key, std::string(), claim);
  if (owner == claim) return;
  throw RendezvousError(
      fmt::format("rank {} of \"{}\" has joined at {}:{} already, from host and process {}; this "
                  "is {}. Give every process its own "
                  "RANK, and every job its own MASTER_PORT",
                  options.rank, options.identity, options.host, options.port,
                  without_introduction(owner), without_introduction(claim)));
}

// In a launcher's store, where each instance has settings of its own: rank 0's.
void agree_on_settings(c10d::Store& base, c10d::Store& store, const TcpStoreOptions& options,
                       const Deadline& deadline) {
  const std::string own = settings_of(options.identity);
  if (options.rank == 0) {
    base.deleteKey(kRefused);  // what an earlier instance has left
    store.set("settings", own);
    return;
  }
  store.wait({"settings"}, std::max(deadline.left(), milliseconds(1)));
  const std::string theirs = store.get_to_str("settings");
  if (theirs != own) refuse_settings(base, options, theirs);
}

c10::intrusive_ptr<c10d::Store> join_once(const TcpStoreOptions& options, const Deadline& deadline,
                                          InstanceHistory& history) {
  const c10::intrusive_ptr<c10d::Store> base = open_store(options, deadline);
  check_identity(base, options, deadline, history);
  // Before it begins an instance: a second rank 0 must not begin one of its own.
  if (options.rank == 0) claim_rank(*base, kRankZero, options);
  auto store =
      enter_instance(base, options.rank, history, std::max(deadline.left(), milliseconds(1)));
  if (options.is_hosted) agree_on_settings(*base, *store, options, deadline);
  claim_rank(*store, join_key(options.rank), options);
  await_all(*base, *store, options, deadline);
  history.identity = options.identity;
  return store;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> join_tcp_store(const TcpStoreOptions& options,
                                               InstanceHistory& history) {
  const Deadline deadline(options.timeout), ending(std::min(kIdentityTimeout, options.timeout / 2));
  const bool was_here = history.last > 0 || !history.identity.empty();
  while (true) {
    try {
      return join_once(options, deadline, history);
    } catch (const RendezvousError&) {
      throw;
    } catch (const StoreIsEnding& store) {
      if (ending.passed()) refuse_identity(*store.store, options, store.identity);
      std::this_thread::sleep_for(kLongestRetry);
    } catch (const c10::DistNetworkError& error) {
      // The store that this rank left before is closing under it: its successor comes to the same
      // port.
      const bool retry = (was_here || history.waiting) && options.rank != 0 && !deadline.passed();
      if (!retry) {
        throw RendezvousError(fmt::format(
            "rank {} lost the store at {}:{} while joining \"{}\": {}", options.rank, options.host,
            options.port, options.identity, error.what_without_backtrace()));
      }
    } catch (const c10::Error& error) {
      throw RendezvousError(fmt::format(
          "rank {} could not join \"{}\" at {}:{} in {}: {}", options.rank, options.identity,
          options.host, options.port, spent_of(options.timeout - deadline.left(), options.timeout),
          error.what_without_backtrace()));
    }
  }
}

std::vector<std::string> introductions(c10d::Store& store, int world_size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size; ++rank) keys.push_back(join_key(rank));
  std::vector<std::string> said;
  for (const std::vector<uint8_t>& value : store.multiGet(keys)) {
    const std::string claim(value.begin(), value.end());
    said.push_back(claim.substr(without_introduction(claim).size() + 1));
  }
  return said;
}

}  // namespace meshrun
