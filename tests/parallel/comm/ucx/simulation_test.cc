#include "tests/parallel/comm/ucx/simulation.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/comm/ucx/collective_calls.h"

namespace meshrun::ucx {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Faults and queue lengths vary with the seed as well.
MemoryNetwork::Options options(uint64_t seed) {
  MemoryNetwork::Options options;
  options.seed = seed;
  options.eager_bytes = seed % 3 == 0 ? 8192 : 100;
  options.fifo_slots = seed % 5 == 0 ? 2 : 64;
  options.deliveries_per_progress = 1 + static_cast<int>(seed % 4);
  options.tells_of_death = seed % 2 == 0;
  return options;
}

// A collective on every rank of a group, with what it reads and writes.
class Running {
 public:
  Running(CollectiveCall call, std::string group, int size)
      : call_(std::move(call)),
        group_(std::move(group)),
        handles_(size),
        memory_(size),
        shared_(size),
        sources_(size) {}

  void submit(Simulation& ranks, int group_rank, seconds timeout = std::chrono::hours(1)) {
    const std::vector<int>& members = ranks.members(group_);
    memory_[group_rank] = call_.memory(group_rank);
    const Place place{.rank = group_rank,
                      .size = static_cast<int>(members.size()),
                      .headers_carry = ranks.checks_headers(group_)};
    OperationSpec spec = call_.spec(place, memory_[group_rank]);
    spec.timeout = timeout;
    if (SharedHeap* const heap = ranks.heap(members[group_rank])) {
      if (ranks.draw(4) > 0) move_outputs(spec, *heap, shared_[group_rank]);
      if (ranks.draw(2) > 0) move_inputs(spec, *heap, sources_[group_rank]);
    }
    handles_[group_rank] = ranks.submit(members[group_rank], group_, std::move(spec));
  }
  void submit_all(Simulation& ranks) {
    for (size_t rank = 0; rank < handles_.size(); ++rank) submit(ranks, static_cast<int>(rank));
  }

  // A source is its caller's again when the call is done there: another value must reach nobody.
  void overwrite_sources() {
    for (size_t rank = 0; rank < handles_.size(); ++rank) {
      if (!handles_[rank] || !handles_[rank]->is_done()) continue;
      for (const StridedSpan& source : std::exchange(sources_[rank], {})) {
        std::memset(source.data, 0xdd, static_cast<size_t>(source.layout.bytes()));
      }
    }
  }

  const Operation& operator[](int group_rank) const { return *handles_[group_rank]; }
  bool is_submitted(int group_rank) const { return handles_[group_rank] != nullptr; }

  void expect_right(int group_rank) const {
    ASSERT_TRUE(handles_[group_rank]->is_done()) << call_.words();
    ASSERT_FALSE(handles_[group_rank]->failure().has_value())
        << handles_[group_rank]->failure()->message;
    std::vector<std::vector<std::byte>> outputs = memory_[group_rank].outputs;
    for (size_t i = 0; i < shared_[group_rank].size(); ++i) {
      outputs[i].assign(shared_[group_rank][i], shared_[group_rank][i] + outputs[i].size());
    }
    ASSERT_EQ(outputs, call_.expected(group_rank))
        << call_.words() << " on rank " << group_rank << " of " << handles_.size();
  }
  void expect_right() const {
    for (size_t rank = 0; rank < handles_.size(); ++rank) expect_right(static_cast<int>(rank));
  }

 private:
  using Shared = std::vector<std::byte*>;

  // To where peers can write. It stays theirs while the heap lives.
  static void move_outputs(OperationSpec& spec, SharedHeap& heap, Shared& shared) {
    for (StridedSpan& output : spec.outputs) {
      const auto bytes = static_cast<size_t>(output.layout.extent());
      auto* const block = static_cast<std::byte*>(heap.allocate(bytes));
      ASSERT_NE(block, nullptr);
      if (bytes > 0) std::memcpy(block, output.data, bytes);
      for (ConstStridedSpan& input : spec.inputs) {
        if (input.data == output.data) input.data = block;
      }
      output.data = block;
      shared.push_back(block);
    }
  }

