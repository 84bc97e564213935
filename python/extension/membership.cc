#include "python/extension/membership.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "core/ids.h"
#include "core/parse_integer.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/base/interrupts.h"
#include "parallel/base/network.h"
#include "parallel/base/process.h"
#include "parallel/base/thrown_status.h"
#include "parallel/comm/store/connect_tcp_store.h"
#include "parallel/manager/environment.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"

namespace meshrun::python {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view kScheme = "meshrun://";
constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kAgreed = "ok";
constexpr std::string_view kDiffers = "differs: ";
constexpr std::string_view kAbsent = "absent: ";
// A handle is made when its store listens: who refuses connections has gone.
constexpr milliseconds kGoneAfter(3000);
constexpr milliseconds kRetry(100);
constexpr milliseconds kForReaders(2000);
constexpr std::chrono::microseconds kFirstPause(100);
constexpr milliseconds kLongestPause(20);

struct Address {
  std::string host;
  int port = 0;
  std::string random;
};

std::optional<Address> parse(std::string_view handle) {
  if (!handle.starts_with(kScheme)) return std::nullopt;
  handle.remove_prefix(kScheme.size());
  const size_t slash = handle.find('/');
  if (slash == handle.npos) return std::nullopt;
  const size_t colon = handle.substr(0, slash).rfind(':');
  if (colon == handle.npos) return std::nullopt;
  const auto port = ParseInteger<int>(std::string(handle.substr(colon + 1, slash - colon - 1)));
  Address address{std::string(handle.substr(0, colon)), port.value_or(0),
                  std::string(handle.substr(slash + 1))};
  const bool is_whole =
      !address.host.empty() && address.port > 0 && address.port < 65536 && !address.random.empty();
  return is_whole ? std::optional(std::move(address)) : std::nullopt;
}

std::string own_host() {
  const std::string master = process_environment()("MASTER_ADDR").value_or("");
  if (master.empty()) {
    const std::vector<std::string> addresses = interface_addresses();
    return addresses.empty() ? kLoopback : addresses.front();
  }
  if (is_loopback(master)) return kLoopback;
  const auto address = local_address_towards(master);
  // On the way to this host's own name the address is a loopback one; peers know the name.
  return address.ok() && !is_loopback(*address) ? *address : master;
}

std::string seconds(milliseconds duration) {
  return fmt::format("{:g} s", static_cast<double>(duration.count()) / 1000);
}

std::string name_of(const Members& members, size_t rank) {
  return fmt::format("rank {} ({})", rank, members.handles[rank]);
}

std::string listed(const std::vector<std::string>& handles) {
  return fmt::format("[{}]", fmt::join(handles, ", "));
}

size_t host_rank(const Members& members) {
  const auto& handles = members.handles;
  return static_cast<size_t>(std::min_element(handles.begin(), handles.end()) - handles.begin());
}

// The store of another member.
c10::intrusive_ptr<c10d::Store> reach(const Members& members, size_t rank, milliseconds timeout) {
  const Address address = *parse(members.handles[rank]);
  const auto gone = [&](const std::string& why) {
    return RendezvousError(fmt::format(
        "reconfiguration {} has no world: {} has ended, or is not reached from here: {}",
        members.uuid, name_of(members, rank), why));
  };
  const auto deadline = steady_clock::now() + std::min(timeout, kGoneAfter);
  absl::StatusOr<std::string> numeric = probe(address.host, address.port, kGoneAfter);
  while (!numeric.ok() && steady_clock::now() < deadline) {
    if (is_interrupted()) raise_interrupt();
    std::this_thread::sleep_for(kRetry);
    numeric = probe(address.host, address.port, kGoneAfter);
  }
  if (!numeric.ok()) throw gone(std::string(numeric.status().message()));
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(address.port);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    auto store = connect_tcp_store(*numeric, options);
    if (store->check({address.random + "/self"})) return store;
  } catch (const c10::DistError& error) {
    throw gone(error.what_without_backtrace());
  }
  throw gone("another program listens there now");
}

// Writes the verdict unless there is one, and returns what it is.
std::string settle(c10d::Store& store, const std::string& verdict) {
  const std::vector<uint8_t> bytes(verdict.begin(), verdict.end());
  const std::vector<uint8_t> written = store.compareSet("verdict", {}, bytes);
  return {written.begin(), written.end()};
}

std::string here(size_t rank) { return fmt::format("here/{}", rank); }
std::string read_by(size_t rank) { return fmt::format("read/{}", rank); }

std::string absent_of(c10d::Store& store, const Members& members, milliseconds timeout) {
  std::vector<std::string> absent;
  for (size_t rank = 0; rank < members.handles.size(); ++rank) {
    if (!store.check({here(rank)})) absent.push_back(name_of(members, rank));
  }
  return fmt::format(
      "{}reconfiguration {} has no world: {} did not come within {}. Call reconfigure() again with "
      "another uuid, and without those that have ended",
      kAbsent, members.uuid, fmt::join(absent, ", "), seconds(timeout));
}

