#include "core/certificates/standing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <thread>

#include "core/certificates/authority.h"
#include "core/certificates/certificate.h"

namespace meshrun::certificates {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StandingTest : public ::testing::Test {
 protected:
  StandingTest() {
    ca_ = *MakeAuthority("test", {now_ - hours(1), now_ + hours(100)});
    std::ofstream(file_) << "";
  }
  std::string Sign(const std::string& name, std::chrono::nanoseconds lasts) {
    return Issue(ca_, {.common_name = name}, {now_ - hours(1), now_ + lasts})->cert_pem;
  }
  std::unique_ptr<Standing> Start() {
    auto standing = Standing::Start(
        {.deny_file = file_,
         .clock = &clock_,
         .interval = std::chrono::milliseconds(0),
         .on_problem = [this](const std::string& text) { problems_.push_back(text); }});
    EXPECT_TRUE(standing.ok()) << standing.status();
    return *std::move(standing);
  }
  void Deny(const std::string& text) { std::ofstream(file_) << text; }

  FakeClock clock_;
  const WallNanos now_ = clock_.WallNow();
  const std::string file_ = std::string(::testing::TempDir()) + "/deny";
  KeyPair ca_;
  std::vector<std::string> problems_;
};

TEST_F(StandingTest, ACertificateStandsUntilItsEnd) {
  const std::string pem = Sign("n1", hours(2));
  const auto standing = Start();
  EXPECT_TRUE(standing->Check(pem).ok());
  clock_.Advance(hours(2) - seconds(1));
  EXPECT_TRUE(standing->Check(pem).ok());
  clock_.Advance(seconds(1));
  const absl::Status status = standing->Check(pem);
  EXPECT_TRUE(absl::IsUnauthenticated(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("certificate of 'n1' ended"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("meshrun ca renew"));
}

TEST_F(StandingTest, WhatIsDeniedStandsNoMoreBySerialOrByName) {
  const std::string ada = Sign("ada", hours(2)), bob = Sign("bob", hours(2));
  const std::string third = Sign("cy", hours(2));
  const auto standing = Start();
  Deny("# lost\nserial: " + ReadCertificate(ada)->serial + "\nname:bob\n");
  standing->Look();
  EXPECT_TRUE(absl::IsUnauthenticated(standing->Check(ada)));
  EXPECT_THAT(std::string(standing->Check(bob).message()), HasSubstr("on the deny list"));
  EXPECT_TRUE(standing->Check(third).ok());
  Deny("");
  standing->Look();
  EXPECT_TRUE(standing->Check(ada).ok()) << "the list is what the file says";
}

TEST_F(StandingTest, OpenStreamsAreEndedOnce) {
  const auto standing = Start();
  std::vector<std::string> ended;
  const auto watch = [&](const std::string& name, std::chrono::nanoseconds lasts) {
    return standing->Watch(Sign(name, lasts), WallNanos(0),
                           [&ended, name](const absl::Status& status) {
                             EXPECT_TRUE(absl::IsUnauthenticated(status));
                             ended.push_back(name);
                           });
  };
  watch("short", hours(1));
  watch("long", hours(50));
  const uint64_t gone = watch("gone", hours(1));
  watch("denied", hours(50));
  standing->Forget(gone);
  standing->Look();
  EXPECT_THAT(ended, IsEmpty());
  Deny("name:denied");
  standing->Look();
  EXPECT_THAT(ended, ElementsAre("denied"));
  clock_.Advance(hours(1));
  standing->Look();
  standing->Look();
  EXPECT_THAT(ended, ElementsAre("denied", "short"));
}

TEST_F(StandingTest, AGraceIsForWhoIsNotDenied) {
  const std::string pem = Sign("gpu7", hours(1));
  const auto standing = Start();
  std::vector<std::string> ended;
  standing->Watch(pem, hours(2),
                  [&](const absl::Status& status) { ended.emplace_back(status.message()); });
  clock_.Advance(hours(2));
  standing->Look();
  EXPECT_THAT(ended, IsEmpty());
  EXPECT_TRUE(standing->Check(pem, hours(2)).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(standing->Check(pem)));
  clock_.Advance(hours(1));
  standing->Look();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0], HasSubstr("ended 2 hours ago"));
  const std::string other = Sign("gpu8", hours(2));
  standing->Watch(other, hours(2),
                  [&](const absl::Status& status) { ended.emplace_back(status.message()); });
  Deny("name:gpu8");
  standing->Look();
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_THAT(ended[1], HasSubstr("deny list"));
  EXPECT_TRUE(absl::IsUnauthenticated(standing->Check(other, hours(2))));
}

// A function that a Look calls, and which does not return before the test lets it.
class Held {
 public:
  // To be watched; `holds`: what the function holds.
  std::function<void(const absl::Status&)> Function(std::shared_ptr<int> holds = nullptr) {
    return [this, holds = std::move(holds)](const absl::Status&) {
      called_.set_value();
      release_.get_future().wait();
    };
  }
  void AwaitCall() { called_.get_future().wait(); }
  void Release() { release_.set_value(); }

