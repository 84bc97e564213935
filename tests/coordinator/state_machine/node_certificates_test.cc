// When the ends of the nodes' certificates are told.
#include "coordinator/state_machine/node_certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using std::chrono::hours;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr hours kDay(24);

class NodeCertificatesTest : public ::testing::Test {
 protected:
  FakeWorker& Add(const std::string& name, std::chrono::nanoseconds lasts) {
    FakeWorker& worker = h.AddWorker(name);
    Renew(worker, lasts);
    return worker;
  }
  // The worker comes back with another certificate.
  void Renew(FakeWorker& worker, std::chrono::nanoseconds lasts) {
    h.Disconnect(worker);
    worker.certificate_ends = h.clock.WallNow() + lasts;
    h.Connect(worker);
  }
  // What is told after so long. The machine sees one leap of its clock, and then some minutes.
  std::vector<std::string> Told(std::chrono::nanoseconds after) {
    h.clock.Advance(after);
    h.Advance(std::chrono::minutes(2));
    v1::StateEvent event;
    event.mutable_list_events()->set_after(seen_);
    const uint64_t call = h.Call(std::move(event));
    std::vector<std::string> out;
    for (const auto& each : h.answer(call).As<v1::ListEventsResponse>().events()) {
      seen_ = each.sequence();
      if (each.kind() == "CertificateEnding") {
        out.push_back(each.message());
        node_id = each.node_id();
      }
    }
    return out;
  }

  Harness h;
  // The node of what was told last.
  std::string node_id;

 private:
  uint64_t seen_ = 0;
};

TEST_F(NodeCertificatesTest, EachStageIsToldOnceAlsoOverARestart) {
  FakeWorker& gpu1 = Add("gpu1", kDay * 31 - hours(1));
  EXPECT_EQ(FromProto(h.node(gpu1).session_ends_at()), gpu1.certificate_ends + kCertificateGrace);
  EXPECT_THAT(Told(seconds(0)), IsEmpty());
  EXPECT_THAT(Told(kDay), ElementsAre(AllOf(HasSubstr("the certificate of gpu1 ends in 29 days"),
                                            HasSubstr("meshrun ca renew"))));
  EXPECT_EQ(node_id, "id-gpu1");
  h.StartCoordinator();
  h.Connect(gpu1);
  EXPECT_THAT(Told(hours(1)), IsEmpty()) << "the one before has told it";
  EXPECT_THAT(Told(kDay * 23), ElementsAre(HasSubstr("ends in 6 days")));
  EXPECT_THAT(Told(kDay * 6), ElementsAre(HasSubstr("ends in 2")));
  EXPECT_THAT(Told(kDay), ElementsAre(AllOf(HasSubstr("ended 2 hours ago"),
                                            HasSubstr("its open session ends in 2 days"))));
  EXPECT_THAT(Told(kDay), IsEmpty());
}

TEST_F(NodeCertificatesTest, ARenewedCertificateIsToldAnew) {
  FakeWorker& gpu1 = Add("gpu1", kDay * 6);
  EXPECT_THAT(Told(seconds(0)), ElementsAre(HasSubstr("in 5 days")));
  Renew(gpu1, kDay * 365);
  EXPECT_THAT(Told(kDay * 30), IsEmpty());
  EXPECT_THAT(Told(kDay * 330), ElementsAre(HasSubstr("in 4 days")));
}

// The row that Hello writes must not pair the new end with what was told of the old one.
TEST_F(NodeCertificatesTest, ARenewedCertificateIsToldAnewAfterARestartToo) {
  FakeWorker& gpu1 = Add("gpu1", kDay * 6);
  EXPECT_THAT(Told(seconds(0)), ElementsAre(HasSubstr("in 5 days")));
  Renew(gpu1, kDay * 25);
  h.StartCoordinator();
  h.Connect(gpu1);
  EXPECT_THAT(Told(seconds(0)), ElementsAre(HasSubstr("in 24 days")));
}

TEST_F(NodeCertificatesTest, WhatAClockThatWasAheadHasToldIsToldAgain) {
  Add("gpu1", kDay * 5);
  h.wall_ahead = kDay * 365;
  EXPECT_THAT(Told(seconds(0)), ElementsAre(HasSubstr("ended")));
  h.wall_ahead = std::chrono::nanoseconds(0);
  EXPECT_THAT(Told(seconds(0)), IsEmpty());
  EXPECT_THAT(Told(kDay * 4 + hours(1)), ElementsAre(HasSubstr("ends in 22 hours")));
}

TEST_F(NodeCertificatesTest, NothingIsToldOfANodeBeforeItHasSaidHello) {
  FakeWorker& gpu1 = Add("gpu1", kDay * 60);
  FakeWorker& gpu2 = Add("gpu2", kDay * 60);
  EXPECT_THAT(Told(seconds(0)), IsEmpty());
  h.clock.Advance(kDay * 70);
  h.StartCoordinator();
  Renew(gpu1, kDay * 365);
  EXPECT_THAT(Told(seconds(0)), IsEmpty());
  // And why it is lost.
  h.Disconnect(gpu2);
  h.Advance(seconds(10));
  EXPECT_EQ(h.node(gpu2).state(), v1::NODE_STATE_LOST);
  v1::StateEvent event;
  event.mutable_list_events()->set_node("gpu2");
  const uint64_t call = h.Call(std::move(event));
  const auto& events = h.answer(call).As<v1::ListEventsResponse>().events();
  EXPECT_THAT(events.rbegin()->message(), HasSubstr("its certificate ended 10 days ago"));
}

TEST_F(NodeCertificatesTest, ManyNodesAreOneEvent) {
  // Issued one after another in an afternoon.
  auto lasts = kDay * 20 + std::chrono::minutes(0);
  for (const char* name : {"gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6"}) {
    Add(name, lasts += std::chrono::minutes(30));
  }
  Add("gpu7", kDay * 90);
  EXPECT_THAT(Told(seconds(0)), ElementsAre(HasSubstr("the certificate of gpu1 ends in 20 days")));
  EXPECT_EQ(node_id, "");
  // The first one alone has come to its last week.
  EXPECT_THAT(Told(kDay * 13 + std::chrono::minutes(35)),
              ElementsAre(HasSubstr(", and those of gpu2, gpu3 and 3 more nodes end too: renew")));
}

TEST_F(NodeCertificatesTest, WithoutTlsNothingIsTold) {
  FakeWorker& plain = h.AddWorker("plain");
  EXPECT_FALSE(h.node(plain).has_certificate_ends_at());
  EXPECT_THAT(Told(kDay * 400), IsEmpty());
  Renew(plain, kDay);
  EXPECT_TRUE(h.node(plain).has_certificate_ends_at());
  plain.certificate_ends = std::chrono::nanoseconds(0);
  h.Disconnect(plain);
  h.Connect(plain);
  EXPECT_FALSE(h.node(plain).has_certificate_ends_at());
}

}  // namespace
}  // namespace meshrun::coordinator::testing