// The verdict on this member's list, which is the same for all that have the same list.
std::string await_verdict(c10d::Store& store, const Members& members, const std::string& own,
                          milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  const std::string list = listed(members.handles);
  const std::string mine = fmt::format("{} lists {}", own, list);
  const std::vector<uint8_t> bytes =
      store.compareSet("members", {}, std::vector<uint8_t>(mine.begin(), mine.end()));
  const std::string first(bytes.begin(), bytes.end());
  if (!first.ends_with(" lists " + list)) {
    const std::string text =
        fmt::format("{}reconfiguration {} was called for different members: {}, and {}", kDiffers,
                    members.uuid, first, mine);
    const std::string verdict = settle(store, text);
    return verdict == kAgreed ? text : verdict;  // the others may have gone on
  }
  store.set(here(static_cast<size_t>(members.rank)), std::vector<uint8_t>{1});
  if (store.add("count", 1) == static_cast<int64_t>(members.handles.size())) {
    return settle(store, kAgreed);
  }
  std::chrono::microseconds pause = kFirstPause;
  while (!store.check({"verdict"})) {
    if (is_interrupted()) raise_interrupt();
    const auto left = deadline - steady_clock::now();
    if (left <= left.zero()) return settle(store, absent_of(store, members, timeout));
    std::this_thread::sleep_for(std::min<steady_clock::duration>(pause, left));
    pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPause);
  }
  const std::vector<uint8_t> verdict = store.get("verdict");
  return {verdict.begin(), verdict.end()};
}

// The store ends with its process, which may end after an error: the others read it before.
void await_readers(c10d::Store& store, const Members& members) {
  const auto deadline = steady_clock::now() + kForReaders;
  for (size_t rank = 0; rank < members.handles.size(); ++rank) {
    const bool reads = rank != static_cast<size_t>(members.rank) && store.check({here(rank)});
    while (reads && !store.check({read_by(rank)}) && steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kLongestPause);
    }
  }
}

void agree(c10d::Store& store, const Members& members, const std::string& own, bool is_host,
           milliseconds timeout) {
  const std::string verdict = await_verdict(store, members, own, timeout);
  if (verdict == kAgreed) return;
  store.set(read_by(static_cast<size_t>(members.rank)), std::vector<uint8_t>{1});
  if (is_host) await_readers(store, members);
  if (verdict.starts_with(kDiffers)) throw CollectiveMismatchError(verdict.substr(kDiffers.size()));
  throw RendezvousError(verdict.substr(kAbsent.size()));
}

}  // namespace

MeetingPlace::MeetingPlace() : forks_(fork_count()) {
  const std::string host = own_host();
  auto socket = value_or_throw<RendezvousError>(bind_port(host, 0));
  if (::listen(socket.get(), SOMAXCONN) != 0) {
    throw RendezvousError(
        fmt::format("this process cannot host a store at {}: {}", host, std::strerror(errno)));
  }
  const int port = bound_port(socket);
  RandomIdSource ids;
  const std::string random = ids.Suffix(10);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = socket.release();
  store_ = connect_tcp_store(kLoopback, options);
  store_->set(random + "/self", std::vector<uint8_t>{1});
  handle_ = fmt::format("{}{}:{}/{}", kScheme, host, port, random);
}

Members MeetingPlace::members_of(const libtorch::ReconfigureOptions& options) const {
  Members members;
  members.uuid = options.uuid;
  std::visit([&](const auto& given) { members.handles.assign(given.begin(), given.end()); },
             options.handles);
  std::vector<std::string> sorted = members.handles;
  std::sort(sorted.begin(), sorted.end());
  if (options.handles.index() == 0) members.handles = sorted;  // a set
  for (const std::string& handle : members.handles) {
    if (parse(handle)) continue;
    throw CollectiveArgumentError(
        fmt::format("reconfigure() got the handle \"{}\", which is not one of this backend's, such "
                    "as {}: pass what get_reconfigure_handle() returns on each member",
                    handle, handle_));
  }
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    throw CollectiveArgumentError(
        fmt::format("reconfigure() got {} twice: name each member once", *twice));
  }
  const auto found = std::find(members.handles.begin(), members.handles.end(), handle_);
  if (found == members.handles.end()) {
    throw CollectiveArgumentError(
        fmt::format("reconfigure() was called by {}, which is not among the members {}: processes "
                    "that the next world leaves out do not call it",
                    handle_, listed(members.handles)));
  }
  members.rank = static_cast<int>(found - members.handles.begin());
  members.host = parse(sorted.front())->host;
  return members;
}

c10::intrusive_ptr<c10d::Store> MeetingPlace::meet(const Members& members,
                                                   milliseconds timeout) const {
  if (forks_ != fork_count()) {
    throw BackendError(
        fmt::format("process {} was forked from the one that has the handle {}: make a group in "
                    "each process, or start processes by spawn",
                    ::getpid(), handle_));
  }
  const size_t host = host_rank(members);
  const bool is_own = host == static_cast<size_t>(members.rank);
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("{}/{}", parse(members.handles[host])->random, members.uuid),
      is_own ? store_->clone() : reach(members, host, timeout));
  store->setTimeout(timeout);
  try {
    if (members.handles.size() > 1) agree(*store, members, handle_, is_own, timeout);
  } catch (const RendezvousError&) {
    throw;
  } catch (const c10::DistError& error) {
    throw RendezvousError(fmt::format("reconfiguration {} has no world: {} has ended: {}",
                                      members.uuid, name_of(members, host),
                                      error.what_without_backtrace()));
  }
  return c10::make_intrusive<c10d::PrefixStore>("world", store);
}

}  // namespace meshrun::python
