#include "coordinator/state_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "core/os/files.h"
#include "core/os/host_name.h"

namespace meshrun::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kEtcd[] = "etcd://e1:2379,e2:2379/meshrun";

std::string Wrong(StateFlags flags) {
  const absl::Status status = CheckStateFlags(&flags);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(StateFlagsTest, OnePlaceIsNamed) {
  for (StateFlags flags :
       {StateFlags{.state_dir = "/s"}, StateFlags{.ephemeral = true}, StateFlags{.state = kEtcd},
        StateFlags{.state_dir = "/s", .restored = true},
        StateFlags{.state = kEtcd, .restored = true},
        StateFlags{.state = kEtcd, .import_file = "backup"}}) {
    EXPECT_TRUE(CheckStateFlags(&flags).ok()) << CheckStateFlags(&flags);
  }
  EXPECT_THAT(Wrong({}), AllOf(HasSubstr("nowhere to keep the state"), HasSubstr("--ephemeral")));
  EXPECT_THAT(Wrong({.state_dir = "/s", .ephemeral = true}), HasSubstr("pass one of them"));
  EXPECT_THAT(Wrong({.state_dir = "/s", .state = kEtcd}), HasSubstr("pass one of them"));
  EXPECT_THAT(Wrong({.ephemeral = true, .restored = true}), HasSubstr("--ephemeral keeps nothing"));
}

TEST(StateFlagsTest, ARestoreMayHaveAName) {
  const auto parsed = [](const std::string& words) {
    StateFlags flags;
    CLI::App app;
    AddStateFlags(app, &flags);
    app.parse(words);
    return flags;
  };
  EXPECT_FALSE(parsed("--state-dir /s").restored);
  for (const char* words : {"--restored --state-dir /s", "--state-dir /s --restored"}) {
    EXPECT_TRUE(parsed(words).restored) << words;
    EXPECT_EQ(parsed(words).restored_name, "") << words;
    EXPECT_EQ(parsed(words).state_dir, "/s") << words;
  }
  for (const char* words :
       {"--restored 2026-12-01 --state-dir /s", "--state-dir /s --restored=2026-12-01"}) {
    StateFlags flags = parsed(words);
    EXPECT_TRUE(flags.restored) << words;
    EXPECT_EQ(flags.restored_name, "2026-12-01") << words;
    EXPECT_TRUE(CheckStateFlags(&flags).ok()) << CheckStateFlags(&flags);
  }
  for (const std::string& wrong : {std::string("state/copy.sqlite"), std::string(129, 'x')}) {
    EXPECT_THAT(Wrong({.state_dir = "/s", .restored = true, .restored_name = wrong}),
                AllOf(HasSubstr("--restored '" + wrong), HasSubstr("for example 2026-12-01")));
  }
}

TEST(StateFlagsTest, AFileWithASecretThatAllCanReadIsSaid) {
  const std::string file = ::testing::TempDir() + "/password";
  ASSERT_TRUE(os::WriteFileAtomically(file, "secret\n", 0600).ok());
  EXPECT_EQ(ReadableByAll("--etcd-password-file", file), "");
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  EXPECT_EQ(ReadableByAll("--etcd-password-file", file),
            "--etcd-password-file " + file +
                ": every user of this host can read it (mode 0644): 'chmod 600 " + file + "'");
  // As a Secret of Kubernetes is mounted for one group.
  ASSERT_EQ(::chmod(file.c_str(), 0440), 0);
  EXPECT_EQ(ReadableByAll("--etcd-password-file", file), "");
  EXPECT_EQ(ReadableByAll("--etcd-password-file", ""), "");
}

TEST(StateFlagsTest, WhatIsForEtcdNeedsEtcd) {
  for (const auto& [flag, flags] :
       {std::pair("--import", StateFlags{.import_file = "f"}),
        std::pair("--etcd-cert", StateFlags{.etcd_tls = {.cert = "f"}}),
        std::pair("--etcd-key", StateFlags{.etcd_tls = {.key = "f"}}),
        std::pair("--etcd-ca", StateFlags{.etcd_tls = {.ca = "f"}}),
        std::pair("--etcd-user", StateFlags{.etcd_user = "u"}),
        std::pair("--etcd-password-file", StateFlags{.etcd_password_file = "f"}),
        std::pair("--etcd-quota-bytes", StateFlags{.etcd_quota = "4GiB"}),
        std::pair("--advertise", StateFlags{.advertise = "h:1"}),
        std::pair("--name", StateFlags{.name = "a"})}) {
    StateFlags local = flags;
    local.state_dir = "/s";
    EXPECT_THAT(Wrong(local), HasSubstr(std::string(flag) + " goes with --state etcd://"));
  }
}

TEST(StateFlagsTest, HalfOfAPairIsNamedWithTheOtherHalf) {
  EXPECT_THAT(Wrong({.state = kEtcd, .etcd_tls = {.cert = "c", .ca = "a"}}),
              HasSubstr("--etcd-cert without --etcd-key"));
  EXPECT_THAT(Wrong({.state = kEtcd, .etcd_tls = {.key = "k", .ca = "a"}}),
              HasSubstr("--etcd-key without --etcd-cert"));
  EXPECT_THAT(Wrong({.state = kEtcd, .etcd_tls = {.cert = "c", .key = "k"}}),
              HasSubstr("without --etcd-ca"));
  EXPECT_THAT(Wrong({.state = kEtcd, .etcd_user = "u"}),
              HasSubstr("--etcd-user u without --etcd-password-file"));
  EXPECT_THAT(Wrong({.state = kEtcd, .etcd_password_file = "f"}),
              HasSubstr("--etcd-password-file without --etcd-user"));
  EXPECT_THAT(Wrong({.state = kEtcd, .restored = true, .import_file = "f"}),
              HasSubstr("leave --restored out"));
  EXPECT_THAT(Wrong({.state = kEtcd, .name = "a/b"}), HasSubstr("--name 'a/b'"));
  EXPECT_THAT(Wrong({.state = "etcd:/x"}), HasSubstr("--state"));
}

TEST(StateFlagsTest, TheQuotaIsEtcdsDefaultOrWhatIsSaid) {
  StateFlags flags{.state = kEtcd};
  ASSERT_TRUE(CheckStateFlags(&flags).ok());
  EXPECT_EQ(flags.etcd_quota_bytes, 2ull << 30);
  flags.etcd_quota = "8GiB";
  ASSERT_TRUE(CheckStateFlags(&flags).ok());
  EXPECT_EQ(flags.etcd_quota_bytes, 8ull << 30);
  for (const char* wrong : {"0", "much", "-1"}) {
    EXPECT_THAT(Wrong({.state = kEtcd, .etcd_quota = wrong}),
                AllOf(HasSubstr("--etcd-quota-bytes"), HasSubstr(wrong)));
  }
}

TEST(StateFlagsTest, TheNameIsTheHosts) {
  StateFlags flags{.state = kEtcd};
  ASSERT_TRUE(CheckStateFlags(&flags).ok());
  EXPECT_EQ(flags.name, os::HostName());
}

TEST(StateFlagsTest, WhatIsAdvertisedLeadsToThisHost) {
  EXPECT_EQ(*AdvertisedAddress("", "10.0.0.1:7480", "head"), "10.0.0.1:7480");
  EXPECT_EQ(*AdvertisedAddress("", "0.0.0.0:7480", "head"), "head:7480");
  EXPECT_EQ(*AdvertisedAddress("", "[::]:7480", "head"), "head:7480");
  EXPECT_EQ(*AdvertisedAddress("", "unix:/run/c.sock", "head"), "unix:/run/c.sock");
  EXPECT_EQ(*AdvertisedAddress("vip:80", "0.0.0.0:7480", "head"), "vip:80");
  for (const char* wrong :
       {"head", "head:", "head:0", ":7480", "a:1,b:1", "0.0.0.0:7480", "a b:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(AdvertisedAddress(wrong, "0.0.0.0:1", "h").status()))
        << wrong;
  }
}

}  // namespace
}  // namespace meshrun::coordinator