  // To where peers can read.
  static void move_inputs(OperationSpec& spec, SharedHeap& heap,
                          std::vector<StridedSpan>& sources) {
    for (ConstStridedSpan& input : spec.inputs) {
      const auto bytes = static_cast<size_t>(input.layout.extent());
      if (bytes == 0 || heap.offset_of(input.data, bytes)) continue;
      const bool is_output = std::ranges::any_of(
          spec.outputs, [&](const StridedSpan& output) { return output.data == input.data; });
      if (is_output) continue;
      auto* const block = static_cast<std::byte*>(heap.allocate(bytes));
      ASSERT_NE(block, nullptr);
      std::memcpy(block, input.data, bytes);
      input.data = block;
      sources.push_back(contiguous(block, static_cast<int64_t>(bytes)));
    }
  }

  CollectiveCall call_;
  std::string group_;
  std::vector<Simulation::Handle> handles_;
  std::vector<CallMemory> memory_;
  std::vector<Shared> shared_;  // by rank: instead of its outputs
  std::vector<std::vector<StridedSpan>> sources_;
};

Running all_reduce(int ranks, uint64_t seed, int64_t count = 100) {
  return {CollectiveCall(OperationKind::kAllReduce, ranks, DType::kFloat32, {count}, -1, seed),
          "world", ranks};
}
Running barrier(int ranks) {
  return {CollectiveCall(OperationKind::kBarrier, ranks, DType::kUInt8, {}, -1, 0), "world", ranks};
}

TEST(SimulationTest, AllReduceOfAnyOrderGivesRankOrderBits) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Simulation ranks(1 + static_cast<int>(seed % 5), options(seed));
    ranks.add_world(/*check_headers=*/seed % 7 != 0);
    Tuning tuning;
    tuning.reduce_chunk = 4 << ranks.draw(8);
    if (seed % 2) tuning.small_all_reduce = 0;
    const auto count = static_cast<int64_t>(ranks.draw(300));
    Running call(CollectiveCall(OperationKind::kAllReduce, ranks.size(), DType::kFloat32, {count},
                                -1, seed, tuning),
                 "world", ranks.size());
    call.submit_all(ranks);
    ranks.settle();
    ASSERT_NO_FATAL_FAILURE(call.expect_right()) << "seed " << seed;
  }
}

