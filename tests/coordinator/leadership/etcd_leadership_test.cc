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

#include "core/mutex.h"
#include "core/os/boot_time.h"
#include "core/os/files.h"
#include "tests/etcd/shared_members.h"
#include "tests/worker/support/processes.h"

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

constexpr seconds kTtl(3);

std::string Prefix() { return ::testing::UnitTest::GetInstance()->current_test_info()->name(); }

// A candidate, its campaign on a thread, and when it led.
class Coordinator {
 public:
  Coordinator(etcd::Client::Options client, const std::string& name) {
    auto made = EtcdLeadership::Start({.client = std::move(client),
                                       .prefix = Prefix(),
                                       .name = name,
                                       .address = name + ":7480",
                                       .ttl = kTtl});
    EXPECT_TRUE(made.ok()) << made.status();
    leadership_ = *std::move(made);
    leadership_->OnLost([this](const std::string& why) {
      MutexLock lock(mu_);
      // It says so no earlier than it is true.
      EXPECT_FALSE(leadership_->Leads());
      lost_.push_back(why);
      lost_at_ = steady_clock::now();
    });
  }
  ~Coordinator() { Stop(); }

  void Campaign() {
    if (campaign_.joinable()) campaign_.join();
    campaign_ = std::thread([this] {
      const absl::Status status = leadership_->Campaign();
      MutexLock lock(mu_);
      led_at_ = steady_clock::now();
      ended_ = status;
    });
  }
  // The last campaign's.
  absl::Status Ended() {
    campaign_.join();
    MutexLock lock(mu_);
    return ended_;
  }
  void Stop() {
    leadership_->Stop();
    if (campaign_.joinable()) campaign_.join();
  }
  EtcdLeadership& operator*() { return *leadership_; }
  EtcdLeadership* operator->() { return leadership_.get(); }

  steady_clock::time_point led_at() {
    MutexLock lock(mu_);
    return led_at_;
  }
  steady_clock::time_point lost_at() {
    MutexLock lock(mu_);
    return lost_at_;
  }
  std::vector<std::string> lost() {
    MutexLock lock(mu_);
    return lost_;
  }

 private:
  Mutex mu_;
  std::vector<std::string> lost_ MESHRUN_GUARDED_BY(mu_);
  steady_clock::time_point lost_at_ MESHRUN_GUARDED_BY(mu_);
  steady_clock::time_point led_at_ MESHRUN_GUARDED_BY(mu_);
  absl::Status ended_ MESHRUN_GUARDED_BY(mu_);
  std::unique_ptr<EtcdLeadership> leadership_;
  std::thread campaign_;
};

// Looks at two candidates all the time: how often both led at once.
class Watcher {
 public:
  Watcher(Coordinator& a, Coordinator& b)
      : thread_([&a, &b, this] {
          while (!stop_) {
            both_ += a->Leads() && b->Leads();
            std::this_thread::sleep_for(milliseconds(1));
          }
        }) {}
  ~Watcher() {
    if (thread_.joinable()) thread_.join();
  }
  int End() {
    stop_ = true;
    thread_.join();
    return both_;
  }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<int> both_ = 0;
  std::thread thread_;
};

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
  EXPECT_LT(b.led_at() - began, seconds(1));
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
  EXPECT_LT(b.led_at() - began, seconds(1));
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
  EXPECT_LT(steady_clock::now() - began, seconds(1));
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

// A role or a password that was changed by mistake ends no coordinator.
TEST(EtcdLeadershipTest, WhatEtcdRefusesMeanwhileIsTriedUntilItIsGranted) {
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
  EXPECT_LT(a.lost_at(), b.led_at());
  EXPECT_LT(b.led_at() - began, kTtl + seconds(1));
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

TEST(EtcdLeadershipTest, TheLossOfAMemberChangesNothing) {
  EtcdMembers members;
  Coordinator a(members.client(), "a"), b(members.client(), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  Watcher watcher(a, b);
  // The leader of etcd, and the member that both have asked so far if it is another one.
  for (const int member : {members.Leader(), 0}) {
    members.Kill(member);
    const auto until = steady_clock::now() + kTtl + milliseconds(500);
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
  Coordinator a(members.client(), "a"), b(members.client(), "b");
  a.Campaign();
  ASSERT_TRUE(a.Ended().ok());
  b.Campaign();
  Watcher watcher(a, b);
  const int paused = members.Leader();
  const auto began = steady_clock::now();
  members.Pause(paused);
  bool goes_on = false;
  while (steady_clock::now() < began + kTtl + seconds(4)) {
    ASSERT_TRUE(a->Leads());
    std::this_thread::sleep_for(milliseconds(10));
    if (!goes_on && steady_clock::now() > began + kTtl + milliseconds(2500)) {
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
  EXPECT_LT(a.led_at() - began, kTtl + seconds(1));
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
  const auto began = steady_clock::now();
  members.Pause(0);
  members.Pause(1);
  EXPECT_TRUE(Eventually([&] { return !a->Leads(); }));
  EXPECT_LT(steady_clock::now() - began, kTtl + milliseconds(100));
  EXPECT_TRUE(Eventually([&] { return !a.lost().empty(); }));
  EXPECT_LT(a.lost_at() - began, kTtl + milliseconds(500));
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
