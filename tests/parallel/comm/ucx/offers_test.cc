#include "parallel/comm/ucx/engine/execution/offers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "parallel/comm/ucx/engine/protocol/offer_message.h"
#include "parallel/comm/ucx/engine/values/tag.h"
#include "tests/parallel/comm/ucx/lent_memory.h"
#include "tests/parallel/comm/ucx/recorded_transport.h"

namespace meshrun::ucx {
namespace {

TEST_F(LentMemoryTest, TheSenderWritesToWhereTheBytesBelong) {
  const auto received = receive(), sent = send();
  ranks_.settle();
  EXPECT_TRUE(received->is_done() && !received->failure());
  EXPECT_TRUE(sent->is_done() && !sent->failure());
  EXPECT_EQ(Bytes(target_, target_ + kBytes), bytes(kBytes, 7));
  EXPECT_EQ(ranks_.executor(1).counters().pushed_bytes, kBytes);
  EXPECT_EQ(ranks_.executor(1).counters().sent_bytes, kBytes);
  EXPECT_EQ(ranks_.executor(1).counters().copied_bytes, 0);
  EXPECT_FALSE(is_kept());
}

// Both ends have the message in rows, of different lengths, and can go through scratch memory.
class LentRowsTest : public LentMemoryTest {
 protected:
  static constexpr Layout kReceived{10, 64, 90}, kSent{40, 25, 31};
  // Not from the beginning, nor to the end.
  static constexpr int64_t kOffset = 130, kPart = 400;

  void exchange(StridedSpan output) {
    for (size_t i = 0; i < sent_.size(); ++i) sent_[i] = static_cast<std::byte>(i % 251 + 1);
    const auto run = [&](int rank, bool is_send) {
      ScheduleBuilder builder(2);
      const Region staging = builder.scratch(kPart);
      if (is_send) {
        builder.send(0, {Space::kInput, 0, kOffset, kPart}, {}, staging);
      } else {
        builder.receive(1, {Space::kOutput, 0, kOffset, kPart}, {}, staging);
      }
      OperationSpec spec = barrier_spec();
      spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
      spec.inputs = {ConstStridedSpan(sent_.data(), kSent)};
      spec.outputs = {output};
      return ranks_.submit(rank, "world", std::move(spec));
    };
    const auto received = run(0, false), sent = run(1, true);
    ranks_.settle();
    EXPECT_TRUE(received->is_done() && !received->failure());
    EXPECT_TRUE(sent->is_done() && !sent->failure());
    Bytes expected(kPart), found(kPart);
    pack(ConstStridedSpan(sent_.data(), kSent), kOffset, expected);
    pack(output, kOffset, found);
    EXPECT_EQ(found, expected);
    const Layout& rows = output.layout;
    for (int64_t at = 0; at < rows.extent(); ++at) {
      const int64_t in_row = at % rows.pitch;
      const int64_t packed = at / rows.pitch * rows.row_bytes + in_row;
      if (in_row < rows.row_bytes && packed >= kOffset && packed < kOffset + kPart) continue;
      ASSERT_EQ(output.data[at], std::byte{0}) << "beside what was received, at " << at;
    }
  }
  int64_t copied(int rank) { return ranks_.executor(rank).counters().copied_bytes; }
};

TEST_F(LentRowsTest, TheSenderWritesRowsToWhereTheyBelong) {
  auto* const memory = static_cast<std::byte*>(ranks_.heap(0)->allocate(kReceived.extent()));
  exchange({memory, kReceived});
  EXPECT_EQ(ranks_.executor(1).counters().pushed_bytes, kPart);
  EXPECT_EQ(copied(0) + copied(1), 0);
}

TEST_F(LentRowsTest, RowsElsewhereAreWrittenToTheReceiversStaging) {
  Bytes memory = bytes(kReceived.extent(), 0);
  exchange({memory.data(), kReceived});
  EXPECT_EQ(ranks_.executor(1).counters().pushed_bytes, kPart);
  EXPECT_EQ(copied(0), kPart);
  EXPECT_EQ(copied(1), 0);
}

TEST_F(LentRowsTest, RowsShorterThanACacheLineAreWrittenToTheReceiversStaging) {
  auto* const memory = static_cast<std::byte*>(ranks_.heap(0)->allocate(4096));
  exchange({memory, {20, 30, 45}});
  EXPECT_EQ(ranks_.executor(1).counters().pushed_bytes, kPart);
  EXPECT_EQ(copied(0), kPart);
}

// Ranks of other seeds have no heaps.
TEST(OffersTest, RowsAreStagedAtBothEndsWhereNoMemoryIsShared) {
  Simulation ranks(2, options(/*seed=*/0));
  ASSERT_EQ(ranks.heap(0), nullptr);
  ranks.add_world();
  const Layout rows{10, 60, 90};
  Bytes sent(rows.extent()), received = bytes(rows.extent(), 0);
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i] = i % 90 < 60 ? static_cast<std::byte>(i % 251 + 1) : std::byte{0};
  }
  for (const int rank : {0, 1}) {
    ScheduleBuilder builder(2);
    const Region staging = builder.scratch(rows.bytes());
    if (rank == 1) {
      builder.send(0, {Space::kInput, 0, 0, rows.bytes()}, {}, staging);
    } else {
      builder.receive(1, {Space::kOutput, 0, 0, rows.bytes()}, {}, staging);
    }
    OperationSpec spec = barrier_spec();
    spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    spec.inputs = {ConstStridedSpan(sent.data(), rows)};
    spec.outputs = {StridedSpan{received.data(), rows}};
    ranks.submit(rank, "world", std::move(spec));
  }
  ranks.settle();
  EXPECT_EQ(received, sent);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(ranks.executor(rank).counters().copied_bytes, rows.bytes());
  }
}