// Collectives on groups of any members, submitted by each rank when it likes to, sometimes many at
// once; ranks that are slow; sends and receives between them.
void run_program(uint64_t seed, int calls) {
  std::mt19937_64 random(seed);
  const int size = 2 + static_cast<int>(random() % 5);
  Simulation ranks(size, options(seed));
  std::vector<std::string> names;
  for (uint64_t g = 0; g < 1 + random() % 3; ++g) {
    std::vector<int> members;
    for (int rank = 0; rank < size; ++rank) {
      if (g == 0 || random() % 3 > 0) members.push_back(rank);
    }
    if (members.empty()) members = {0};
    std::shuffle(members.begin(), members.end(), random);
    names.push_back("group " + std::to_string(g));
    ranks.add_group(names.back(), members, /*check_headers=*/random() % 4 > 0);
  }

  struct Entry {
    Running call;
    std::string group;
  };
  std::vector<Entry> program;
  for (int i = 0; i < calls; ++i) {
    const std::string& group = names[random() % names.size()];
    const int members = static_cast<int>(ranks.members(group).size());
    program.push_back({{CollectiveCall::random(members, random()), group, members}, group});
  }
  struct Message {
    int from, to;
    uint32_t tag;
    std::vector<std::byte> sent, received;
  };
  std::vector<Message> messages;
  for (int i = 0; i < calls; ++i) {
    const int from = static_cast<int>(random() % size), to = static_cast<int>(random() % size);
    const int64_t bytes = random() % 3 ? random() % 50 : random() % 20000;
    messages.push_back({from, to, static_cast<uint32_t>(i % 3),
                        std::vector<std::byte>(bytes, static_cast<std::byte>(i)),
                        std::vector<std::byte>(bytes, std::byte{0xee})});
  }
  // World ranks and ranks of group 0 differ.
  const auto in_first_group = [&](int rank) {
    const auto& members = ranks.members(names[0]);
    return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
  };

  const auto step = [&] {
    const bool has_moved = ranks.step();
    for (Entry& entry : program) entry.call.overwrite_sources();
    return has_moved;
  };

  std::vector<size_t> next(size), next_send(size), next_receive(size);
  for (bool is_submitting = true; is_submitting;) {
    is_submitting = false;
    for (int rank = 0; rank < size; ++rank) {
      is_submitting = is_submitting || next[rank] < program.size() ||
                      next_send[rank] < messages.size() || next_receive[rank] < messages.size();
      for (uint64_t n = random() % 4 ? 0 : random() % 4; n > 0; --n) {
        if (next[rank] < program.size()) {
          Entry& entry = program[next[rank]++];
          const auto& members = ranks.members(entry.group);
          const auto at = std::find(members.begin(), members.end(), rank);
          if (at != members.end()) {
            entry.call.submit(ranks, static_cast<int>(at - members.begin()));
          }
        }
        if (next_send[rank] < messages.size()) {
          Message& m = messages[next_send[rank]++];
          if (m.from == rank) {
            ranks.submit(rank, names[0],
                         point_to_point_spec(true, in_first_group(m.to), m.sent, m.tag));
          }
        }
        if (next_receive[rank] < messages.size()) {
          Message& m = messages[next_receive[rank]++];
          if (m.to == rank) {
            ranks.submit(rank, names[0],
                         point_to_point_spec(false, in_first_group(m.from), m.received, m.tag));
          }
        }
      }
    }
    ranks.clock.Advance(milliseconds(random() % 300));
    if (random() % 2) step();
  }
  while (step()) {
  }
  ranks.settle();
  for (const Entry& entry : program) ASSERT_NO_FATAL_FAILURE(entry.call.expect_right());
  for (const Message& m : messages) ASSERT_EQ(m.sent, m.received) << m.from << " to " << m.to;
  for (int rank = 0; rank < size; ++rank) EXPECT_FALSE(ranks.executor(rank).has_unfinished());
}

TEST(SimulationTest, RandomProgramsGiveTheOraclesResults) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    ASSERT_NO_FATAL_FAILURE(run_program(seed, 20)) << "seed " << seed;
  }
}

TEST(SimulationTest, AGroupWorksAfterAMismatch) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const int size = 2 + static_cast<int>(seed % 6);
    Simulation ranks(size, options(seed));
    ranks.add_world();
    const int odd = static_cast<int>(seed / 6) % size;
    Running before = all_reduce(size, seed);
    Running wrong = all_reduce(size, seed, 100);
    Running other = all_reduce(size, seed, 101);
    Running after = all_reduce(size, seed + 1);
    before.submit_all(ranks);
    std::vector<const Operation*> failed;
    for (int rank = 0; rank < size; ++rank) {
      Running& called = rank == odd ? other : wrong;
      called.submit(ranks, rank);
      failed.push_back(&called[rank]);
    }
    after.submit_all(ranks);
    ranks.settle();
    before.expect_right();
    after.expect_right();
    for (const Operation* operation : failed) {
      ASSERT_TRUE(operation->is_done());
      ASSERT_TRUE(operation->failure().has_value());
      EXPECT_EQ(operation->failure()->kind, FailureKind::kMismatch);
      EXPECT_EQ(operation->failure()->message, failed[0]->failure()->message);
      EXPECT_TRUE(operation->failure()->group_survives);
      EXPECT_THAT(operation->failure()->ranks, ElementsAre(0, odd == 0 ? 1 : odd));
      EXPECT_THAT(operation->failure()->message,
                  HasSubstr("disagree on operation number 2 of group \"world\""));
    }
  }
}

