#include "parallel/comm/ucx/engine/transport/rails_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/parallel/comm/ucx/memory_transport.h"

namespace meshrun::ucx {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kEager = 64;

Tag data(int sender, uint32_t message, uint64_t sequence = 0) {
  return collective_tag(TagKind::kData, 1, sender, sequence, message);
}

struct Pending : Request {
  bool done = false;
};

// A process: its transport, and the rails in it.
struct Process {
  std::vector<Transport*> rails;
  std::unique_ptr<Transport> transport;
  std::vector<BrokenPeer> broken;

  bool step() {
    Completions completions;
    const bool moved = transport->progress(completions);
    for (Request* request : completions.done) static_cast<Pending*>(request)->done = true;
    for (BrokenPeer& peer : completions.broken) broken.push_back(std::move(peer));
    return moved;
  }
  bool is_readable() const {
    pollfd descriptor{transport->event_fd(), POLLIN, 0};
    return ::poll(&descriptor, 1, 0) == 1;
  }
  // Nothing is left to do.
  void rest() {
    while (!transport->arm()) step();
  }
};

// Each rail has a network of its own, whose messages tell where they went.
class RailsTransportTest : public testing::Test {
 protected:
  void lay(int rails, MemoryNetwork::Options options = {}) {
    processes_.clear();
    networks_.clear();
    options.eager_bytes = kEager;
    for (int i = 0; i < rails; ++i) {
      options.seed += 10;
      networks_.push_back(std::make_unique<MemoryNetwork>(options));
    }
  }
  // With the first `rails` of them.
  Process& add(const std::string& host, int rails) {
    Process& process = processes_.emplace_back();
    std::vector<std::unique_ptr<Transport>> made;
    for (int i = 0; i < rails; ++i) {
      made.push_back(networks_[static_cast<size_t>(i)]->create_transport());
      process.rails.push_back(made.back().get());
    }
    process.transport = create_rails_transport(std::move(made), host).value();
    return process;
  }
  Process& add(const std::string& host) { return add(host, static_cast<int>(networks_.size())); }

  static PeerId connect(Process& from, const Process& to) {
    return from.transport->connect(to.transport->address());
  }
  Pending& send(Process& from, const Process& to, Tag tag, std::span<const std::byte> bytes) {
    Pending& pending = requests_.emplace_back();
    pending.done = from.transport->send(connect(from, to), tag, bytes, pending);
    return pending;
  }
  Pending& receive(Process& at, const Process& from, Tag tag, std::span<std::byte> bytes) {
    Pending& pending = requests_.emplace_back();
    at.transport->receive(connect(at, from), tag, kExactly, bytes, pending);
    return pending;
  }
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Process& process : processes_) moved |= process.step();
    }
  }
  std::vector<int64_t> messages_by_rail() const {
    std::vector<int64_t> counts;
    for (const auto& network : networks_) counts.push_back(network->messages());
    return counts;
  }
  // One message after the other, each received. By rail, how many it had.
  std::vector<int64_t> carry(Process& from, Process& to, const std::vector<Tag>& tags) {
    const std::vector<int64_t> before = messages_by_rail();
    for (const Tag tag : tags) {
      std::vector<std::byte> into(large_.size());
      Pending& received = receive(to, from, tag, into);
      Pending& sent = send(from, to, tag, large_);
      settle();
      EXPECT_TRUE(sent.done && received.done) << std::hex << tag;
      EXPECT_EQ(into, large_);
    }
    std::vector<int64_t> counts = messages_by_rail();
    for (size_t i = 0; i < counts.size(); ++i) counts[i] -= before[i];
    return counts;
  }

  std::vector<std::unique_ptr<MemoryNetwork>> networks_;
  std::deque<Process> processes_;
  std::deque<Pending> requests_;
  std::vector<std::byte> small_ = std::vector<std::byte>(kEager, std::byte{1});
  std::vector<std::byte> large_ = std::vector<std::byte>(kEager + 1, std::byte{2});
  std::vector<std::byte> into_ = std::vector<std::byte>(kEager + 1);
};

TEST_F(RailsTransportTest, DataTakesTurnsByItsNumber) {
  for (const int rails : {1, 2, 3, 4}) {
    lay(rails);
    Process &a = add("a"), &b = add("b");
    std::vector<Tag> tags;
    for (uint32_t message = 0; message < 12; ++message) tags.push_back(data(0, message));
    EXPECT_THAT(carry(a, b, tags), Each(12 / rails)) << rails;
    EXPECT_THAT(carry(b, a, tags), Each(12 / rails)) << rails;
  }
}