TEST(OfferMessageTest, NumbersThatDescribeNoMemoryAreRefused) {
  OfferMessage good;
  good.describe({10, 60, 90}, {Space::kOutput, 0, 130, 400});
  ASSERT_TRUE(good.layout());
  EXPECT_EQ(good.layout()->rows, 7);
  const auto with = [&](auto change) {
    OfferMessage message = good;
    change(message);
    return message.layout().has_value();
  };
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_FALSE(with([](OfferMessage& m) { m.row_bytes = 0; })) << "skips bytes of no row";
  EXPECT_FALSE(with([](OfferMessage& m) { m.row_bytes = -60; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.pitch = 59; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.skipped = 60; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.skipped = -1; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.bytes = -1; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.bytes = kHuge; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.pitch = kHuge; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.bytes = m.pitch = int64_t{1} << 46; }));
}

TEST_F(LentMemoryTest, FewerBytesThanExpectedAreAnErrorAndNotWritten) { expect_error(kBytes - 1); }
TEST_F(LentMemoryTest, MoreBytesThanExpectedAreAnErrorAndNotWritten) { expect_error(kBytes + 1); }

// Rank 1's bytes lie in its heap, and rank 0 had better fetch them.
class LentSourceTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 1000;

  explicit LentSourceTest(const MemoryNetwork::Options& how = options(/*seed=*/1))
      : ranks_(2, how) {
    ranks_.add_world();
    source_ = static_cast<std::byte*>(ranks_.heap(1)->allocate(4 * kBytes));
    for (int64_t i = 0; i < 4 * kBytes; ++i) source_[i] = static_cast<std::byte>(i % 251 + 1);
  }
  Simulation::Handle run(int rank, const Layout& rows, std::byte* memory, int64_t offset,
                         int64_t part, bool is_staged = true) {
    ScheduleBuilder builder(2);
    builder.set_offers(OfferRule::kFetched);
    const Region staging = is_staged ? builder.scratch(part) : Region();
    OperationSpec spec = barrier_spec();
    if (rank == 1) {
      builder.send(0, {Space::kInput, 0, offset, part}, {}, staging);
      spec.inputs = {ConstStridedSpan(memory, rows)};
      spec.keep_alive = watched_memory();
    } else {
      builder.receive(1, {Space::kOutput, 0, offset, part}, {}, staging);
      spec.outputs = {{memory, rows}};
    }
    spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    return ranks_.submit(rank, "world", std::move(spec));
  }
  Simulation::Handle send(int64_t bytes = kBytes) {
    return run(1, {1, bytes, bytes}, source_, 0, bytes, false);
  }
  Simulation::Handle receive(int64_t bytes = kBytes) {
    return run(0, {1, bytes, bytes}, received_.data(), 0, bytes, false);
  }
  std::shared_ptr<void> watched_memory() {
    auto memory = std::make_shared<int>(1);
    watched_ = memory;
    return memory;
  }
  bool is_kept() const { return !watched_.expired(); }
  Counters counters(int rank) { return ranks_.executor(rank).counters(); }
  void expect_right(const Simulation::Handle& sent, const Simulation::Handle& received,
                    int64_t bytes = kBytes) {
    ASSERT_TRUE(received->is_done() && !received->failure());
    ASSERT_TRUE(sent->is_done() && !sent->failure());
    EXPECT_EQ(Bytes(received_.begin(), received_.begin() + bytes), Bytes(source_, source_ + bytes));
    EXPECT_EQ(received_[bytes], std::byte{0}) << "behind what was received";
    EXPECT_FALSE(is_kept());
  }
  // Rank 0 can reach nothing of rank 1's, which does not know.
  void hide_the_heap() {
    AddressRecord record = ranks_.executor(1).address_record(1);
    record.heap.token += 1;
    ranks_.executor(0).found(1, 1, record, "");
  }

  Simulation ranks_;
  std::byte* source_ = nullptr;
  Bytes received_ = bytes(4 * kBytes, 0);
  std::weak_ptr<void> watched_;
};

