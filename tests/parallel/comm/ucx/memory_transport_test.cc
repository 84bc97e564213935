#include "tests/parallel/comm/ucx/memory_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

namespace meshrun::ucx {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kEager = 64;

Tag tag_of(int sender, uint32_t message) {
  return collective_tag(TagKind::kData, 1, sender, 0, message);
}

struct Pending : Request {
  bool done = false;
};

class MemoryNetworkTest : public testing::Test {
 protected:
  static MemoryNetwork::Options options(uint64_t seed = 0) {
    MemoryNetwork::Options options;
    options.seed = seed;
    options.eager_bytes = kEager;
    return options;
  }

  void start(int ranks, const MemoryNetwork::Options& options) {
    transports_.clear();
    network_ = std::make_unique<MemoryNetwork>(options);
    for (int i = 0; i < ranks; ++i) transports_.push_back(network_->create_transport());
    for (const auto& transport : transports_) {
      for (const auto& other : transports_) transport->connect(other->address());
    }
    broken_.assign(ranks, {});
  }

  Transport& at(int rank) { return *transports_[rank]; }
  // PeerId and rank are equal here.
  bool send(int from, int to, uint32_t message, std::span<const std::byte> bytes,
            Pending& pending) {
    pending.done = at(from).send(to, tag_of(from, message), bytes, pending);
    return pending.done;
  }
  void receive(int at_rank, int from, uint32_t message, std::span<std::byte> bytes,
               Pending& pending) {
    at(at_rank).receive(from, tag_of(from, message), kExactly, bytes, pending);
  }
  bool step(int rank, std::vector<Request*>* order = nullptr) {
    Completions completions;
    const bool moved = at(rank).progress(completions);
    for (Request* request : completions.done) static_cast<Pending*>(request)->done = true;
    if (order != nullptr)
      order->insert(order->end(), completions.done.begin(), completions.done.end());
    for (const BrokenPeer& broken : completions.broken) broken_[rank].push_back(broken.peer);
    return moved;
  }
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t i = 0; i < transports_.size(); ++i) moved |= step(static_cast<int>(i));
    }
  }

  // In which order messages of two senders come with this seed: sender * 100 + message.
  std::vector<int> order_of_arrival(uint64_t seed) {
    static constexpr int kMessages = 6;
    start(3, options(seed));
    std::vector<Pending> sends(2 * kMessages);
    std::vector<Pending> receives(2 * kMessages);
    std::vector<std::byte> memory(kEager * 4);
    for (int i = 0; i < 2 * kMessages; ++i) {
      const int sender = 1 + i % 2;
      const auto message = static_cast<uint32_t>(i / 2);
      const size_t bytes = i % 3 == 0 ? kEager * 2 : kEager / 2;
      receive(0, sender, message, memory, receives[i]);
      send(sender, 0, message, std::span(memory).first(bytes), sends[i]);
    }
    std::vector<Request*> done;
    while (done.size() < receives.size()) EXPECT_TRUE(step(0, &done));
    std::vector<int> order;
    for (const Request* request : done) {
      order.push_back(sender_of(request->tag) * 100 + static_cast<int>(request->tag & 63));
    }
    settle();
    return order;
  }

  std::unique_ptr<MemoryNetwork> network_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::vector<PeerId>> broken_;  // by rank
  std::vector<std::byte> small_ = std::vector<std::byte>(kEager, std::byte{1});
  std::vector<std::byte> large_ = std::vector<std::byte>(kEager + 1, std::byte{2});
  std::vector<std::byte> into_ = std::vector<std::byte>(kEager + 1);
};

TEST_F(MemoryNetworkTest, ASeedGivesItsOrderAgain) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    EXPECT_EQ(order_of_arrival(seed), order_of_arrival(seed)) << seed;
  }
}

TEST_F(MemoryNetworkTest, SeedsGiveManyOrders) {
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) orders.insert(order_of_arrival(seed));
  EXPECT_GE(orders.size(), 19u);
}

