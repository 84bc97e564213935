#include "parallel/comm/ucx/engine/execution/connections.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/comm/ucx/executor_cases.h"
#include "tests/parallel/comm/ucx/recorded_transport.h"

namespace meshrun::ucx {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ConnectionsTest, ARankThatHasMadeTooManyGroupsIsNamedByTheOthers) {
  Simulation ranks(2, options());
  ranks.add_world();
  const auto waiting = ranks.submit(0, "world", barrier_spec());
  AddressRecord refused;
  refused.group = 0;
  ranks.executor(0).found(ranks.number(0, "world"), 1, refused, "");
  ASSERT_TRUE(waiting->failure().has_value());
  EXPECT_EQ(waiting->failure()->kind, FailureKind::kInvalidArgument);
  EXPECT_EQ(waiting->failure()->message, too_many_groups("world", 1));
}

TEST(ConnectionsTest, GroupsOfTheSamePeersShareOneConnectionAndNeverMix) {
  Simulation ranks(3, options());
  ranks.add_group("a", {0, 1});
  ranks.add_group("b", {1, 0, 2});
  Bytes in_a = bytes(4, 1), in_b = bytes(4, 2), from_a = bytes(4, 0), from_b = bytes(4, 0);
  ranks.submit(1, "b", point_to_point_spec(false, 1, from_b));
  ranks.submit(1, "a", point_to_point_spec(false, 0, from_a));
  ranks.submit(0, "a", point_to_point_spec(true, 1, in_a));
  ranks.submit(0, "b", point_to_point_spec(true, 0, in_b));
  ranks.settle();
  EXPECT_EQ(from_a, in_a);
  EXPECT_EQ(from_b, in_b);
}

TEST(ConnectionsTest, RanksOfOneHostAreCountedByProcess) {
  MemoryNetwork network(options());
  FakeClock clock;
  Executor executor(network.create_transport(), clock, /*host=*/7);
  GroupConfig config;
  config.size = 3;
  const uint32_t group = executor.add_group(config);
  EXPECT_EQ(executor.local_ranks(), 1);
  const auto peer = network.create_transport();
  AddressRecord record = executor.address_record(group);
  record.transport_address = peer->address();
  record.process = 1;
  executor.found(group, 1, record, "");
  EXPECT_EQ(executor.local_ranks(), 2);
  record.process = 2;
  record.host = 8;
  executor.found(group, 2, record, "");
  EXPECT_EQ(executor.local_ranks(), 2);
}

TEST(ConnectionsTest, DifferentProgramsAreAnErrorAtFirstContact) {
  Simulation ranks(2, options());
  ranks.add_world();
  const auto handle = ranks.submit(0, "world", barrier_spec());
  AddressRecord record = ranks.executor(1).address_record(1);
  record.checks_headers = false;
  ranks.executor(0).found(1, 1, record, "");
  ASSERT_TRUE(handle->is_done());
  EXPECT_EQ(handle->failure()->kind, FailureKind::kMismatch);
  EXPECT_THAT(handle->failure()->message,
              AllOf(HasSubstr("rank 0 checks headers: true"), HasSubstr("rank 1: false")));
}

TEST(ConnectionsTest, ARankThatCannotBeFoundFailsTheGroup) {
  Simulation ranks(2, options());
  ranks.add_world();
  const auto handle = ranks.submit(0, "world", barrier_spec());
  ranks.executor(0).found(1, 1, std::nullopt, "no address after 300 s");
  ASSERT_TRUE(handle->is_done());
  EXPECT_EQ(handle->failure()->kind, FailureKind::kTransport);
  EXPECT_THAT(handle->failure()->message, HasSubstr("no address after 300 s"));
}

class LookingUpTest : public ::testing::Test {
 protected:
  LookingUpTest() {
    for (int rank = 1; rank < 3; ++rank) {
      group_->members[rank].state = Member::kUnknown;
      group_->members[rank].peer = -1;
    }
    group_->known = 1;
  }
  AddressRecord record_of(int rank) {
    AddressRecord record = connections_.record(*group_);
    record.process = static_cast<uint64_t>(rank);
    record.group = 20 + static_cast<uint32_t>(rank);
    record.transport_address = "address " + std::to_string(rank);
    return record;
  }

  Actions actions_;
  RecordedTransport transport_;
  Connections connections_{transport_, 7, nullptr, actions_};
  const std::unique_ptr<MemberGroup> group_ = group_of_three(/*check_headers=*/false);
};

TEST_F(LookingUpTest, OnlyPeersOfTheScheduleAreNeeded) {
  ScheduleBuilder builder(3);
  builder.send(2, {Space::kInput, 0, 0, 8});
  OperationSpec spec;
  spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
  EXPECT_THAT(connections_.missing(*add_collective(*group_, std::move(spec))), ElementsAre(2));
  EXPECT_THAT(connections_.missing(*add_receive(*group_, 1)), ElementsAre(1));
  EXPECT_THAT(connections_.missing(*add_receive(*group_, -1)), ::testing::IsEmpty());
  EXPECT_FALSE(connections_.connect(*group_, 2, record_of(2)));
  spec.schedule = group_->queued.front()->schedule;
  EXPECT_THAT(connections_.missing(*add_collective(*group_, std::move(spec))),
              ::testing::IsEmpty());
}

TEST_F(LookingUpTest, AnAddressIsAskedForOnce) {
  connections_.look_up(*group_, {1});
  connections_.look_up(*group_, {1, 2});
  connections_.look_up(*group_, {1, 2});
  ASSERT_EQ(actions_.make_seldom().look_ups.size(), 2u);
  EXPECT_EQ(actions_.make_seldom().look_ups[0].group, 7u);
  EXPECT_THAT(actions_.make_seldom().look_ups[0].ranks, ElementsAre(1));
  EXPECT_THAT(actions_.make_seldom().look_ups[1].ranks, ElementsAre(2));
}

TEST_F(LookingUpTest, AMemberThatIsConnectedIsKnownByItsConnection) {
  EXPECT_EQ(connections_.world_rank_of(0), std::nullopt);
  EXPECT_FALSE(connections_.connect(*group_, 2, record_of(2)));
  EXPECT_EQ(group_->members[2].state, Member::kKnown);
  EXPECT_EQ(group_->members[2].group, 22u);
  EXPECT_EQ(group_->known, 2);
  EXPECT_EQ(connections_.world_rank_of(connections_.peer(*group_, 2)), 12);
  EXPECT_FALSE(connections_.connect(*group_, 2, record_of(2)));
  EXPECT_EQ(group_->known, 2) << "known once";
}

TEST_F(LookingUpTest, AConnectionToOneselfIsMadeOnFirstUse) {
  EXPECT_TRUE(transport_.connected.empty());
  const PeerId self = connections_.peer(*group_, 0);
  EXPECT_EQ(connections_.peer(*group_, 0), self);
  EXPECT_THAT(transport_.connected, ElementsAre("self"));
}

}  // namespace
}  // namespace meshrun::ucx
