#include "tests/parallel/comm/ucx/memory_transport.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "core/os/fd.h"

namespace meshrun::ucx {
namespace {

constexpr std::string_view kScheme = "memory:";
constexpr int kNobody = -1;

struct Message {
  int from;
  Tag tag;
  int64_t bytes;
  std::vector<std::byte> copy;
  // The sender's request, of a message that is not copied yet. Null when the sender is gone.
  Request* request = nullptr;
  const std::byte* data = nullptr;
  // Only announced: the copy is made straight into the receiver's memory.
  bool large = false;
};

struct PostedReceive {
  Tag tag;
  Tag mask;
  std::span<std::byte> into;
  Request* request;

  bool takes(const Message& message) const { return (message.tag & mask) == (tag & mask); }
};

// A receive and the announcement that it has matched.
struct Transfer {
  PostedReceive receive;
  Message message;
};

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes != 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

// One process. Everything is guarded by the network's mutex.
class MemoryNetwork::Member {
 public:
  struct Peer {
    int member;
    bool broken;
  };

  bool gone = false;
  bool held = false;
  std::vector<Peer> peers;  // by PeerId
  std::map<int, PeerId> ids;
  std::deque<Message> inbound;     // under way
  std::deque<Message> unexpected;  // delivered, not received
  std::deque<PostedReceive> posted;
  std::vector<Transfer> transfers;
  std::map<int, int> slots_used;  // small messages under way, by sender
  Completions pending;
  os::UniqueFd event_fd;
  bool armed = false;
  bool woken = false;

  void signal() {
    if (!event_fd) return;
    [[maybe_unused]] const int rc = eventfd_write(event_fd.get(), 1);
  }
  void on_event() {
    if (std::exchange(armed, false)) signal();
  }
  void end(Request* request, MessageStatus status) {
    request->status = status;
    pending.done.push_back(request);
    on_event();
  }
};

class MemoryNetwork::Impl {
 public:
  explicit Impl(const Options& options) : options_(options), random_(options.seed) {}

  int add() MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    members_.push_back(std::make_unique<Member>());
    return static_cast<int>(members_.size()) - 1;
  }

  PeerId connect(int self, std::string_view address) MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    int to = kNobody;
    if (address.starts_with(kScheme)) {
      const std::string_view number = address.substr(kScheme.size());
      std::from_chars(number.data(), number.data() + number.size(), to);
    }
    if (to < 0 || to >= static_cast<int>(members_.size())) to = kNobody;
    Member& me = *members_[self];
    const auto [known, is_new] = me.ids.emplace(to, static_cast<PeerId>(me.peers.size()));
    if (!is_new) return known->second;
    me.peers.push_back({to, false});
    if (to == kNobody || members_[to]->gone) break_peer(me, to);
    return known->second;
  }

