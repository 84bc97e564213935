// The transactions of an election whose answers are lost, or that are late.
#include "coordinator/leadership/etcd_election.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "tests/etcd/lossy_member.h"
#include "tests/etcd/shared_members.h"

namespace meshrun::coordinator {
namespace {

using testing::LossyMember;
using testing::SharedEtcdMembers;
using Fate = testing::LossyMember::Fate;

constexpr std::chrono::seconds kTtl(2);
constexpr std::chrono::milliseconds kInterval(300);

std::string Prefix() { return ::testing::UnitTest::GetInstance()->current_test_info()->name(); }

// A candidate whose only member loses what it is told to lose.
class EtcdElectionTest : public ::testing::Test {
 protected:
  EtcdElectionTest() {
    auto client = etcd::Client::Make(member_.client());
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    election_ = std::make_unique<EtcdElection>(*client_,
                                               EtcdElection::Names{Prefix(), "a", "a:7480"}, kTtl);
    EXPECT_TRUE(election_->KeepLease(kInterval).ok());
    EXPECT_TRUE(election_->Look().ok());
  }
  ~EtcdElectionTest() override { EXPECT_TRUE(election_->GiveBack().ok()); }

  // The first of the next transactions meets `first`, and all its repetitions are lost.
  void LoseAllBut(Fate first) {
    std::deque<Fate> fates(100, Fate::kLoseRequest);
    fates.front() = first;
    member_.Next(std::move(fates));
  }

