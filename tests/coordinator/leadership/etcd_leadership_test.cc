// Candidates on a real etcd: one leads, whatever happens to its members.
#include "coordinator/leadership/etcd_leadership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/os/boot_time.h"
#include "tests/coordinator/leadership/candidates.h"
#include "tests/etcd/shared_members.h"

namespace meshrun::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::EtcdMembers;
using testing::Eventually;
using ::testing::Field;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::SharedEtcdMembers;

// Less than it takes where a lease must end first.
constexpr auto kSoon = kTtl - milliseconds(500);

TEST(EtcdLeadershipTest, OneOfTwoLeadsAndBothAreKnown) {
  Coordinator a(SharedEtcdMembers().client(), "a"), b(SharedEtcdMembers().client(), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  EXPECT_TRUE(a->Leads());
  EXPECT_TRUE(a->Campaign().ok());
  EXPECT_TRUE(Eventually([&] { return b->Leader() && b->Candidates().size() == 2; }));
  EXPECT_THAT(b->Leader()->address, "a:7480");
  EXPECT_THAT(b->Candidates(), ElementsAre(AllOf(Field(&Leadership::Candidate::name, "a"),
                                                 Field(&Leadership::Candidate::leads, true)),
                                           AllOf(Field(&Leadership::Candidate::name, "b"),
                                                 Field(&Leadership::Candidate::leads, false))));
  EXPECT_FALSE(b->Leads());
  EXPECT_TRUE(a->Held().has_value());
  EXPECT_FALSE(b->Held().has_value());
}

TEST(EtcdLeadershipTest, WhoStopsHandsOverAtOnce) {
  Coordinator a(SharedEtcdMembers().client(), "a"), b(SharedEtcdMembers().client(), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  EXPECT_TRUE(Eventually([&] { return a->Candidates().size() == 2; }));
  const auto began = steady_clock::now();
  a.Stop();
  EXPECT_TRUE(b.Ended().ok());
  EXPECT_LT(b.led_at() - began, kSoon);
  EXPECT_THAT(a.lost(), ElementsAre("this coordinator stops"));
  EXPECT_TRUE(absl::IsCancelled(a->Campaign()));
}

// None of them interrupts what the first one gives back.
TEST(EtcdLeadershipTest, SeveralThreadsMayStopIt) {
  Coordinator a(SharedEtcdMembers().client(), "a"), b(SharedEtcdMembers().client(), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  EXPECT_TRUE(Eventually([&] { return a->Candidates().size() == 2; }));
  const auto began = steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&a] {
      a->Stop();
      EXPECT_FALSE(a->Leads());
      EXPECT_EQ(a.lost().size(), 1u);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(b.Ended().ok());
  EXPECT_LT(b.led_at() - began, kSoon);
}

TEST(EtcdLeadershipTest, ACampaignEndsWhenItIsStopped) {
  Coordinator a(SharedEtcdMembers().client(), "a"), b(SharedEtcdMembers().client(), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  b->Stop();
  EXPECT_TRUE(absl::IsCancelled(b.Ended()));
  EXPECT_TRUE(b.lost().empty());
  EXPECT_TRUE(a->Leads());
}

TEST(EtcdLeadershipTest, ASuspendedHostLeadsNoMoreAsSoonAsItGoesOn) {
  std::atomic<std::chrono::nanoseconds> suspended{std::chrono::nanoseconds(0)};
  const auto a = *EtcdLeadership::Start(
      {.client = SharedEtcdMembers().client(),
       .prefix = Prefix(),
       .name = "a",
       .address = "a:7480",
       .ttl = kTtl,
       .boot_time = [&suspended] { return os::BootTimeNow() + suspended.load(); }});
  ASSERT_TRUE(a->Campaign().ok());
  ASSERT_TRUE(a->Leads());
  suspended = kTtl;
  EXPECT_FALSE(a->Leads());
  EXPECT_FALSE(a->Held().has_value());
}

TEST(EtcdLeadershipTest, AStandbyThatTwoThreadsStopIsGoneAtOnce) {
  Coordinator a(SharedEtcdMembers().client(), "a"), b(SharedEtcdMembers().client(), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  ASSERT_TRUE(Eventually([&] { return a->Candidates().size() == 2; }));
  const auto began = steady_clock::now();
  std::thread other([&] { b->Stop(); });
  b.Stop();
  other.join();
  // It gives its lease back: the leader does not see it until that ends.
  EXPECT_TRUE(Eventually([&] { return a->Candidates().size() == 1; }));
  EXPECT_LT(steady_clock::now() - began, kSoon);
}

TEST(EtcdLeadershipTest, AnOwnNameIsWanted) {
  Coordinator a(SharedEtcdMembers().client(), "same"), b(SharedEtcdMembers().client(), "same");
  EXPECT_TRUE(Eventually([&] { return a->Candidates().size() == 1; }));
  a.Campaign();
  b.Campaign();
  // One of them is told, after the time of an earlier process's lease.
  EXPECT_TRUE(Eventually([&] { return a->Leads() || b->Leads(); }));
  const absl::Status status = a->Leads() ? b.Ended() : a.Ended();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("same:7480"));
}

TEST(EtcdLeadershipTest, WrongOptionsAreTold) {
  EtcdLeadership::Options options = {.client = SharedEtcdMembers().client(), .name = "a/b"};
  EXPECT_TRUE(absl::IsInvalidArgument(EtcdLeadership::Start(options).status()));
  options.name = "a";
  options.client.tls = {};
  const absl::Status plain = EtcdLeadership::Start(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(plain));
  EXPECT_THAT(std::string(plain.message()), HasSubstr("--etcd-ca"));
}

// Its only member stands still, as if the coordinator could not send any more.
TEST(EtcdLeadershipTest, WhoCannotRenewStopsBeforeAnotherBegins) {
  EtcdMembers members;
  const int paused = (members.Leader() + 1) % EtcdMembers::kCount;
  Coordinator a(members.client({paused}), "a");
  Coordinator b(members.client({(paused + 1) % EtcdMembers::kCount, members.Leader()}), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  Watcher watcher(a, b);
  const auto began = steady_clock::now();
  members.Pause(paused);
  EXPECT_TRUE(b.Ended().ok());
  EXPECT_EQ(watcher.End(), 0);
  EXPECT_LT(b.led_at() - began, kTtl + seconds(5));
  EXPECT_THAT(a.lost(), ElementsAre(HasSubstr("not renewed in time")));
  members.GoOn(paused);
  // It is a candidate again.
  a.Campaign();
  EXPECT_TRUE(Eventually([&] { return a->Candidates().size() == 2; }));
  EXPECT_FALSE(a->Leads());
  b.Stop();
  EXPECT_TRUE(a.Ended().ok());
  EXPECT_TRUE(a->Leads());
}

// Twice as long as etcd needs for another leader: up to 2 s, and a second more where votes are
// split.
constexpr seconds kLongTtl(6);

TEST(EtcdLeadershipTest, TheLossOfAMemberChangesNothing) {
  EtcdMembers members;
  Coordinator a(members.client(), "a", kLongTtl), b(members.client(), "b", kLongTtl);
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  Watcher watcher(a, b);
  // The leader of etcd, and the member that both have asked so far if it is another one.
  for (const int member : {members.Leader(), 0}) {
    members.Kill(member);
    const auto until = steady_clock::now() + kLongTtl + milliseconds(500);
    while (steady_clock::now() < until) {
      ASSERT_TRUE(a->Leads()) << member;
      std::this_thread::sleep_for(milliseconds(10));
    }
    members.Start(member);
    members.AwaitServing();
    EXPECT_TRUE(Eventually([&] { return a->Candidates().size() == 2; }));
  }
  EXPECT_EQ(watcher.End(), 0);
  EXPECT_TRUE(a.lost().empty());
  EXPECT_FALSE(b->Leads());
}

// etcd's leader has the leases in its memory. One that stood still and goes on may end leases that
// the others have renewed (etcd-io/etcd issue 15247).
TEST(EtcdLeadershipTest, EtcdsLeaderThatStandsStillChangesNothing) {
  EtcdMembers members;
  Coordinator a(members.client(), "a", kLongTtl), b(members.client(), "b", kLongTtl);
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  Watcher watcher(a, b);
  const int paused = members.Leader();
  const auto began = steady_clock::now();
  members.Pause(paused);
  bool goes_on = false;
  while (steady_clock::now() < began + kLongTtl + seconds(4)) {
    ASSERT_TRUE(a->Leads());
    std::this_thread::sleep_for(milliseconds(10));
    if (!goes_on && steady_clock::now() > began + kLongTtl + milliseconds(2500)) {
      members.GoOn(paused);
      goes_on = true;
    }
  }
  EXPECT_EQ(watcher.End(), 0);
  EXPECT_TRUE(a.lost().empty());
}

TEST(EtcdLeadershipTest, ALeaderWhoseKeyEtcdTakesAwayMakesItAgain) {
  Coordinator a(SharedEtcdMembers().client(), "a"), b(SharedEtcdMembers().client(), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  const auto held = a->Held();
  EXPECT_TRUE(Eventually([&] { return b->Candidates().size() == 2; }));
  Watcher watcher(a, b);
  // All keys of a lease end with it.
  SharedEtcdMembers().Ctl({"del", Prefix() + "/leadership/leader"});
  SharedEtcdMembers().Ctl({"del", Prefix() + "/leadership/candidates/a"});
  EXPECT_TRUE(Eventually([&] {
    const std::string keys =
        SharedEtcdMembers().Ctl({"get", "--prefix", Prefix() + "/leadership/"});
    return keys.find("/leadership/leader") != std::string::npos &&
           keys.find("/candidates/a") != std::string::npos;
  }));
  EXPECT_TRUE(a->Leads());
  EXPECT_EQ(a->Held()->value, held->value);
  EXPECT_EQ(watcher.End(), 0);
  EXPECT_TRUE(a.lost().empty());
}

// Only time says that one that was killed does not lead.
TEST(EtcdLeadershipTest, AFirstCandidateWaitsWhereALeaderWasKilled) {
  SharedEtcdMembers().Ctl({"put", Prefix() + "/leadership/renewal", "of one that was killed"});
  const auto began = steady_clock::now();
  Coordinator a(SharedEtcdMembers().client(), "a");
  a.Campaign();
  EXPECT_TRUE(a.Ended().ok());
  EXPECT_GT(a.led_at() - began, kTtl);
  EXPECT_LT(a.led_at() - began, kTtl + seconds(5));
}

TEST(EtcdLeadershipTest, ALeaderGoesOnWhileEtcdIsFull) {
  EtcdMembers members({"--quota-backend-bytes", "1000000"});
  Coordinator a(members.client(), "a"), b(members.client(), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  EXPECT_TRUE(Eventually([&] { return a->Candidates().size() == 2; }));
  const auto client = *etcd::Client::Make(members.client());
  etcdserverpb::TxnRequest large;
  auto& put = *large.add_success()->mutable_request_put();
  put.set_key("large");
  put.set_value(std::string(600'000, 'x'));
  EXPECT_TRUE(Eventually([&] { return absl::IsResourceExhausted(client->Txn(large).status()); }));
  const auto until = steady_clock::now() + kTtl + seconds(1);
  while (steady_clock::now() < until) {
    ASSERT_TRUE(a->Leads());
    ASSERT_FALSE(b->Leads());
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(a->Candidates().size(), 2u);
}

TEST(EtcdLeadershipTest, WithoutTheMajorityNobodyLeadsUntilItReturns) {
  EtcdMembers members;
  Coordinator a(members.client(), "a"), b(members.client(), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  Watcher watcher(a, b);
  members.Pause(0);
  members.Pause(1);
  // From here on nothing is renewed.
  const auto began = steady_clock::now();
  auto led = began;
  EXPECT_TRUE(Eventually([&] {
    const auto now = steady_clock::now();
    if (!a->Leads()) return true;
    led = now;
    return false;
  }));
  EXPECT_LT(led - began, kTtl);
  EXPECT_TRUE(Eventually([&] { return !a.lost().empty(); }));
  EXPECT_LT(a.lost_at() - began, kTtl + seconds(5));
  a.Campaign();
  // Longer than a lease.
  std::this_thread::sleep_for(kTtl + seconds(1));
  EXPECT_FALSE(a->Leads() || b->Leads());
  members.GoOn(0);
  members.GoOn(1);
  EXPECT_TRUE(Eventually([&] { return a->Leads() != b->Leads(); }));
  EXPECT_EQ(watcher.End(), 0);
  // The other one waits on.
  a.Stop();
  b.Stop();
}

}  // namespace
}  // namespace meshrun::coordinator
