#include "coordinator/etcd/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun::coordinator::etcd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TargetTest, NamesMembersAndAPrefix) {
  const auto target = ParseTarget("etcd://h1:2379,10.0.0.2:2380,[::1]:2381/lab/a");
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_THAT(target->endpoints, ElementsAre("h1:2379", "10.0.0.2:2380", "[::1]:2381"));
  EXPECT_EQ(target->prefix, "lab/a");
}

TEST(TargetTest, PortsAndThePrefixHaveDefaults) {
  for (const char* const text : {"etcd://h1,[fe80::1]", "etcd://h1,[fe80::1]/"}) {
    const auto target = ParseTarget(text);
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_THAT(target->endpoints, ElementsAre("h1:2379", "[fe80::1]:2379"));
    EXPECT_EQ(target->prefix, "meshrun");
  }
  EXPECT_EQ(ParseTarget("etcd://h1/lab/")->prefix, "lab");
}

TEST(TargetTest, ErrorsNameTheWrongPartAndShowTheRightForm) {
  const std::pair<const char*, const char*> wrong[] = {
      {"http://h1:2379", "does not begin with etcd://"},
      {"etcd://", "a host is missing"},
      {"etcd://h1,,h2", "a host is missing"},
      {"etcd:///lab", "a host is missing"},
      {"etcd://h1:70000", "'70000' is not a port"},
      {"etcd://h1:", "'' is not a port"},
      {"etcd://h1:0", "'0' is not a port"},
      {"etcd://::1", "is not a"},
      {"etcd://[::1", "'[::1' is not a host"},
      {"etcd://h 1", "'h 1' is not a host"},
      {"etcd://h1,h1:2379", "h1:2379 is there twice"},
      {"etcd://h1//lab", "the prefix '/lab'"},
      {"etcd://h1/a?b", "the prefix 'a?b'"},
  };
  for (const auto& [text, part] : wrong) {
    const absl::Status status = ParseTarget(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(part), HasSubstr("write etcd://HOST:2379")))
        << text;
  }
}

TEST(TargetTest, APasswordIsRefusedAndNotRepeated) {
  const absl::Status status = ParseTarget("etcd://me:secret@h1:2379").status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--etcd-password-file"), Not(HasSubstr("secret"))));
}

}  // namespace
}  // namespace meshrun::coordinator::etcd
