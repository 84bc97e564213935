// Several ranks in one thread: an executor each over one MemoryNetwork, stepped in an order drawn
// from a seed, with a clock that moves only when told to.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "parallel/comm/ucx/engine/execution/executor.h"
#include "parallel/comm/ucx/engine/transport/rails_transport.h"
#include "tests/parallel/comm/ucx/memory_transport.h"

namespace meshrun::ucx {

// Holds its user to Transport's contract.
class CheckedTransport final : public Transport {
 public:
  explicit CheckedTransport(std::unique_ptr<Transport> transport)
      : transport_(std::move(transport)) {}

  const std::string& address() const override { return transport_->address(); }
  PeerId connect(std::string_view address) override { return transport_->connect(address); }
  bool send(PeerId to, Tag tag, std::span<const std::byte> bytes, Request& request) override {
    open(request);
    const bool done = transport_->send(to, tag, bytes, request);
    if (done) open_.erase(&request);
    return done;
  }
  void receive(PeerId from, Tag tag, Tag mask, std::span<std::byte> bytes,
               Request& request) override {
    open(request);
    transport_->receive(from, tag, mask, bytes, request);
  }
  void cancel(Request& receive) override {
    EXPECT_TRUE(open_.count(&receive)) << "cancelled though it is done";
    EXPECT_FALSE(is_closed_);
    transport_->cancel(receive);
  }
  bool progress(Completions& completions) override {
    EXPECT_FALSE(is_closed_);
    const size_t before = completions.done.size();
    const bool moved = transport_->progress(completions);
    for (size_t i = before; i < completions.done.size(); ++i) open_.erase(completions.done[i]);
    return moved;
  }
  bool arm() override { return transport_->arm(); }
  int event_fd() const override { return transport_->event_fd(); }
  void wake() override { transport_->wake(); }
  void close() override {
    is_closed_ = true;
    transport_->close();
  }

 private:
  void open(Request& request) {
    EXPECT_FALSE(is_closed_);
    EXPECT_TRUE(open_.insert(&request).second) << "posted twice";
  }

  const std::unique_ptr<Transport> transport_;
  std::set<Request*> open_;
  bool is_closed_ = false;
};

class Simulation {
 public:
  using Handle = std::shared_ptr<Operation>;

  // With most seeds, most ranks have heaps. With every fourth seed, each rank is on a host of its
  // own, and two networks connect the hosts.
  Simulation(int ranks, MemoryNetwork::Options options) : random_(options.seed + 1), ranks_(ranks) {
    networks_.push_back(std::make_unique<MemoryNetwork>(options));
    if (options.seed % 4 == 3) networks_.push_back(std::make_unique<MemoryNetwork>(options));
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (options.seed % 3 > 0 && (options.seed + rank) % 5 > 0) {
        ranks_[rank].heap = SharedHeap::create(8 << 20);
      }
      ranks_[rank].executor = std::make_unique<Executor>(
          std::make_unique<CheckedTransport>(create_transport(rank)), clock, 0, heap(rank));
    }
  }
  ~Simulation() {
    for (Rank& rank : ranks_) rank.executor.reset();
  }

