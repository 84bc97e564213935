#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FlightRecordsTest : public ::testing::Test {
 protected:
  uint64_t Ask() {
    v1::StateEvent event;
    event.mutable_get_flight_records()->set_job_id(id_);
    *event.mutable_get_flight_records()->mutable_timeout() = ToProtoDuration(seconds(3));
    return h.Call(std::move(event));
  }
  // The number that the worker was told last; 0: none.
  static uint64_t AskedOf(const FakeWorker& worker) {
    uint64_t request = 0;
    for (const auto& message : worker.received) {
      if (message.has_collect_flight_records())
        request = message.collect_flight_records().request();
    }
    return request;
  }
  absl::Status Upload(uint64_t request, int rank, uint64_t generation = 1) {
    v1::StateEvent event;
    v1::UploadFlightRecordRequest& upload = *event.mutable_upload_flight_record();
    upload.mutable_fence()->set_job_id(id_);
    upload.mutable_fence()->set_generation(generation);
    upload.set_request(request);
    upload.mutable_record()->set_rank(rank);
    upload.mutable_record()->set_json("{}");
    const uint64_t call = h.Call(std::move(event));
    EXPECT_TRUE(h.answer(call).done);
    return h.answer(call).status;
  }
  std::vector<v1::FlightRecord> RecordsOf(uint64_t call) {
    std::vector<v1::FlightRecord> records;
    for (const MessagePtr& item : h.answer(call).items) {
      records.push_back(dynamic_cast<const v1::GetFlightRecordsResponse&>(*item).record());
    }
    return records;
  }

  Harness h;
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  std::string id_;
};

TEST_F(FlightRecordsTest, EveryRankIsAskedAndEachAnswerIsPassedOn) {
  id_ = h.Submit(MakeSpec(2, 1));
  const uint64_t call = Ask();
  const uint64_t request = AskedOf(first);
  EXPECT_NE(request, 0u);
  EXPECT_EQ(AskedOf(second), request);
  EXPECT_TRUE(Upload(request, 1).ok());
  EXPECT_THAT(RecordsOf(call), SizeIs(1));
  EXPECT_FALSE(h.answer(call).done);
  EXPECT_TRUE(Upload(request, 0).ok());
  EXPECT_TRUE(h.answer(call).done);
  EXPECT_TRUE(h.answer(call).status.ok());
  ASSERT_THAT(RecordsOf(call), SizeIs(2));
  EXPECT_EQ(RecordsOf(call)[0].rank(), 1);
  EXPECT_EQ(RecordsOf(call)[0].json(), "{}");
  EXPECT_THAT(RecordsOf(call)[0].error(), IsEmpty());
}

TEST_F(FlightRecordsTest, WhoDoesNotAnswerInTimeIsNamed) {
  id_ = h.Submit(MakeSpec(2, 1));
  const uint64_t call = Ask();
  const uint64_t request = AskedOf(first);
  EXPECT_TRUE(Upload(request, 0).ok());
  h.Advance(milliseconds(2900));
  EXPECT_FALSE(h.answer(call).done);
  h.Advance(milliseconds(200));
  EXPECT_TRUE(h.answer(call).done);
  ASSERT_THAT(RecordsOf(call), SizeIs(2));
  EXPECT_EQ(RecordsOf(call)[1].rank(), 1);
  EXPECT_THAT(RecordsOf(call)[1].error(), HasSubstr("no answer within 3s"));
  EXPECT_EQ(Upload(request, 1).code(), absl::StatusCode::kNotFound);
}

TEST_F(FlightRecordsTest, RanksThatHaveEndedOrWhoseHostIsAwayAreNamedAtOnce) {
  id_ = h.Submit(MakeSpec(2, 2));
  h.Say(first, first.Exit(id_, 1, 0));
  h.Disconnect(second);
  const uint64_t call = Ask();
  ASSERT_THAT(RecordsOf(call), SizeIs(3));
  EXPECT_EQ(RecordsOf(call)[0].error(), "it has ended");
  EXPECT_EQ(RecordsOf(call)[1].error(), "its host node2 is not connected");
  EXPECT_TRUE(Upload(AskedOf(first), 0).ok());
  EXPECT_TRUE(h.answer(call).done);
}

TEST_F(FlightRecordsTest, AJobThatDoesNotRunHasNone) {
  id_ = h.Submit(MakeSpec(2, 1));
  h.Say(first, first.ExitAll(id_, 0));
  h.Say(second, second.ExitAll(id_, 0));
  const uint64_t call = Ask();
  EXPECT_EQ(h.answer(call).status.code(), absl::StatusCode::kFailedPrecondition);
  id_ = "nonsense";
  EXPECT_EQ(h.answer(Ask()).status.code(), absl::StatusCode::kNotFound);
}

TEST_F(FlightRecordsTest, AnAnswerOfAnotherGenerationOrRankOrTwiceIsRefused) {
  id_ = h.Submit(MakeSpec(2, 1));
  const uint64_t call = Ask();
  const uint64_t request = AskedOf(first);
  EXPECT_EQ(Upload(request, 0, /*generation=*/2).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Upload(request, 2).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Upload(request + 1, 0).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Upload(request, 0).ok());
  EXPECT_EQ(Upload(request, 0).code(), absl::StatusCode::kNotFound);
  h.CancelCall(call);
  EXPECT_EQ(Upload(request, 1).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
