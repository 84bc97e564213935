// Candidates whose role or password changes at etcd while they run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "core/os/files.h"
#include "tests/coordinator/leadership/candidates.h"
#include "tests/etcd/members.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::EtcdMembers;
using testing::Eventually;
using ::testing::HasSubstr;

// A role or a password that was changed by mistake ends no coordinator.
TEST(EtcdRefusalTest, WhatItRefusesMeanwhileIsTriedUntilItIsGranted) {
  EtcdMembers members({"--bcrypt-cost", "4"});
  members.WantUsers("meshrun", "first", Prefix());
  const testing::TemporaryDirectory directory;
  const auto write_password = [file = directory / "password"](const std::string& password) {
    ASSERT_TRUE(os::WriteFileAtomically(file, password).ok());
  };
  etcd::Client::Options client = members.client();
  client.user = "meshrun";
  client.password_file = directory / "password";
  write_password("wrong");
  {
    Coordinator early(client, "early");
    early.Campaign();
    const absl::Status refused = early.Ended();
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << refused;
  }
  write_password("first");
  Coordinator a(client, "a"), b(client, "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  ASSERT_TRUE(Eventually([&] { return a->Candidates().size() == 2; }));
  Watcher watcher(a, b);
  ::testing::internal::CaptureStderr();

  members.Revoke("meshrun", Prefix());
  EXPECT_TRUE(Eventually([&] { return !a.lost().empty(); }));
  EXPECT_THAT(a.lost(), ElementsAre(AllOf(HasSubstr("not renewed in time: "),
                                          HasSubstr("permission denied"))));
  a.Campaign();
  EXPECT_TRUE(Eventually([&] { return !a->Problem().empty() && !b->Problem().empty(); }));
  EXPECT_THAT(b->Problem(), HasSubstr("--prefix=true " + Prefix() + "/"));
  members.Grant("meshrun", Prefix());
  EXPECT_TRUE(Eventually([&] { return a->Leads() != b->Leads(); }));

  // First in the file, then at etcd: no gap.
  Coordinator& leader = a->Leads() ? a : b;
  const size_t lost = leader.lost().size();
  write_password("second");
  members.SetPassword("meshrun", "second");
  const auto until = steady_clock::now() + kTtl + milliseconds(500);
  while (steady_clock::now() < until) {
    ASSERT_TRUE(leader->Leads());
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(leader.lost().size(), lost);
  // First at etcd, and a while later in the file.
  members.SetPassword("meshrun", "third");
  EXPECT_TRUE(Eventually([&] { return leader.lost().size() == lost + 1; }));
  leader.Campaign();
  write_password("third");
  EXPECT_TRUE(Eventually([&] { return a->Leads() != b->Leads(); }));
  EXPECT_EQ(watcher.End(), 0);

  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto times = [&log](const std::string& text) {
    int count = 0;
    for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
    return count;
  };
  // Each of the two says each of the reasons, and not each time.
  EXPECT_GE(times("who leads is not known"), 4) << log;
  EXPECT_LE(times("who leads is not known"), 8) << log;
  EXPECT_GE(times("another coordinator leads name="), 1) << log;
}

}  // namespace
}  // namespace meshrun::coordinator