TEST_F(LentSourceTest, TheReceiverReadsWhereTheBytesLie) {
  barrier(ranks_);
  ranks_.settle();
  // Bytes of headers: one half is the barrier's, the other half is this call's.
  const int64_t sent_before = 2 * counters(1).sent_bytes;
  const auto received = receive(), sent = send();
  ranks_.settle();
  expect_right(sent, received);
  EXPECT_EQ(counters(1).lent_bytes, kBytes);
  EXPECT_EQ(counters(1).sent_bytes, sent_before + kBytes);
  EXPECT_EQ(counters(1).pushed_bytes + counters(0).copied_bytes + counters(1).copied_bytes, 0);
}

TEST_F(LentSourceTest, RowsAreReadWhereTheyLieFromTheMiddleOfOne) {
  constexpr Layout kRows{7, 90, 120}, kOtherRows{10, 63, 100};
  constexpr int64_t kOffset = 130, kPart = 400;
  const auto received = run(0, kOtherRows, received_.data(), kOffset, kPart);
  const auto sent = run(1, kRows, source_, kOffset, kPart);
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && !received->failure() && sent->is_done() && !sent->failure());
  Bytes expected(kPart), found(kPart);
  pack(ConstStridedSpan(source_, kRows), kOffset, expected);
  pack(ConstStridedSpan(received_.data(), kOtherRows), kOffset, found);
  EXPECT_EQ(found, expected);
  EXPECT_EQ(counters(1).lent_bytes, kPart);
  EXPECT_EQ(counters(0).copied_bytes + counters(1).copied_bytes, 0) << "neither end staged them";
}

TEST_F(LentSourceTest, TheSenderIsDoneWhenTheReceiverHasReadAndNotBefore) {
  const auto received = receive();
  ranks_.settle();
  const auto sent = send();
  for (int rounds = 0; rounds < 1000 && !received->is_done(); ++rounds) {
    EXPECT_FALSE(sent->is_done()) << "round " << rounds;
    ranks_.step();
  }
  ranks_.settle();
  expect_right(sent, received);
}

TEST_F(LentSourceTest, WhereTheReceiverCannotReachItTheBytesAreSent) {
  hide_the_heap();
  const auto received = receive(), sent = send();
  ranks_.settle();
  expect_right(sent, received);
  EXPECT_EQ(counters(1).lent_bytes, 0);
}