  bool send(int self, PeerId to, Tag tag, std::span<const std::byte> bytes, Request& request)
      MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    Member& me = *members_[self];
    request.status = MessageStatus::kOk;
    if (me.gone) return false;
    const Member::Peer peer = me.peers[static_cast<size_t>(to)];
    if (peer.broken) {
      request.status = MessageStatus::kFailed;
      return true;
    }
    Member& other = *members_[peer.member];
    Message message{self, tag, static_cast<int64_t>(bytes.size()), {}, &request, bytes.data()};
    message.large = message.bytes > options_.eager_bytes;
    ++messages_;
    bytes_ += message.bytes;
    bool done = false;
    if (!message.large && other.slots_used[self] < options_.fifo_slots) {
      ++other.slots_used[self];
      take_copy(message);
      message.request = nullptr;
      done = true;
    }
    if (other.gone) return done;
    other.inbound.push_back(std::move(message));
    other.on_event();
    return done;
  }

  void receive(int self, const PostedReceive& receive) MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    Member& me = *members_[self];
    receive.request->status = MessageStatus::kOk;
    if (me.gone) return;
    const auto waiting = std::find_if(me.unexpected.begin(), me.unexpected.end(),
                                      [&](const Message& m) { return receive.takes(m); });
    if (waiting == me.unexpected.end()) {
      me.posted.push_back(receive);
      return;
    }
    Message message = std::move(*waiting);
    me.unexpected.erase(waiting);
    match(me, receive, std::move(message));
  }

  void cancel(int self, Request& request) MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    Member& me = *members_[self];
    const auto found = std::find_if(me.posted.begin(), me.posted.end(),
                                    [&](const PostedReceive& r) { return r.request == &request; });
    if (found == me.posted.end()) return;
    me.posted.erase(found);
    me.end(&request, MessageStatus::kCancelled);
  }

  bool progress(int self, Completions& completions) MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    Member& me = *members_[self];
    bool moved = false;
    for (int i = 0; i < options_.deliveries_per_progress && deliver_one(me); ++i) moved = true;
    if (me.pending.done.empty() && me.pending.broken.empty()) return moved;
    completions.done.insert(completions.done.end(), me.pending.done.begin(), me.pending.done.end());
    completions.broken.insert(completions.broken.end(), me.pending.broken.begin(),
                              me.pending.broken.end());
    me.pending = {};
    return true;
  }

  bool arm(int self) MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    Member& me = *members_[self];
    open_event_fd(me);
    eventfd_t ignored;
    while (eventfd_read(me.event_fd.get(), &ignored) == 0) continue;
    if (std::exchange(me.woken, false)) return false;
    if (!me.pending.done.empty() || !me.pending.broken.empty()) return false;
    if (!deliverable(me).empty()) return false;
    me.armed = true;
    return true;
  }

  int event_fd(int self) MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    open_event_fd(*members_[self]);
    return members_[self]->event_fd.get();
  }

  void wake(int self) MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    members_[self]->woken = true;
    members_[self]->signal();
  }

  // The process ends: killed, or by closing its transport.
  void end(int self, bool killed) MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    Member& me = *members_[self];
    if (std::exchange(me.gone, true)) return;
    for (const auto& other : members_) {
      if (other->gone) continue;
      std::erase_if(other->inbound, [&](const Message& m) {
        return m.from == self && (killed || m.request != nullptr);
      });
      for (Message& message : other->unexpected) {
        if (message.from == self) message.request = nullptr;
      }
      for (Transfer& transfer : other->transfers) {
        if (transfer.message.from == self) transfer.message.request = nullptr;
      }
    }
    if (options_.tells_of_death) tell(self, me);
    me.inbound.clear();
    me.unexpected.clear();
    me.posted.clear();
    me.transfers.clear();
    me.pending = {};
  }

  void forget(int self) MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    members_[self]->event_fd.reset();
  }

  void set_held(int self, bool held) MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    members_[self]->held = held;
    if (held) return;
    for (const auto& member : members_) {
      if (!deliverable(*member).empty()) member->on_event();
    }
  }

  int64_t messages() const MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return messages_;
  }
  int64_t bytes() const MESHRUN_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return bytes_;
  }

 private:
  static void take_copy(Message& message) {
    message.copy.assign(message.data, message.data + message.bytes);
    message.data = nullptr;
  }

  // Indices: of inbound messages, then of transfers.
  std::vector<size_t> deliverable(const Member& me) const MESHRUN_REQUIRES(mu_) {
    std::vector<size_t> indices;
    if (me.gone || me.held) return indices;
    for (size_t i = 0; i < me.inbound.size(); ++i) {
      if (!members_[me.inbound[i].from]->held) indices.push_back(i);
    }
    for (size_t i = 0; i < me.transfers.size(); ++i) {
      if (!members_[me.transfers[i].message.from]->held) indices.push_back(me.inbound.size() + i);
    }
    return indices;
  }

  bool deliver_one(Member& me) MESHRUN_REQUIRES(mu_) {
    const std::vector<size_t> indices = deliverable(me);
    if (indices.empty()) return false;
    // The remainder and not a distribution, which differs between standard libraries.
    const size_t index = indices[random_() % indices.size()];
    if (index >= me.inbound.size()) {
      const auto chosen =
          me.transfers.begin() + static_cast<std::ptrdiff_t>(index - me.inbound.size());
      const Transfer transfer = std::move(*chosen);
      me.transfers.erase(chosen);
      carry_out(me, transfer);
      return true;
    }
    // Equal tags of one sender keep their order.
    const auto first = std::find_if(me.inbound.begin(), me.inbound.end(), [&](const Message& m) {
      return m.from == me.inbound[index].from && m.tag == me.inbound[index].tag;
    });
    Message message = std::move(*first);
    me.inbound.erase(first);
    deliver(me, std::move(message));
    return true;
  }

  void deliver(Member& me, Message message) MESHRUN_REQUIRES(mu_) {
    if (!message.large) {
      if (message.request == nullptr) {
        --me.slots_used[message.from];
      } else {
        take_copy(message);
        members_[message.from]->end(std::exchange(message.request, nullptr), MessageStatus::kOk);
      }
    }
    const auto found = std::find_if(me.posted.begin(), me.posted.end(),
                                    [&](const PostedReceive& r) { return r.takes(message); });
    if (found == me.posted.end()) {
      me.unexpected.push_back(std::move(message));
      return;
    }
    const PostedReceive receive = *found;
    me.posted.erase(found);
    match(me, receive, std::move(message));
  }

  void match(Member& me, const PostedReceive& receive, Message message) MESHRUN_REQUIRES(mu_) {
    if (message.bytes > static_cast<int64_t>(receive.into.size())) {
      if (message.request != nullptr) {
        members_[message.from]->end(message.request, MessageStatus::kOk);
      }
      me.end(receive.request, MessageStatus::kTruncated);
    } else if (message.large) {
      me.transfers.push_back({receive, std::move(message)});
      me.on_event();
    } else {
      copy_bytes(receive.into.data(), message.copy.data(), message.bytes);
      end_received(me, receive, message);
    }
  }

  void carry_out(Member& me, const Transfer& transfer) MESHRUN_REQUIRES(mu_) {
    const Message& message = transfer.message;
    if (message.request != nullptr) {
      copy_bytes(transfer.receive.into.data(), message.data, message.bytes);
      end_received(me, transfer.receive, message);
      members_[message.from]->end(message.request, MessageStatus::kOk);
    } else if (!options_.tells_of_death) {
      me.end(transfer.receive.request, MessageStatus::kFailed);
      break_peer(me, message.from);
    }
  }

  static void end_received(Member& me, const PostedReceive& receive, const Message& message) {
    receive.request->bytes = message.bytes;
    receive.request->tag = message.tag;
    me.end(receive.request, MessageStatus::kOk);
  }

  void tell(int self, const Member& me) MESHRUN_REQUIRES(mu_) {
    const auto fail_sends = [&](const Message& message) MESHRUN_REQUIRES(mu_) {
      if (message.request == nullptr || members_[message.from]->gone) return;
      members_[message.from]->end(message.request, MessageStatus::kFailed);
    };
    for (const Message& message : me.inbound) fail_sends(message);
    for (const Message& message : me.unexpected) fail_sends(message);
    for (const Transfer& transfer : me.transfers) fail_sends(transfer.message);
    for (const auto& other : members_) {
      if (!other->gone) break_peer(*other, self);
    }
  }

  static void break_peer(Member& me, int member) {
    const auto id = me.ids.find(member);
    if (id == me.ids.end()) return;
    if (std::exchange(me.peers[static_cast<size_t>(id->second)].broken, true)) return;
    me.pending.broken.push_back({id->second, "the process is gone"});
    me.on_event();
  }

  // Most simulated ranks never sleep.
  static void open_event_fd(Member& me) {
    if (me.event_fd) return;
    me.event_fd.reset(eventfd(me.woken ? 1 : 0, EFD_NONBLOCK | EFD_CLOEXEC));
  }

  const Options options_;
  mutable Mutex mu_;
  std::mt19937_64 random_ MESHRUN_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Member>> members_ MESHRUN_GUARDED_BY(mu_);
  int64_t messages_ MESHRUN_GUARDED_BY(mu_) = 0;
  int64_t bytes_ MESHRUN_GUARDED_BY(mu_) = 0;
};