TEST(SimulationTest, AWrongArgumentOnOneRankIsEverybodysError) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const int size = 1 + static_cast<int>(seed % 5);
    Simulation ranks(size, options(seed));
    ranks.add_world();
    const int wrong = static_cast<int>(seed / 5) % size;
    std::vector<Simulation::Handle> handles;
    for (int rank = 0; rank < size; ++rank) {
      OperationSpec spec = barrier_spec();
      if (rank == wrong) {
        spec.signature.flags = kHasProblem;
        spec.text = [] { return "dim 7 of a tensor with 2"; };
      }
      handles.push_back(ranks.submit(rank, "world", spec));
    }
    Running after = all_reduce(size, seed);
    after.submit_all(ranks);
    ranks.settle();
    after.expect_right();
    for (const auto& handle : handles) {
      ASSERT_TRUE(handle->is_done() && handle->failure());
      EXPECT_EQ(handle->failure()->kind, FailureKind::kInvalidArgument);
      EXPECT_THAT(handle->failure()->ranks, ElementsAre(wrong));
      EXPECT_THAT(handle->failure()->message,
                  HasSubstr("on rank " + std::to_string(wrong) + ": dim 7 of a tensor with 2"));
    }
  }
}

// Whichever rank's time is up first, and however many rounds it is away from the missing rank.
TEST(SimulationTest, ATimeoutNamesTheRankThatDidNotCall) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const int size = 2 + static_cast<int>(seed % 7);
    Simulation ranks(size, options(seed));
    ranks.add_world();
    const int absent = static_cast<int>(seed / 7) % size;
    const bool has_called_before = seed % 2;
    if (has_called_before) {
      barrier(size).submit_all(ranks);
      ranks.settle();
    }
    Running call = all_reduce(size, seed);
    const int first = static_cast<int>(ranks.draw(size));
    for (int rank = 0; rank < size; ++rank) {
      if (rank != absent) call.submit(ranks, rank, seconds(rank == first ? 3 : 5));
    }
    ranks.pass(milliseconds(2999));
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_FALSE(rank != absent && call[rank].is_done());
    }
    ranks.pass(milliseconds(1));
    ranks.pass(seconds(1));
    ranks.pass(seconds(1));
    ranks.pass(Timeouts::kAskFor);
    std::string message;
    for (int rank = 0; rank < size; ++rank) {
      if (rank == absent) continue;
      ASSERT_TRUE(call[rank].is_done()) << seed;
      const Failure& failure = *call[rank].failure();
      EXPECT_EQ(failure.kind, FailureKind::kTimeout);
      EXPECT_THAT(failure.ranks, ElementsAre(absent)) << seed << " " << failure.message;
      EXPECT_THAT(failure.message,
                  AllOf(HasSubstr("all_reduce number " + std::to_string(1 + has_called_before)),
                        HasSubstr("of group \"world\" (float32 [100], 400 bytes) timed out after"),
                        HasSubstr("rank " + std::to_string(absent) + " has not called it")));
      if (has_called_before) {
        EXPECT_THAT(failure.message, HasSubstr("its last here was number 1. See its log."));
      } else {
        EXPECT_THAT(failure.message, HasSubstr("it has called nothing here yet. See its log."));
      }
      // Where several time out together, each says so of itself.
      if (message.empty() || first == absent) message = failure.message;
      EXPECT_EQ(failure.message, message);
    }
    EXPECT_THAT(ranks.dumps, ::testing::Contains(HasSubstr("\"state\":\"failed\"")));
  }
}

TEST(SimulationTest, ATimeoutNamesTheRankThatSleepsInTheMiddle) {
  Simulation ranks(3, options(1));
  ranks.add_world();
  barrier(3).submit_all(ranks);
  ranks.settle();
  Running call = all_reduce(3, 1, 10000);
  for (int rank = 0; rank < 3; ++rank) call.submit(ranks, rank, seconds(3));
  // Until data moves.
  while (ranks.executor(1).counters().sent_bytes < 5000) ranks.step();
  ranks.hold(1);
  ranks.settle();
  ranks.pass(seconds(4));
  ranks.pass(Timeouts::kAskFor);
  ASSERT_TRUE(call[0].is_done() && call[0].failure());
  EXPECT_EQ(call[0].failure()->kind, FailureKind::kTimeout);
  EXPECT_THAT(call[0].failure()->ranks, ::testing::Contains(1));
  EXPECT_THAT(call[0].failure()->message, HasSubstr("all have called it, and it waits for"));
}

