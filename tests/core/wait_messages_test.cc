#include "core/wait_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

WaitReport In(GroupMembers members) {
  WaitReport report;
  report.rank = 3;
  report.calls = {{"world", std::move(members), 7, {}, "barrier", false}};
  report.called = {{"world", 7}};
  return report;
}

GroupMembers Every(int first, int count, int stride) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

TEST(WaitMessagesTest, GroupsOfAMeshAreAFewNumbersHoweverLarge) {
  for (const GroupMembers& members :
       {Every(0, 10'000, 1), Every(5, 1'000, 8), Every(9'999, 100, -3)}) {
    const v1::WaitReport message = ToProto(In(members));
    EXPECT_LT(message.ByteSizeLong(), 64u);
    EXPECT_EQ(FromProto(message), In(members));
  }
}

TEST(WaitMessagesTest, AnyOtherGroupNamesItsMembers) {
  for (const GroupMembers& members :
       {GroupMembers{}, GroupMembers{4}, GroupMembers{0, 1}, GroupMembers{5, 1, 9, 2, 2, 40},
        GroupMembers{0, 1, 2, 3, 4, 5, 6, 7, 100, 90, 80, 70, 60, 50}}) {
    EXPECT_EQ(FromProto(ToProto(In(members))), In(members));
  }
}

TEST(WaitMessagesTest, RowsThatComeFromOutsideAreBounded) {
  v1::WaitReport message = ToProto(In(Every(0, 100, 1)));
  message.mutable_calls(0)->set_member_rows(1, 2'000'000'000);
  EXPECT_THAT(FromProto(message).calls[0].members.ranks(), IsEmpty());
  message.mutable_calls(0)->set_member_rows(1, -1);
  EXPECT_THAT(FromProto(message).calls[0].members.ranks(), IsEmpty());
  message.mutable_calls(0)->clear_member_rows();
  message.mutable_calls(0)->add_member_rows(3);
  EXPECT_THAT(FromProto(message).calls[0].members.ranks(), IsEmpty());
}

TEST(WaitMessagesTest, AnIdIsOfTheNameAndTheMembers) {
  const auto id = [](const std::string& name, GroupMembers members) {
    v1::WaitReport message = ToProto(In(std::move(members)));
    message.mutable_calls(0)->set_group(name);
    return GroupId(message.calls(0));
  };
  EXPECT_EQ(id("a", Every(0, 8, 1)), id("a", Every(0, 8, 1)));
  EXPECT_NE(id("a", Every(0, 8, 1)), id("b", Every(0, 8, 1)));
  EXPECT_NE(id("a", Every(0, 8, 1)), id("a", Every(0, 9, 1)));
  EXPECT_NE(id("a", {1, 2}), id("a", {2, 1}));
}

}  // namespace
}  // namespace meshrun