  LossyMember member_{SharedEtcdMembers()};
  std::unique_ptr<etcd::Client> client_;
  std::unique_ptr<EtcdElection> election_;
};

TEST_F(EtcdElectionTest, ATakeThatIsLateIsOursAfterASecondOneToo) {
  LoseAllBut(Fate::kLate);
  EXPECT_TRUE(absl::IsUnavailable(election_->Take().status()));
  const std::string first = election_->value();
  ASSERT_TRUE(election_->Look().ok());
  EXPECT_FALSE(election_->HasLeader());
  // The first one is done just before the second one, which is refused.
  member_.Next({Fate::kAfterLate});
  const auto second = election_->Take();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_FALSE(*second);
  ASSERT_TRUE(election_->Look().ok());
  EXPECT_TRUE(election_->HasLeader());
  EXPECT_TRUE(election_->IsOurs());
  EXPECT_EQ(election_->value(), first);
  const auto renewed = election_->Renew();
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_TRUE(*renewed);
}

TEST_F(EtcdElectionTest, ATakeWhoseAnswerIsLostIsOurs) {
  LoseAllBut(Fate::kLoseAnswer);
  EXPECT_FALSE(election_->Take().ok());
  member_.Next({});
  ASSERT_TRUE(election_->Look().ok());
  EXPECT_TRUE(election_->IsOurs());
}

TEST_F(EtcdElectionTest, AKeyThatIsMadeAgainIsOursThoughTheAnswerIsLost) {
  ASSERT_TRUE(*election_->Take());
  SharedEtcdMembers().Ctl({"del", Prefix() + "/leadership/leader"});
  ASSERT_TRUE(election_->Look().ok());
  ASSERT_TRUE(election_->IsTakenAway());
  member_.Next({Fate::kLoseAnswer});
  const auto made = election_->Remake();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(*made);
  EXPECT_TRUE(election_->IsOurs());
  EXPECT_TRUE(*election_->Renew());
}

// One whose keys came back with a snapshot of etcd, and are there until its lease ends, does not.
TEST_F(EtcdElectionTest, ALeaderThatRenewsSinceWeCameLeadsOn) {
  const std::string value = R"({"name": "b", "address": "b:7480"})";
  const auto put = [&value](const char* key) {
    SharedEtcdMembers().Ctl({"put", Prefix() + "/leadership/" + key, value});
  };
  EXPECT_TRUE(election_->GiveBack().ok());
  put("leader");
  put("renewal");
  EtcdElection late(*client_, {Prefix(), "late", "late:7480"}, kTtl);
  ASSERT_TRUE(late.Look().ok());
  EXPECT_EQ(late.seen().joined, 0);
  ASSERT_TRUE(late.KeepLease(kInterval).ok());
  ASSERT_TRUE(late.Look().ok());
  const int64_t joined = late.seen().joined;
  EXPECT_GT(joined, 0);
  ASSERT_TRUE(late.leader().has_value());
  EXPECT_EQ(late.seen().led, 0);
  put("renewal");
  ASSERT_TRUE(late.Look().ok());
  EXPECT_GT(late.seen().led, 0);
  EXPECT_LT(late.seen().led, joined);
  // It stays as it was, though its own key is made again.
  EXPECT_TRUE(late.GiveBack().ok());
  ASSERT_TRUE(late.KeepLease(kInterval).ok());
  ASSERT_TRUE(late.Look().ok());
  EXPECT_EQ(late.seen().joined, joined);
  EXPECT_TRUE(late.GiveBack().ok());
  for (const char* key : {"leader", "renewal"}) {
    SharedEtcdMembers().Ctl({"del", Prefix() + "/leadership/" + key});
  }
}

TEST_F(EtcdElectionTest, AKeyThatAnotherHasMadeMeanwhileIsNotMadeAgain) {
  ASSERT_TRUE(*election_->Take());
  SharedEtcdMembers().Ctl({"del", Prefix() + "/leadership/leader"});
  ASSERT_TRUE(election_->Look().ok());
  SharedEtcdMembers().Ctl(
      {"put", Prefix() + "/leadership/leader", R"({"name": "b", "address": "b:7480"})"});
  EXPECT_FALSE(*election_->Remake());
  EXPECT_EQ(election_->leader()->name, "b");
}

// A leader that can write nothing leads as long as it sees its key, and a TTL from then on.
TEST_F(EtcdElectionTest, AfterAFullEtcdACandidateWaitsFromWhenTheLeadersKeyWasThere) {
  SharedEtcdMembers().Ctl({"put", Prefix() + "/leadership/renewal", "b's"});
  SharedEtcdMembers().Ctl(
      {"put", Prefix() + "/leadership/leader", R"({"name": "b", "address": "b:7480"})"});
  ASSERT_TRUE(election_->Look().ok());
  std::this_thread::sleep_for(kTtl);
  const auto seen = std::chrono::steady_clock::now();
  // Unless a busy machine has let a TTL pass meanwhile.
  const auto expect_not_free = [&] {
    const bool is_free = election_->IsFree();
    EXPECT_TRUE(!is_free || std::chrono::steady_clock::now() >= seen + kTtl);
  };
  ASSERT_TRUE(election_->Look().ok());
  EXPECT_FALSE(election_->IsFree());
  member_.Next({Fate::kFull});
  EXPECT_TRUE(election_->FindWhetherFull(kInterval).ok());
  SharedEtcdMembers().Ctl({"del", Prefix() + "/leadership/leader"});
  ASSERT_TRUE(election_->Look().ok());
  expect_not_free();
  // Not one that can write again.
  ASSERT_TRUE(election_->FindWhetherFull(kInterval).ok());
  ASSERT_TRUE(election_->Look().ok());
  expect_not_free();
  std::this_thread::sleep_for(kTtl);
  EXPECT_TRUE(election_->IsFree());
}

TEST_F(EtcdElectionTest, ACandidateWaitsFromTheLastRenewalWhereEtcdIsNotFull) {
  SharedEtcdMembers().Ctl({"put", Prefix() + "/leadership/renewal", "b's"});
  SharedEtcdMembers().Ctl(
      {"put", Prefix() + "/leadership/leader", R"({"name": "b", "address": "b:7480"})"});
  ASSERT_TRUE(election_->Look().ok());
  std::this_thread::sleep_for(kTtl);
  EXPECT_TRUE(election_->FindWhetherFull(kInterval).ok());
  SharedEtcdMembers().Ctl({"del", Prefix() + "/leadership/leader"});
  ASSERT_TRUE(election_->Look().ok());
  EXPECT_TRUE(election_->IsFree());
}

}  // namespace
}  // namespace meshrun::coordinator