TEST(SimulationTest, AnOperationThatEndsWhileMembersAreAskedDoesNotFail) {
  Simulation ranks(2, options(0));
  ranks.add_world();
  Running call = all_reduce(2, 0);
  call.submit(ranks, 0, seconds(3));
  ranks.asleep = {1};
  ranks.pass(seconds(3) + Timeouts::kAskFor / 2);
  EXPECT_FALSE(call[0].is_done());
  ranks.asleep = {};
  call.submit(ranks, 1);
  ranks.settle();
  call.expect_right();
}

TEST(SimulationTest, AReceiveThatTimesOutNamesTheSender) {
  Simulation ranks(2, options(0));
  ranks.add_world();
  std::vector<std::byte> memory(4);
  PointToPointSpec spec = point_to_point_spec(false, 1, memory);
  spec.timeout = seconds(3);
  const auto receive = ranks.submit(0, "world", spec);
  ranks.pass(seconds(3));
  ASSERT_TRUE(receive->is_done());
  EXPECT_EQ(receive->failure()->message,
            "recv number 1 from rank 1 of group \"world\" (uint8 [], 4 bytes) timed out on rank 0 "
            "after the timeout of 3 s: rank 1 has not sent it.");
}

// A rank dies after any number of steps of two collectives in a group of all; a pair of survivors
// goes on in a group of its own.
TEST(SimulationTest, ADeadRankEndsWhatNeedsItAndNothingElse) {
  int failed = 0, survived = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    std::mt19937_64 random(seed);
    const int size = 3 + static_cast<int>(seed % 4);
    Simulation ranks(size, options(seed));
    ranks.add_world(/*check_headers=*/seed % 8 != 0);
    const int dead = static_cast<int>(random() % size);
    std::vector<int> pair;
    for (int rank = 0; rank < size && pair.size() < 2; ++rank) {
      if (rank != dead) pair.push_back(rank);
    }
    ranks.add_group("pair", pair);
    const bool dead_calls = random() % 3 > 0;
    std::vector<Running> calls;
    for (int i = 0; i < 2; ++i) {
      calls.push_back({CollectiveCall::random(size, random()), "world", size});
      for (int rank = 0; rank < size; ++rank) {
        if (rank != dead || dead_calls) calls.back().submit(ranks, rank);
      }
    }
    for (uint64_t steps = random() % 60; steps > 0; --steps) ranks.step();
    ranks.kill(dead);
    Running unconcerned(CollectiveCall::random(2, random()), "pair", 2);
    unconcerned.submit_all(ranks);
    ranks.settle();
    unconcerned.expect_right();
    // Connections may tell of it at once, the watch always does.
    ranks.pass(milliseconds(50));
    ranks.tell(PeerLost{dead, "killed by SIGKILL"});
    ranks.pass(PeerLiveness::kGrace);
    ranks.pass(PeerLiveness::kGrace);

    for (int rank = 0; rank < size; ++rank) {
      if (rank == dead) continue;
      EXPECT_FALSE(ranks.executor(rank).has_unfinished()) << "seed " << seed << " rank " << rank;
      EXPECT_FALSE(rank == pair[0] && ranks.executor(rank).group_failure(2).has_value());
      for (const Running& call : calls) {
        ASSERT_TRUE(call[rank].is_done());
        if (!call[rank].failure()) {
          ++survived;
          ASSERT_NO_FATAL_FAILURE(call.expect_right(rank));
          continue;
        }
        ++failed;
        const Failure& failure = *call[rank].failure();
        EXPECT_EQ(failure.kind, FailureKind::kPeerLost) << failure.message;
        EXPECT_THAT(failure.ranks, ElementsAre(dead));
        EXPECT_THAT(failure.message,
                    HasSubstr("rank " + std::to_string(dead) + " was lost during "));
        EXPECT_THAT(failure.message, HasSubstr("killed by SIGKILL"));
        EXPECT_FALSE(failure.group_survives);
      }
    }
    Running later(CollectiveCall::random(2, random()), "pair", 2);
    later.submit_all(ranks);
    ranks.settle();
    ASSERT_NO_FATAL_FAILURE(later.expect_right()) << "seed " << seed;
  }
  EXPECT_GT(failed, 100);
  EXPECT_GT(survived, 20);
}