TEST_F(MemoryNetworkTest, EqualTagsKeepTheirOrderUnderEverySeed) {
  static constexpr int kMessages = 10;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    start(2, options(seed));
    std::vector<Pending> sends(kMessages);
    std::vector<Pending> receives(kMessages);
    std::vector<std::vector<std::byte>> from(kMessages);
    std::vector<std::vector<std::byte>> into(kMessages, into_);
    for (int i = 0; i < kMessages; ++i) {
      from[i].assign(i % 3 == 0 ? kEager + 1 : kEager, static_cast<std::byte>(i));
      send(0, 1, 0, from[i], sends[i]);
      if (i % 2 == 0) step(1);
    }
    for (int i = 0; i < kMessages; ++i) receive(1, 0, 0, into[i], receives[i]);
    settle();
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_TRUE(sends[i].done && receives[i].done);
      EXPECT_EQ(into[i][0], static_cast<std::byte>(i)) << "seed " << seed;
    }
  }
}

TEST_F(MemoryNetworkTest, OneStepDeliversAsManyAsTheOptionsSay) {
  MemoryNetwork::Options three = options();
  three.deliveries_per_progress = 3;
  start(2, three);
  std::vector<Pending> sends(5);
  std::vector<Pending> receives(5);
  for (uint32_t i = 0; i < 5; ++i) {
    receive(1, 0, i, into_, receives[i]);
    EXPECT_TRUE(send(0, 1, i, small_, sends[i]));
  }
  const auto received = [&] { return std::ranges::count(receives, true, &Pending::done); };
  EXPECT_TRUE(step(1));
  EXPECT_EQ(received(), 3);
  EXPECT_TRUE(step(1));
  EXPECT_EQ(received(), 5);
  EXPECT_FALSE(step(1));
}

TEST_F(MemoryNetworkTest, ALargeMessageIsReadFromTheSendersMemoryWhenItIsTaken) {
  start(2, options());
  Pending sent, received;
  EXPECT_FALSE(send(0, 1, 0, large_, sent));
  settle();
  EXPECT_FALSE(sent.done);
  receive(1, 0, 0, into_, received);
  large_[3] = std::byte{99};
  settle();
  EXPECT_TRUE(sent.done);
  EXPECT_TRUE(received.done);
  EXPECT_EQ(into_, large_);
}

TEST_F(MemoryNetworkTest, ASmallSendWaitsWhereThePeersQueueIsFull) {
  MemoryNetwork::Options two = options();
  two.fifo_slots = 2;
  start(2, two);
  std::vector<Pending> sends(4);
  EXPECT_TRUE(send(0, 1, 0, small_, sends[0]));
  EXPECT_TRUE(send(0, 1, 1, small_, sends[1]));
  EXPECT_FALSE(send(0, 1, 2, small_, sends[2]));
  settle();
  EXPECT_TRUE(sends[2].done) << "delivered, though not received";
  EXPECT_TRUE(send(0, 1, 3, small_, sends[3]));
}

TEST_F(MemoryNetworkTest, HeldMessagesWaitForTheirRelease) {
  start(3, options());
  std::vector<Pending> sends(3);
  std::vector<Pending> receives(3);
  receive(0, 1, 0, into_, receives[0]);
  receive(1, 0, 0, into_, receives[1]);
  receive(2, 0, 1, into_, receives[2]);
  network_->hold(at(1));
  send(1, 0, 0, small_, sends[0]);
  send(0, 1, 0, large_, sends[1]);
  send(0, 2, 1, small_, sends[2]);
  settle();
  EXPECT_FALSE(receives[0].done);
  EXPECT_FALSE(receives[1].done);
  EXPECT_TRUE(receives[2].done) << "between others";
  EXPECT_TRUE(at(0).arm());
  network_->release(at(1));
  settle();
  EXPECT_TRUE(receives[0].done);
  EXPECT_TRUE(receives[1].done);
}

TEST_F(MemoryNetworkTest, CountsMessagesAndBytes) {
  start(2, options());
  Pending a, b, c;
  send(0, 1, 0, small_, a);
  send(1, 0, 0, large_, b);
  send(1, 1, 1, {}, c);
  EXPECT_EQ(network_->messages(), 3);
  EXPECT_EQ(network_->bytes(), 2 * kEager + 1);
}