class MemoryNetwork::Endpoint final : public Transport {
 public:
  explicit Endpoint(Impl& network)
      : network_(network),
        self_(network.add()),
        address_(std::string(kScheme) + std::to_string(self_)) {}
  ~Endpoint() override {
    close();
    network_.forget(self_);
  }

  int self() const { return self_; }

  const std::string& address() const override { return address_; }
  PeerId connect(std::string_view address) override { return network_.connect(self_, address); }
  bool send(PeerId to, Tag tag, std::span<const std::byte> bytes, Request& request) override {
    return network_.send(self_, to, tag, bytes, request);
  }
  void receive(PeerId, Tag tag, Tag mask, std::span<std::byte> bytes, Request& request) override {
    network_.receive(self_, {tag, mask, bytes, &request});
  }
  void cancel(Request& receive) override { network_.cancel(self_, receive); }
  bool progress(Completions& completions) override { return network_.progress(self_, completions); }
  bool arm() override { return network_.arm(self_); }
  int event_fd() const override { return network_.event_fd(self_); }
  void wake() override { network_.wake(self_); }
  void close() override { network_.end(self_, /*killed=*/false); }

 private:
  Impl& network_;
  const int self_;
  const std::string address_;
};

MemoryNetwork::MemoryNetwork(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
MemoryNetwork::~MemoryNetwork() = default;

std::unique_ptr<Transport> MemoryNetwork::create_transport() {
  return std::make_unique<Endpoint>(*impl_);
}

int MemoryNetwork::index_of(const Transport& transport) {
  return static_cast<const Endpoint&>(transport).self();
}

void MemoryNetwork::kill(const Transport& transport) {
  impl_->end(index_of(transport), /*killed=*/true);
}
void MemoryNetwork::hold(const Transport& transport) { impl_->set_held(index_of(transport), true); }
void MemoryNetwork::release(const Transport& transport) {
  impl_->set_held(index_of(transport), false);
}

int64_t MemoryNetwork::messages() const { return impl_->messages(); }
int64_t MemoryNetwork::bytes() const { return impl_->bytes(); }

}  // namespace meshrun::ucx