TEST_F(LentSourceTest, OtherMemoryIsSent) {
  Bytes elsewhere(source_, source_ + kBytes);
  const auto received = receive();
  const auto sent = run(1, {1, kBytes, kBytes}, elsewhere.data(), 0, kBytes, false);
  ranks_.settle();
  expect_right(sent, received);
  EXPECT_EQ(counters(1).lent_bytes, 0);
}

TEST(OffersTest, AMessageOfTheSizeOfTheWordIsAMessage) {
  Step step;
  step.kind = StepKind::kReceive;
  step.peer = 1;
  step.offers = OfferRule::kFetched;
  GroupConfig with = *group_of_three()->config;
  with.least_lent = 8;
  MemberGroup small(with, 7);
  small.members[1].shares = true;
  step.to.bytes = sizeof(OfferMessage);
  EXPECT_FALSE(Offers::may_be_read(small, step));
  step.to.bytes += 1;
  EXPECT_TRUE(Offers::may_be_read(small, step));
  with.check_headers = false;
  MemberGroup unchecked(with, 7);
  unchecked.members[1].shares = true;
  EXPECT_FALSE(Offers::may_be_read(unchecked, step)) << "the sizes may differ";
}

TEST_F(LentSourceTest, OfAFailedSenderIsKeptUntilTheReceiverReadsNoMore) {
  const auto received = receive();
  ranks_.settle();
  ranks_.asleep = {0};
  const auto sent = send();
  ranks_.settle();
  ASSERT_FALSE(sent->is_done());
  ranks_.executor(1).abort(1, {FailureKind::kAborted, "aborted", {1}});
  ranks_.executor(1).take();
  ASSERT_TRUE(sent->is_done() && sent->failure());
  EXPECT_TRUE(is_kept()) << "the receiver may be in the middle of it";
  ranks_.asleep = {};
  ranks_.settle();
  EXPECT_TRUE(received->is_done());
  EXPECT_FALSE(is_kept());
}

TEST_F(LentSourceTest, RowsThatCannotBeReachedAreStagedAndSent) {
  hide_the_heap();
  constexpr Layout kRows{7, 90, 120}, kOtherRows{10, 63, 100};
  const auto received = run(0, kOtherRows, received_.data(), 130, 400);
  const auto sent = run(1, kRows, source_, 130, 400);
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && !received->failure() && sent->is_done() && !sent->failure());
  Bytes expected(400), found(400);
  pack(ConstStridedSpan(source_, kRows), 130, expected);
  pack(ConstStridedSpan(received_.data(), kOtherRows), 130, found);
  EXPECT_EQ(found, expected);
  EXPECT_EQ(counters(1).lent_bytes, 0);
}

TEST_F(LentSourceTest, AReadIsBrokenOffAfterARound) {
  constexpr Layout kRows{9000, 200, 256};
  constexpr int64_t kOffset = 130, kPart = 3 * StepScheduler::kRoundBytes + 5;
  auto* const from = static_cast<std::byte*>(ranks_.heap(1)->allocate(kRows.extent()));
  for (int64_t i = 0; i < kRows.extent(); ++i) from[i] = static_cast<std::byte>(i % 251 + 1);
  const Layout packed{1, kOffset + kPart, kOffset + kPart};
  Bytes to(kOffset + kPart);
  const auto received = run(0, packed, to.data(), kOffset, kPart, false);
  const auto sent = run(1, kRows, from, kOffset, kPart);
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && !received->failure() && sent->is_done() && !sent->failure());
  Bytes expected(kPart);
  pack(ConstStridedSpan(from, kRows), kOffset, expected);
  EXPECT_EQ(Bytes(to.begin() + kOffset, to.end()), expected);
  EXPECT_EQ(counters(1).lent_bytes, kPart);
}