TEST_F(MemoryNetworkTest, WhatAKilledRankHasNotDeliveredIsLost) {
  start(2, options());
  Pending delivered, lost, first, second;
  send(1, 0, 0, small_, delivered);
  settle();
  send(1, 0, 1, small_, lost);
  network_->kill(at(1));
  receive(0, 1, 0, into_, first);
  receive(0, 1, 1, into_, second);
  settle();
  EXPECT_TRUE(first.done);
  EXPECT_EQ(first.status, MessageStatus::kOk);
  EXPECT_FALSE(second.done);
  at(0).cancel(second);
  settle();
  EXPECT_EQ(second.status, MessageStatus::kCancelled);
  EXPECT_THAT(broken_[0], IsEmpty());
}

TEST_F(MemoryNetworkTest, SmallMessagesOfALeavingRankArrive) {
  start(2, options());
  Pending small, large, first, second;
  send(1, 0, 0, small_, small);
  send(1, 0, 1, large_, large);
  at(1).close();
  receive(0, 1, 0, into_, first);
  receive(0, 1, 1, into_, second);
  settle();
  EXPECT_TRUE(first.done);
  EXPECT_FALSE(second.done);
}

TEST_F(MemoryNetworkTest, SendsToASilentlyDeadRankFillItsQueueAndStay) {
  start(2, options());
  network_->kill(at(1));
  std::vector<Pending> sends(66);
  for (uint32_t i = 0; i < 64; ++i) EXPECT_TRUE(send(0, 1, i, small_, sends[i]));
  EXPECT_FALSE(send(0, 1, 64, small_, sends[64]));
  EXPECT_FALSE(send(0, 1, 65, large_, sends[65]));
  settle();
  EXPECT_FALSE(sends[64].done);
  EXPECT_FALSE(sends[65].done);
  EXPECT_THAT(broken_[0], IsEmpty());
}

TEST_F(MemoryNetworkTest, ADeathThatIsToldFailsSendsAndBreaksThePeerOfAll) {
  MemoryNetwork::Options telling = options();
  telling.tells_of_death = true;
  start(3, telling);
  Pending before, after;
  EXPECT_FALSE(send(0, 1, 0, large_, before));
  while (!at(2).arm()) step(2);
  network_->kill(at(1));
  EXPECT_FALSE(at(2).arm()) << "it has something to hear";
  settle();
  EXPECT_TRUE(before.done);
  EXPECT_EQ(before.status, MessageStatus::kFailed);
  EXPECT_TRUE(send(0, 1, 1, small_, after));
  EXPECT_EQ(after.status, MessageStatus::kFailed);
  EXPECT_THAT(broken_[0], ElementsAre(1));
  EXPECT_THAT(broken_[2], ElementsAre(1));
}

// The announcement has been matched, the copy not begun.
TEST_F(MemoryNetworkTest, AReceiveOfADeadRanksDataFailsOrIsAbandoned) {
  for (const bool tells : {false, true}) {
    MemoryNetwork::Options chosen = options();
    chosen.tells_of_death = tells;
    start(2, chosen);
    Pending sent, received;
    auto memory = std::make_unique<std::vector<std::byte>>(large_);
    receive(0, 1, 0, into_, received);
    send(1, 0, 0, *memory, sent);
    EXPECT_TRUE(step(0));
    network_->kill(at(1));
    memory.reset();
    settle();
    at(0).cancel(received);
    settle();
    EXPECT_EQ(received.done, !tells);
    EXPECT_EQ(received.status, tells ? MessageStatus::kOk : MessageStatus::kFailed);
    EXPECT_THAT(broken_[0], ElementsAre(1));
  }
}

TEST_F(MemoryNetworkTest, AKilledRanksCallsDoNothing) {
  start(2, options());
  Pending sent, received;
  network_->kill(at(1));
  EXPECT_FALSE(send(1, 0, 0, small_, sent));
  receive(1, 0, 0, into_, received);
  at(1).cancel(received);
  settle();
  EXPECT_FALSE(sent.done);
  EXPECT_FALSE(received.done);
  EXPECT_EQ(network_->messages(), 0);
}

TEST_F(MemoryNetworkTest, AnAddressOfNobodyIsABrokenPeer) {
  start(1, options());
  Pending sent;
  const PeerId nobody = at(0).connect("memory:7");
  settle();
  EXPECT_THAT(broken_[0], ElementsAre(nobody));
  EXPECT_TRUE(at(0).send(nobody, 0, small_, sent));
  EXPECT_EQ(sent.status, MessageStatus::kFailed);
}

}  // namespace
}  // namespace meshrun::ucx