TEST_F(RailsTransportTest, OperationsOfOneMessageTakeTurnsAndSoDoTheirSenders) {
  lay(2);
  Process &a = add("a"), &b = add("b");
  EXPECT_THAT(carry(a, b, {data(0, 0, 1), data(0, 0, 2), data(0, 0, 3), data(0, 0, 4)}), Each(2));
  EXPECT_THAT(carry(a, b, {data(0, 0), data(1, 0), data(2, 0), data(3, 0)}), Each(2));
}

TEST_F(RailsTransportTest, HeadersOffersAndMessagesOfPairsTakeTheFirst) {
  lay(2);
  Process &a = add("a"), &b = add("b");
  std::vector<Tag> tags;
  for (uint32_t i = 0; i < 4; ++i) {
    tags.push_back(collective_tag(TagKind::kHeader, 1, 0, i, i));
    tags.push_back(offer_tag(1, 0, i, i));
    tags.push_back(point_to_point_tag(1, 0, i));
    tags.push_back(collective_tag(TagKind::kControl, 1, i, 0, 0));
  }
  EXPECT_THAT(carry(a, b, tags), ElementsAre(16, 0));
}

TEST_F(RailsTransportTest, AReceiveFromAnySenderHasTheFirst) {
  lay(2);
  Process &a = add("a"), &b = add("b");
  Pending& received = requests_.emplace_back();
  b.transport->receive(kAnyPeer, point_to_point_tag(1, 0, 7), kAnySender, into_, received);
  send(a, b, point_to_point_tag(1, 3, 7), small_);
  settle();
  EXPECT_TRUE(received.done);
  EXPECT_EQ(sender_of(received.tag), 3);
}

TEST_F(RailsTransportTest, OneHostHasTheFirstOnly) {
  lay(2);
  Process &a = add("a"), &beside = add("a"), &b = add("b");
  EXPECT_THAT(carry(a, beside, {data(0, 0), data(0, 1), data(0, 2)}), ElementsAre(3, 0));
  EXPECT_THAT(carry(a, a, {data(0, 0), data(0, 1)}), ElementsAre(2, 0)) << "oneself";
  EXPECT_THAT(carry(beside, b, {data(0, 0), data(0, 1)}), ElementsAre(1, 1));
}

// Two processes that name different numbers of interfaces, or none.
TEST_F(RailsTransportTest, AnotherNumberOfRailsHasTheFirstOnly) {
  lay(3);
  Process &three = add("a", 3), &two = add("b", 2), &one = add("c", 1);
  Process& plain = processes_.emplace_back();
  plain.transport = networks_[0]->create_transport();
  const std::vector<Tag> tags = {data(0, 0), data(0, 1), data(0, 2)};
  for (Process* other : {&two, &one, &plain}) {
    EXPECT_THAT(carry(three, *other, tags), ElementsAre(3, 0, 0));
    EXPECT_THAT(carry(*other, three, tags), ElementsAre(3, 0, 0));
  }
}

TEST_F(RailsTransportTest, EqualTagsKeepTheirOrderUnderEverySeed) {
  static constexpr int kMessages = 8;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    MemoryNetwork::Options options;
    options.seed = seed;
    lay(2, options);
    Process &a = add("a"), &b = add("b");
    std::vector<std::vector<std::byte>> from(kMessages), into(kMessages, into_);
    for (int i = 0; i < kMessages; ++i) {
      from[i].assign(i % 4 < 2 ? kEager + 1 : kEager, static_cast<std::byte>(i));
      send(a, b, data(0, i % 2), from[i]);
      if (i % 3 == 0) b.step();
    }
    for (int i = 0; i < kMessages; ++i) receive(b, a, data(0, i % 2), into[i]);
    settle();
    for (int i = 0; i < kMessages; ++i) EXPECT_EQ(into[i][0], std::byte(i)) << "seed " << seed;
  }
}

TEST_F(RailsTransportTest, CancelFindsTheRailOfEachReceive) {
  lay(3);
  Process &a = add("a"), &b = add("b");
  std::vector<Pending*> receives;
  for (uint32_t message = 0; message < 6; ++message) {
    receives.push_back(&receive(a, b, data(1, message), into_));
  }
  for (Pending* pending : receives) a.transport->cancel(*pending);
  settle();
  for (const Pending* pending : receives) {
    EXPECT_TRUE(pending->done);
    EXPECT_EQ(pending->status, MessageStatus::kCancelled);
  }
  // The request of a receive on another rail before.
  Pending& again = *receives[1];
  again.done = false;
  a.transport->receive(connect(a, b), data(1, 0), kExactly, into_, again);
  a.transport->cancel(again);
  settle();
  EXPECT_TRUE(again.done);
}