TEST(SimulationTest, OperationsStartedAfterADeathFailToo) {
  for (const bool is_told : {true, false}) {
    Simulation ranks(3, options(1));
    ranks.add_world();
    barrier(3).submit_all(ranks);
    ranks.settle();
    ranks.kill(2);
    if (is_told) ranks.tell(PeerLost{2, "killed by SIGKILL"});
    ranks.pass(seconds(1));
    Running call = all_reduce(3, 1);
    for (const int rank : {0, 1}) call.submit(ranks, rank);
    if (!is_told) ranks.tell(PeerLost{2, "killed by SIGKILL"});
    ranks.settle();
    EXPECT_FALSE(call[0].is_done());
    ranks.pass(PeerLiveness::kGrace);
    for (const int rank : {0, 1}) {
      ASSERT_TRUE(call[rank].is_done());
      EXPECT_EQ(call[rank].failure()->kind, FailureKind::kPeerLost);
      EXPECT_THAT(call[rank].failure()->message, HasSubstr("killed by SIGKILL"));
    }
  }
}

TEST(SimulationTest, AReceiveFromAnyRankOutlivesOneOfThem) {
  Simulation ranks(3, options(1));
  ranks.add_world();
  barrier(3).submit_all(ranks);
  ranks.settle();
  std::vector<std::byte> sent(4, std::byte{7}), received(4);
  const auto receive = ranks.submit(0, "world", point_to_point_spec(false, -1, received));
  ranks.kill(2);
  ranks.tell(PeerLost{2, "killed"});
  ranks.pass(seconds(1));
  EXPECT_FALSE(receive->is_done());
  ranks.submit(1, "world", point_to_point_spec(true, 0, sent));
  ranks.settle();
  EXPECT_TRUE(receive->is_done() && !receive->failure());
  EXPECT_EQ(received, sent);
  const auto next = ranks.submit(0, "world", point_to_point_spec(false, -1, received));
  ranks.kill(1);
  ranks.tell(PeerLost{1, "killed"});
  ranks.pass(seconds(1));
  EXPECT_TRUE(next->is_done() && next->failure());
}

// The first to be through exits at once, while messages are under way and others sleep.
TEST(SimulationTest, LeavingAfterABarrierFailsNobody) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const int size = 2 + static_cast<int>(seed % 5);
    Simulation ranks(size, options(seed));
    ranks.add_world();
    Running last = barrier(size);
    last.submit_all(ranks);
    std::set<int> left;
    while (left.size() < static_cast<size_t>(size)) {
      const bool moved = ranks.step();
      for (int rank = 0; rank < size; ++rank) {
        if (left.count(rank) || !last[rank].is_done()) continue;
        ASSERT_FALSE(last[rank].failure().has_value()) << last[rank].failure()->message;
        ranks.leave(rank);
        left.insert(rank);
      }
      ASSERT_TRUE(moved || !ranks.asleep.empty() || left.size() == static_cast<size_t>(size))
          << "seed " << seed;
      ranks.clock.Advance(milliseconds(10));
      if (ranks.draw(3) == 0) {
        ranks.asleep = {static_cast<int>(ranks.draw(size))};
        ranks.clock.Advance(seconds(ranks.draw(2)));
      } else if (ranks.draw(3) == 0) {
        ranks.asleep = {};
      }
    }
  }
}

TEST(SimulationTest, ARankThatSleptReadsWhatLeaversSentFirst) {
  MemoryNetwork::Options one_by_one;
  one_by_one.deliveries_per_progress = 1;
  Simulation ranks(2, one_by_one);
  ranks.add_world();
  barrier(2).submit_all(ranks);
  ranks.settle();
  std::vector<std::vector<std::byte>> sent(5, std::vector<std::byte>(50, std::byte{7}));
  std::vector<std::vector<std::byte>> received(5, std::vector<std::byte>(50));
  std::vector<Simulation::Handle> receives;
  for (uint32_t tag = 0; tag < 5; ++tag) {
    receives.push_back(ranks.submit(0, "world", point_to_point_spec(false, 1, received[tag], tag)));
    ranks.submit(1, "world", point_to_point_spec(true, 0, sent[tag], tag));
  }
  ranks.asleep = {0};
  ranks.leave(1);
  ranks.clock.Advance(seconds(10));
  ranks.asleep = {};
  ranks.settle();
  for (const auto& receive : receives) EXPECT_TRUE(receive->is_done() && !receive->failure());
  EXPECT_EQ(received, sent);
}