  // On all its members, which are ranks of the simulation in the order of their ranks in the group.
  void add_group(const std::string& name, const std::vector<int>& members,
                 bool check_headers = true) {
    Group& group = groups_[name];
    group.members = members;
    group.check_headers = check_headers;
    for (size_t rank = 0; rank < members.size(); ++rank) {
      GroupConfig config;
      config.name = name;
      config.rank = static_cast<int>(rank);
      config.size = static_cast<int>(members.size());
      config.world_ranks = members;
      config.check_headers = check_headers;
      config.least_offered = config.least_lent = 64;
      group.numbers.push_back(executor(members[rank]).add_group(config));
    }
  }
  void add_world(bool check_headers = true) {
    std::vector<int> all;
    for (int rank = 0; rank < size(); ++rank) all.push_back(rank);
    add_group("world", all, check_headers);
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Executor& executor(int rank) { return *ranks_[rank].executor; }
  SharedHeap* heap(size_t rank) { return ranks_[rank].heap.get(); }
  // Messages from and to it wait.
  void hold(int rank) {
    for (size_t i = 0; i < networks_.size(); ++i) networks_[i]->hold(*ranks_[rank].rails[i]);
  }
  void release(int rank) {
    for (size_t i = 0; i < networks_.size(); ++i) networks_[i]->release(*ranks_[rank].rails[i]);
  }
  const std::vector<int>& members(const std::string& group) { return groups_[group].members; }
  bool checks_headers(const std::string& group) { return groups_[group].check_headers; }
  // Number of the group on one of its members.
  uint32_t number(int rank, const std::string& group) {
    const Group& g = groups_[group];
    const auto at = std::find(g.members.begin(), g.members.end(), rank);
    return g.numbers[at - g.members.begin()];
  }
  uint64_t draw(uint64_t below) { return random_() % below; }

  template <typename Spec>
  Handle submit(int rank, const std::string& group, Spec spec) {
    Handle handle = executor(rank).submit(number(rank, group), std::move(spec));
    take(rank);
    return handle;
  }
  void remove_group(int rank, const std::string& group) {
    executor(rank).remove_group(number(rank, group));
    take(rank);
  }

  // As SIGKILL. Nobody is told.
  void kill(int rank) {
    for (size_t i = 0; i < networks_.size(); ++i) networks_[i]->kill(*ranks_[rank].rails[i]);
    ranks_[rank].is_alive = false;
  }
  // As an exit in order: closes, and tells the others.
  void leave(int rank) {
    executor(rank).close("it left");
    ranks_[rank].is_alive = false;
    tell(PeerLeft{rank});
  }
  void tell(const PeerNews& news) {
    for (int rank = 0; rank < size(); ++rank) {
      if (!is_alive(rank)) continue;
      executor(rank).heard(news);
      take(rank);
    }
  }
  bool is_alive(int rank) const { return ranks_[rank].is_alive; }

  // One round of every rank, in some order. False: nothing moved anywhere.
  bool step() {
    std::vector<int> order;
    for (int rank = 0; rank < size(); ++rank) {
      if (is_alive(rank) && asleep.count(rank) == 0) order.push_back(rank);
    }
    std::shuffle(order.begin(), order.end(), random_);
    bool moved = false;
    for (const int rank : order) {
      moved = answer_look_ups(rank) || moved;
      moved = executor(rank).progress() || moved;
      take(rank);
    }
    return moved;
  }
  // Until nothing moves; the clock stands still.
  void settle() {
    for (int still = 0; still < 3;) still = step() ? 0 : still + 1;
  }
  // As an engine that wakes up at least every 10 ms.
  void pass(std::chrono::nanoseconds time) {
    constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(10);
    for (; time.count() > 0; time -= std::min(time, kSlice)) {
      clock.Advance(std::min(time, kSlice));
      settle();
    }
  }

  FakeClock clock;
  // Ranks that nobody moves forward.
  std::set<int> asleep;
  // What executors handed back.
  std::vector<std::shared_ptr<Operation>> finished;
  std::vector<std::string> dumps;
  // By rank: memory that was let go of stays here only where a test asks.
  std::function<void(int rank, const std::shared_ptr<void>& memory)> on_memory;

 private:
  std::unique_ptr<Transport> create_transport(size_t rank) {
    std::vector<std::unique_ptr<Transport>> rails;
    for (const auto& network : networks_) {
      rails.push_back(network->create_transport());
      ranks_[rank].rails.push_back(rails.back().get());
    }
    if (rails.size() == 1) return std::move(rails.front());
    return create_rails_transport(std::move(rails), std::to_string(rank)).value();
  }

  struct Group {
    std::vector<int> members;
    std::vector<uint32_t> numbers;
    bool check_headers = true;
  };
  struct LookUp {
    uint32_t group;
    int rank;
  };
  struct Rank {
    std::unique_ptr<SharedHeap> heap;
    std::unique_ptr<Executor> executor;
    std::vector<const Transport*> rails;  // by network
    bool is_alive = true;
    std::vector<LookUp> look_ups;
  };

  void take(int rank) {
    Actions actions = executor(rank).take();
    for (const Actions::LookUp& look_up : actions.make_seldom().look_ups) {
      for (const int peer : look_up.ranks) ranks_[rank].look_ups.push_back({look_up.group, peer});
    }
    for (const auto& memory : actions.memory) {
      if (on_memory) on_memory(rank, memory);
    }
    finished.insert(finished.end(), actions.finished.begin(), actions.finished.end());
    const std::vector<std::string>& told = actions.make_seldom().dumps;
    dumps.insert(dumps.end(), told.begin(), told.end());
  }

  // The store answers in any order, and never twice in one step.
  bool answer_look_ups(int rank) {
    std::vector<LookUp>& waiting = ranks_[rank].look_ups;
    if (waiting.empty()) return false;
    const size_t chosen = draw(waiting.size());
    const LookUp look_up = waiting[chosen];
    waiting.erase(waiting.begin() + chosen);
    for (const auto& [name, group] : groups_) {
      const auto at = std::find(group.members.begin(), group.members.end(), rank);
      if (at == group.members.end() || group.numbers[at - group.members.begin()] != look_up.group) {
        continue;
      }
      const Executor& peer = executor(group.members[look_up.rank]);
      executor(rank).found(
          look_up.group, look_up.rank,
          parse_address_record(serialize(peer.address_record(group.numbers[look_up.rank]))), "");
      take(rank);
    }
    return true;
  }

  std::vector<std::unique_ptr<MemoryNetwork>> networks_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::map<std::string, Group> groups_;
};

inline OperationSpec barrier_spec() {
  OperationSpec spec;
  spec.signature.kind = OperationKind::kBarrier;
  spec.text = [] { return std::string("barrier"); };
  return spec;
}

inline PointToPointSpec point_to_point_spec(bool is_send, int peer, std::vector<std::byte>& memory,
                                            uint32_t user_tag = 0) {
  PointToPointSpec spec;
  spec.is_send = is_send;
  spec.peer = peer;
  spec.user_tag = user_tag;
  spec.memory = contiguous(memory.data(), static_cast<int64_t>(memory.size()));
  return spec;
}

}  // namespace meshrun::ucx