TEST_F(LentSourceTest, AReceiverThatFailsInTheMiddleReadsNoMore) {
  constexpr int64_t kLong = 4 * StepScheduler::kRoundBytes;
  auto* const from = static_cast<std::byte*>(ranks_.heap(1)->allocate(kLong));
  std::fill(from, from + kLong, std::byte{7});
  Bytes to(kLong);
  const auto received = run(0, {1, kLong, kLong}, to.data(), 0, kLong, false);
  const auto sent = run(1, {1, kLong, kLong}, from, 0, kLong, false);
  for (int rounds = 0; rounds < 1000 && to[0] == std::byte{0}; ++rounds) ranks_.step();
  ASSERT_EQ(to[0], std::byte{7});
  ASSERT_EQ(to[kLong - 1], std::byte{0});
  ranks_.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
  ranks_.executor(0).take();
  const Bytes then = to;
  ranks_.settle();
  EXPECT_TRUE(received->failure() && sent->is_done() && sent->failure());
  EXPECT_EQ(to, then);
  EXPECT_FALSE(is_kept());
}

// What rank 0 says does not leave while rank 1 sleeps.
class HeldUpAnswerTest : public LentSourceTest {
 protected:
  static MemoryNetwork::Options full() {
    MemoryNetwork::Options full = options(/*seed=*/1);
    full.fifo_slots = 0;
    return full;
  }
  HeldUpAnswerTest() : LentSourceTest(full()) {}
  void read() {
    received = receive();
    ranks_.settle();
    ranks_.asleep = {0};
    sent = send();
    ranks_.settle();
    ranks_.asleep = {1};
    ranks_.settle();
    ASSERT_EQ(received_[kBytes - 1], source_[kBytes - 1]);
    ASSERT_FALSE(sent->is_done());
  }
  Simulation::Handle received, sent;
};

TEST_F(HeldUpAnswerTest, IsSentWhenTheSenderWakes) {
  ASSERT_NO_FATAL_FAILURE(read());
  ranks_.asleep = {};
  ranks_.settle();
  expect_right(sent, received);
}

TEST_F(HeldUpAnswerTest, ADeadSenderDoesNotHoldWhoHasRead) {
  ASSERT_NO_FATAL_FAILURE(read());
  ranks_.kill(1);
  ranks_.tell(PeerLost{1, "killed by SIGKILL"});
  ranks_.pass(std::chrono::seconds(1));
  EXPECT_TRUE(received->is_done());
}

TEST(OffersTest, AnAnswerThatComesWithTheFailureReturnsTheMemory) {
  for (const uint64_t seed : {1, 2, 8, 13, 16, 17, 22}) {
    MemoryNetwork::Options how = options(seed);
    how.deliveries_per_progress = 4;
    Simulation ranks(2, how);
    ranks.add_world();
    ASSERT_NE(ranks.heap(1), nullptr) << seed;
    auto* const memory = static_cast<std::byte*>(ranks.heap(1)->allocate(1000));
    Bytes to(1000);
    auto watched = std::make_shared<int>(1);
    const std::weak_ptr<int> kept = watched;
    const auto run = [&](int rank) {
      ScheduleBuilder builder(2);
      builder.set_offers(OfferRule::kFetched);
      OperationSpec spec = barrier_spec();
      if (rank == 1) {
        builder.send(0, {Space::kInput, 0, 0, 1000});
        spec.inputs = {contiguous(memory, 1000)};
        spec.keep_alive = std::move(watched);
      } else {
        builder.receive(1, {Space::kOutput, 0, 0, 1000});
        spec.outputs = {contiguous(to.data(), 1000)};
      }
      spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
      return ranks.submit(rank, "world", std::move(spec));
    };
    const auto received = run(0);
    ranks.settle();
    ranks.asleep = {0};
    const auto sent = run(1);
    ranks.settle();
    ranks.asleep = {1};
    ranks.settle();
    ASSERT_TRUE(received->is_done()) << seed;
    ranks.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
    ranks.executor(0).take();
    ranks.asleep = {};
    ranks.settle();
    EXPECT_TRUE(sent->is_done()) << seed;
    EXPECT_TRUE(kept.expired()) << seed;
  }
}