TEST_F(RailsTransportTest, APeerBreaksOnceWithWhicheverRailIsFirst) {
  for (const size_t first : {0, 1}) {
    MemoryNetwork::Options telling;
    telling.tells_of_death = true;
    lay(2, telling);
    Process &a = add("a"), &beside = add("a"), &b = add("b"), &c = add("c");
    // So rails have different numbers for the same peer.
    connect(a, a);
    connect(a, beside);
    const PeerId c_here = connect(a, c), b_here = connect(a, b);
    networks_[first]->kill(*b.rails[first]);
    settle();
    ASSERT_EQ(a.broken.size(), 1u);
    EXPECT_EQ(a.broken[0].peer, b_here);
    for (uint32_t message = 0; message < 2; ++message) {
      Pending& failed = send(a, b, data(0, message), small_);
      EXPECT_TRUE(failed.done) << "on both";
      EXPECT_EQ(failed.status, MessageStatus::kFailed);
    }
    networks_[1 - first]->kill(*b.rails[1 - first]);
    settle();
    EXPECT_EQ(a.broken.size(), 1u) << "told before";
    EXPECT_THAT(carry(a, c, {data(0, 0), data(0, 1)}), ElementsAre(1, 1)) << c_here;
    // Both in one round.
    networks_[0]->kill(*c.rails[0]);
    networks_[1]->kill(*c.rails[1]);
    settle();
    ASSERT_EQ(a.broken.size(), 2u);
    EXPECT_EQ(a.broken[1].peer, c_here);
    EXPECT_THAT(beside.broken, IsEmpty()) << "it knows neither";
  }
}

TEST_F(RailsTransportTest, ConnectingToADeadProcessBreaksItOnce) {
  lay(2);
  Process &a = add("a"), &b = add("b");
  for (size_t rail : {0, 1}) networks_[rail]->kill(*b.rails[rail]);
  const PeerId id = connect(a, b);
  settle();
  ASSERT_EQ(a.broken.size(), 1u);
  EXPECT_EQ(a.broken[0].peer, id);
}

TEST_F(RailsTransportTest, ArmedSleepersHearOfEachRail) {
  lay(3);
  Process &a = add("a"), &b = add("b");
  for (uint32_t message = 0; message < 6; ++message) {
    Pending& received = receive(a, b, data(0, message), into_);
    a.rest();
    EXPECT_FALSE(a.is_readable());
    send(b, a, data(0, message), small_);
    EXPECT_TRUE(a.is_readable()) << message;
    EXPECT_TRUE(a.is_readable()) << "as long as nobody looks";
    EXPECT_FALSE(a.transport->arm()) << message;
    a.step();
    EXPECT_TRUE(received.done);
  }
}

TEST_F(RailsTransportTest, WakeWakesASleeperAndIsNotLost) {
  lay(2);
  Process& a = add("a");
  a.rest();
  a.transport->wake();
  EXPECT_TRUE(a.is_readable());
  a.rest();
  EXPECT_FALSE(a.is_readable());
  a.transport->wake();
  EXPECT_FALSE(a.transport->arm());
}

TEST_F(RailsTransportTest, CloseEndsAllRails) {
  lay(2);
  Process &a = add("a"), &b = add("b");
  std::vector<std::byte> before = into_;
  for (uint32_t message = 0; message < 2; ++message) receive(a, b, data(1, message), into_);
  a.transport->close();
  for (uint32_t message = 0; message < 2; ++message) send(b, a, data(1, message), small_);
  for (int i = 0; i < 10; ++i) b.step();
  EXPECT_EQ(into_, before);
}

TEST_F(RailsTransportTest, TheSameAddressIsTheSamePeer) {
  lay(2);
  Process &a = add("a"), &b = add("b"), &c = add("c");
  EXPECT_EQ(connect(a, c), 0);
  EXPECT_EQ(connect(a, b), 1);
  EXPECT_EQ(connect(a, c), 0);
  EXPECT_LT(a.transport->address().size(), 64u << 10);
}

// Records are read from a store: not all are whole.
TEST_F(RailsTransportTest, APartOfAnAddressIsABrokenPeerOrTheFirstRail) {
  lay(2);
  Process &a = add("a"), &b = add("b");
  const std::string whole = b.transport->address();
  for (size_t cut = 1; cut < whole.size(); ++cut) {
    Process& other = add("a");
    other.transport->connect(std::string_view(whole).substr(cut));
    other.transport->connect(std::string_view(whole).substr(0, cut));
    other.step();
  }
  EXPECT_THAT(carry(a, b, {data(0, 0), data(0, 1)}), ElementsAre(1, 1));
}

}  // namespace
}  // namespace meshrun::ucx