TEST(SimulationTest, ARankThatLeavesWithoutCallingIsNamed) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const int size = 2 + static_cast<int>(seed % 5);
    Simulation ranks(size, options(seed));
    ranks.add_world();
    barrier(size).submit_all(ranks);
    ranks.settle();
    Running call = all_reduce(size, seed);
    for (int rank = 1; rank < size; ++rank) call.submit(ranks, rank);
    ranks.settle();
    ranks.leave(0);
    ranks.pass(PeerLiveness::kGrace - milliseconds(1));
    for (int rank = 1; rank < size; ++rank) ASSERT_FALSE(call[rank].is_done());
    ranks.pass(milliseconds(1));
    for (int rank = 1; rank < size; ++rank) {
      ASSERT_TRUE(call[rank].is_done()) << seed;
      EXPECT_EQ(call[rank].failure()->kind, FailureKind::kPeerLeft);
      EXPECT_THAT(call[rank].failure()->message,
                  HasSubstr("rank 0 left without taking its part in all_reduce number 2"));
    }
  }
}

TEST(SimulationTest, WhatALeaverSentIsReceivedLater) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Simulation ranks(2, options(seed));
    ranks.add_world();
    barrier(2).submit_all(ranks);
    ranks.settle();
    std::vector<std::byte> sent(50, std::byte{7}), received(50);
    ranks.submit(0, "world", point_to_point_spec(true, 1, sent));
    ranks.leave(0);
    ranks.pass(seconds(10));
    const auto receive = ranks.submit(1, "world", point_to_point_spec(false, 0, received));
    ranks.settle();
    ASSERT_TRUE(receive->is_done() && !receive->failure());
    EXPECT_EQ(received, sent);
  }
}

// Two groups in opposite order on two ranks; what a WaitBoard decides ends both, and both go on.
TEST(SimulationTest, GroupsAgreeAgainAfterAVerdict) {
  Simulation ranks(3, options(1));
  ranks.add_group("a", {0, 1, 2});
  ranks.add_group("b", {0, 1});
  std::vector<Simulation::Handle> stuck;
  stuck.push_back(ranks.submit(0, "a", barrier_spec()));
  stuck.push_back(ranks.submit(2, "a", barrier_spec()));
  stuck.push_back(ranks.submit(1, "b", barrier_spec()));
  ranks.settle();
  WaitVerdict verdict;
  verdict.message = "rank 0 waits in a, rank 1 in b";
  verdict.ranks = {0, 1};
  verdict.deadlock = true;
  verdict.groups = {{"a", {3, 4, 5}, 2}, {"b", {2, 3}, 2}};
  ranks.tell(verdict);
  for (const auto& handle : stuck) EXPECT_FALSE(handle->is_done()) << "of another group's";
  verdict.groups = {{"a", {0, 1, 2}, 2}, {"b", {0, 1}, 2}};
  ranks.tell(verdict);
  for (const auto& handle : stuck) {
    ASSERT_TRUE(handle->is_done());
    EXPECT_EQ(handle->failure()->kind, FailureKind::kDeadlock);
    EXPECT_EQ(handle->failure()->message, verdict.message);
    EXPECT_TRUE(handle->failure()->group_survives);
  }
  for (const std::string group : {"a", "b"}) {
    const int size = static_cast<int>(ranks.members(group).size());
    Running call(CollectiveCall(OperationKind::kAllReduce, size, DType::kFloat32, {9}, -1, 1),
                 group, size);
    call.submit_all(ranks);
    ranks.settle();
    call.expect_right();
    EXPECT_EQ(call[0].sequence(), 2u);
  }
}