 private:
  std::promise<void> called_;
  std::promise<void> release_;
};

TEST_F(StandingTest, ForgetDoesNotWaitForACallAndQuiesceDoes) {
  const auto standing = Start();
  standing->Quiesce();
  Held held;
  auto holds = std::make_shared<int>(0);
  const std::weak_ptr<int> alive = holds;
  const uint64_t watch =
      standing->Watch(Sign("n1", hours(2)), WallNanos(0), held.Function(std::move(holds)));
  Deny("name:n1");
  std::thread look([&] { standing->Look(); });
  held.AwaitCall();
  standing->Forget(watch);
  auto quiet = std::async(std::launch::async, [&] {
    standing->Quiesce();
    return alive.expired();
  });
  EXPECT_EQ(quiet.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  held.Release();
  EXPECT_TRUE(quiet.get()) << "what the function holds is gone too";
  look.join();
}

TEST_F(StandingTest, QuiesceWaitsForNoLookThatBeganAfterIt) {
  const auto standing = Start();
  Held first, second;
  standing->Watch(Sign("n1", hours(2)), WallNanos(0), first.Function());
  Deny("name:n1");
  std::thread look([&] { standing->Look(); });
  first.AwaitCall();
  auto quiet = std::async(std::launch::async, [&] { standing->Quiesce(); });
  EXPECT_EQ(quiet.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  standing->Watch(Sign("n2", hours(2)), WallNanos(0), second.Function());
  Deny("name:n1\nname:n2");
  std::thread later([&] { standing->Look(); });
  second.AwaitCall();
  first.Release();
  quiet.get();
  second.Release();
  look.join();
  later.join();
  standing->Quiesce();
}

TEST_F(StandingTest, QuiesceWithinACallDoesNotWaitForItself) {
  const auto standing = Start();
  bool returned = false;
  standing->Watch(Sign("n1", hours(2)), WallNanos(0), [&](const absl::Status&) {
    standing->Quiesce();
    returned = true;
  });
  Deny("name:n1");
  standing->Look();
  EXPECT_TRUE(returned);
}

TEST_F(StandingTest, AListThatCannotBeReadIsSaidOnceAndTheLastOneHolds) {
  Deny("name:ada");
  const std::string pem = Sign("ada", hours(2));
  const auto standing = Start();
  Deny("nmae:bob");
  standing->Look();
  standing->Look();
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_THAT(problems_[0], HasSubstr("line 1: 'nmae:bob' is neither serial:HEX nor name:"));
  EXPECT_TRUE(absl::IsUnauthenticated(standing->Check(pem)));
}

TEST_F(StandingTest, AStartNeedsAListThatCanBeRead) {
  EXPECT_FALSE(Standing::Start({.deny_file = file_ + ".missing"}).ok());
  Deny("serial:xyz");
  EXPECT_TRUE(absl::IsInvalidArgument(Standing::Start({.deny_file = file_}).status()));
  EXPECT_TRUE(absl::IsUnauthenticated((*Standing::Start({}))->Check("no certificate")));
}

TEST(DenyListTest, SerialsAreNumbers) {
  const auto list = ParseDenyList("serial=00:0A:1b\r\n  name: node-17 \n\n#name:x\nserial:FF");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->serials, ElementsAre("a1b", "ff"));
  EXPECT_THAT(list->names, ElementsAre("node-17"));
  EXPECT_FALSE(ParseDenyList("serial:").ok());
  EXPECT_FALSE(ParseDenyList("serial:0").ok());
  EXPECT_FALSE(ParseDenyList("name:").ok());
}

}  // namespace
}  // namespace meshrun::certificates