// A receiver of two long messages, whose memory is in its heap.
class OffersAloneTest : public ::testing::Test {
 protected:
  OffersAloneTest() {
    for (Member& member : group_->members) member.shares = true;
    memory_ = static_cast<std::byte*>(heap_->allocate(2 * kBytes));
  }
  OperationPtr receive(OfferRule rule = OfferRule::kLarge) {
    ScheduleBuilder builder(3);
    builder.set_offers(rule);
    for (const int64_t at : {int64_t{0}, kBytes})
      builder.receive(1, {Space::kOutput, 0, at, kBytes});
    OperationSpec spec;
    spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    spec.outputs = {contiguous(memory_, 2 * kBytes)};
    const OperationPtr operation =
        add_collective(*group_, std::move(spec), OperationState::kChecking);
    operation->steps.resize(operation->schedule->steps.size());
    return operation;
  }

  static constexpr int64_t kBytes = 8192;
  const std::unique_ptr<SharedHeap> heap_ = SharedHeap::create(1 << 20);
  std::byte* memory_ = nullptr;
  Actions actions_;
  Counters counters_;
  RecordedTransport transport_;
  Connections connections_{transport_, 0, heap_.get(), actions_};
  Requests requests_{transport_, connections_, counters_};
  Offers offers_{requests_, counters_, heap_.get()};
  const std::unique_ptr<MemberGroup> group_ = group_of_three();
};

TEST_F(OffersAloneTest, AnOfferHasATagThatNoHeaderHas) {
  const OperationPtr operation = receive();
  offers_.prepare(*operation);
  ASSERT_EQ(transport_.sent.size(), 2u);
  for (uint32_t message = 0; message < 2; ++message) {
    const Tag tag = transport_.sent[message].tag;
    EXPECT_EQ(tag, offer_tag(21, 0, operation->sequence(), message));
    for (uint32_t round = 0; round < 2 * kExplainRound; ++round) {
      EXPECT_NE(tag, collective_tag(TagKind::kHeader, 21, 0, operation->sequence(), round));
    }
  }
}

TEST_F(OffersAloneTest, OffersAreMadeOnceAndMemoryIsLentUntilTheMessageIsDone) {
  const OperationPtr operation = receive();
  offers_.prepare(*operation);
  offers_.exchange(*operation, 0);
  EXPECT_EQ(transport_.sent.size(), 2u);
  EXPECT_TRUE(operation->has_lent());
  operation->steps[0].phase = StepState::kFinished;
  EXPECT_TRUE(operation->has_lent());
  EXPECT_TRUE(operation->give_back(1));
  EXPECT_FALSE(operation->has_lent());
  EXPECT_FALSE(operation->give_back(1)) << "nothing is left";
}

TEST_F(OffersAloneTest, AWordOfAnEarlierOperationIsNoSourceOfThisOne) {
  const OperationPtr operation = receive(OfferRule::kFetched);
  offers_.prepare(*operation);
  OfferMessage word;
  word.bytes = kBytes;
  word.offset = 0;
  for (const auto& [sequence, expected] :
       {std::pair{operation->sequence() - 1, Offers::Source::kStale},
        std::pair{operation->sequence(), Offers::Source::kOutOfReach}}) {
    word.sequence = sequence;
    std::memcpy(memory_, &word, sizeof(word));
    EXPECT_EQ(offers_.find_source(*operation, 0), expected);
    EXPECT_FALSE(operation->has_lent());
  }
}

TEST_F(OffersAloneTest, ShortMessagesAreNotOffered) {
  Step step;
  step.kind = StepKind::kReceive;
  step.peer = 1;
  step.to.bytes = group_->config->least_offered;
  EXPECT_TRUE(Offers::is_exchanged(*group_, step));
  step.to.bytes -= 1;
  EXPECT_FALSE(Offers::is_exchanged(*group_, step));
  step.offers = OfferRule::kAll;
  EXPECT_TRUE(Offers::is_exchanged(*group_, step));
  step.offers = OfferRule::kFetched;
  step.to.bytes = 1 << 20;
  EXPECT_FALSE(Offers::is_exchanged(*group_, step));
  step.offers = OfferRule::kAll;
  group_->members[1].shares = false;
  EXPECT_FALSE(Offers::is_exchanged(*group_, step)) << "rank 1 is on another host";
}

}  // namespace
}  // namespace meshrun::ucx