TEST(SimulationTest, AFailureThatFollowsSaysThatTheJobIsStopping) {
  Simulation ranks(2, options(1));
  ranks.add_world();
  ranks.tell(Stopping{"preempted by job 7"});
  Running call = all_reduce(2, 1);
  call.submit(ranks, 0);
  ranks.settle();
  EXPECT_FALSE(call[0].is_done());
  ranks.tell(PeerLost{1, "killed by SIGTERM"});
  ranks.pass(PeerLiveness::kGrace);
  ASSERT_TRUE(call[0].is_done());
  EXPECT_THAT(call[0].failure()->message, HasSubstr("The job is stopping: preempted by job 7."));
}

const Superseded kSuperseded{"generation 1 of this job is over: its ranks go on in generation 2"};

TEST(SimulationTest, AWorldThatIsSupersededEndsWhatWaits) {
  Simulation ranks(2, options(1));
  ranks.add_world();
  Running call = all_reduce(2, 1);
  call.submit(ranks, 0);
  ranks.tell(kSuperseded);
  ranks.pass(PeerLiveness::kGrace);
  EXPECT_FALSE(call[0].is_done());
  ranks.pass(PeerLiveness::kGrace);
  ASSERT_TRUE(call[0].is_done());
  EXPECT_EQ(call[0].failure()->kind, FailureKind::kAborted);
  EXPECT_THAT(call[0].failure()->message, HasSubstr("go on in generation 2"));
}

TEST(SimulationTest, WhatBeginsInAWorldThatIsSupersededEndsToo) {
  Simulation ranks(2, options(1));
  ranks.add_world();
  ranks.tell(kSuperseded);
  ranks.pass(seconds(1));
  ranks.add_group("pair", {0, 1});
  Running call(CollectiveCall(OperationKind::kAllReduce, 2, DType::kFloat32, {9}, -1, 1), "pair",
               2);
  call.submit(ranks, 0);
  ranks.pass(PeerLiveness::kGrace);
  ASSERT_TRUE(call[0].is_done());
  EXPECT_THAT(call[0].failure()->message, HasSubstr("go on in generation 2"));
}

TEST(SimulationTest, APeerThatGoesOnInTheNextWorldIsNoPeerThatLeft) {
  Simulation ranks(2, options(1));
  ranks.add_world();
  Running call = all_reduce(2, 1);
  call.submit(ranks, 0);
  ranks.tell(kSuperseded);
  ranks.leave(1);
  ranks.pass(2 * PeerLiveness::kGrace);
  ASSERT_TRUE(call[0].is_done());
  EXPECT_EQ(call[0].failure()->kind, FailureKind::kAborted);
  EXPECT_THAT(call[0].failure()->message, HasSubstr("go on in generation 2"));
}

// The first one that may end it is not the last that looks.
TEST(SimulationTest, WhatBeginsWhileASupersededWorldHasItsGraceEndsWithIt) {
  Simulation ranks(2, options(1));
  ranks.add_world();
  ranks.tell(kSuperseded);
  ranks.pass(PeerLiveness::kGrace);
  Running call = all_reduce(2, 1);
  call.submit(ranks, 0);
  ranks.pass(milliseconds(1));
  EXPECT_FALSE(call[0].is_done());
  ranks.pass(PeerLiveness::kGrace);
  ASSERT_TRUE(call[0].is_done());
}

// Both are told within 50 ms of each other: the rank that was lost is named.
TEST(SimulationTest, ALossIsTheReasonEvenWhereTheNextWorldIsHeardOfAtOnce) {
  for (const bool loss_first : {true, false}) {
    Simulation ranks(2, options(1));
    ranks.add_world();
    Running call = all_reduce(2, 1);
    call.submit(ranks, 0);
    if (loss_first) ranks.tell(PeerLost{1, "killed by SIGKILL"});
    ranks.tell(kSuperseded);
    ranks.pass(milliseconds(50));
    if (!loss_first) ranks.tell(PeerLost{1, "killed by SIGKILL"});
    ranks.pass(2 * PeerLiveness::kGrace);
    ASSERT_TRUE(call[0].is_done());
    EXPECT_EQ(call[0].failure()->kind, FailureKind::kPeerLost);
    EXPECT_THAT(call[0].failure()->message, HasSubstr("killed by SIGKILL"));
  }
}

}  // namespace
}  // namespace meshrun::ucx
