#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

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
  EXPECT_EQ(RecordsOf(call)[0].error(), "it has ended: ended with exit code 0");
  EXPECT_EQ(RecordsOf(call)[1].error(), "its host node2 is not connected");
  EXPECT_TRUE(Upload(AskedOf(first), 0).ok());
  EXPECT_TRUE(h.answer(call).done);
}

TEST_F(FlightRecordsTest, ARankThatIsKilledMeanwhileIsSaidToHaveEnded) {
  id_ = h.Submit(MakeSpec(2, 1));
  const uint64_t call = Ask();
  EXPECT_TRUE(Upload(AskedOf(first), 0).ok());
  h.Say(second, second.Exit(id_, 1, 0, SIGKILL));
  h.Advance(milliseconds(3100));
  ASSERT_THAT(RecordsOf(call), SizeIs(2));
  EXPECT_EQ(RecordsOf(call)[1].error(), "it has ended: killed by signal 9 (SIGKILL)");
}

TEST_F(FlightRecordsTest, ARankOfAGenerationThatHasGoneIsSaidToHaveEnded) {
  v1::JobSpec spec = MakeSpec(2, 1);
  spec.set_max_restarts(1);
  id_ = h.Submit(spec);
  const uint64_t call = Ask();
  h.Say(second, second.Exit(id_, 1, 0, SIGKILL));
  h.Advance(milliseconds(3100));
  ASSERT_EQ(h.job(id_).generation(), 2u);
  ASSERT_THAT(RecordsOf(call), SizeIs(2));
  EXPECT_EQ(RecordsOf(call)[1].error(), "it has ended with generation 1 of the job");
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

class StacksTest : public ::testing::Test {
 protected:
  uint64_t Ask(const std::vector<int>& ranks = {}, bool native = false) {
    v1::StateEvent event;
    v1::GetStacksRequest& request = *event.mutable_get_stacks();
    request.set_job_id(id_);
    request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
    request.set_native(native);
    return h.Call(std::move(event));
  }
  static const v1::CollectStacks* AskedOf(const FakeWorker& worker) {
    for (auto it = worker.received.rbegin(); it != worker.received.rend(); ++it) {
      if (it->has_collect_stacks()) return &it->collect_stacks();
    }
    return nullptr;
  }
  // By the rank's host, or by another one.
  absl::Status Upload(uint64_t request, int rank, const FakeWorker* by = nullptr) {
    v1::StateEvent event;
    v1::UploadStackRequest& upload = *event.mutable_upload_stack();
    upload.mutable_fence()->set_job_id(id_);
    upload.mutable_fence()->set_generation(1);
    upload.mutable_fence()->set_node_id(
        by != nullptr ? by->node_id() : h.job(id_).ranks(rank).assignment().node_id());
    upload.set_request(request);
    upload.mutable_stack()->set_rank(rank);
    upload.mutable_stack()->set_place("step (train.py:12)");
    const uint64_t call = h.Call(std::move(event));
    return h.answer(call).status;
  }
  std::vector<v1::RankStack> StacksOf(uint64_t call) {
    std::vector<v1::RankStack> stacks;
    for (const MessagePtr& item : h.answer(call).items) {
      stacks.push_back(dynamic_cast<const v1::GetStacksResponse&>(*item).stack());
    }
    return stacks;
  }

  Harness h;
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  std::string id_;
};

TEST_F(StacksTest, OnlyTheHostsOfTheRanksThatAreAskedForAreAsked) {
  id_ = h.Submit(MakeSpec(2, 2));
  const uint64_t call = Ask({3}, /*native=*/true);
  EXPECT_EQ(AskedOf(first), nullptr);
  const v1::CollectStacks* const asked = AskedOf(second);
  ASSERT_NE(asked, nullptr);
  EXPECT_EQ(asked->ranks(0), 3);
  EXPECT_TRUE(asked->native());
  EXPECT_EQ(FromProto(asked->timeout()), seconds(20)) << "a debugger does not outlive its request";
  EXPECT_EQ(Upload(asked->request(), 2).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Upload(asked->request(), 3).ok());
  EXPECT_TRUE(h.answer(call).done);
  ASSERT_THAT(StacksOf(call), SizeIs(1));
  EXPECT_EQ(StacksOf(call)[0].place(), "step (train.py:12)");
}

TEST_F(StacksTest, AHostThatDoesNotAnswerIsNamedForEachOfItsRanks) {
  id_ = h.Submit(MakeSpec(2, 1));
  const uint64_t call = Ask();
  EXPECT_EQ(Upload(AskedOf(first)->request(), 0, &second).code(), absl::StatusCode::kNotFound)
      << "it is not there";
  EXPECT_TRUE(Upload(AskedOf(first)->request(), 0).ok());
  h.Advance(seconds(21));
  ASSERT_THAT(StacksOf(call), SizeIs(2));
  EXPECT_EQ(StacksOf(call)[1].rank(), 1);
  EXPECT_THAT(StacksOf(call)[1].error(), HasSubstr("no answer within 20s"));
}

TEST_F(StacksTest, ARankThatTheJobDoesNotHaveIsAnError) {
  id_ = h.Submit(MakeSpec(2, 1));
  for (const int rank : {-1, 2}) {
    const absl::Status status = h.answer(Ask({rank})).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(status.message()), HasSubstr("its ranks are 0 to 1"));
  }
}

TEST_F(StacksTest, AFlightRecordIsNoAnswerToThem) {
  id_ = h.Submit(MakeSpec(2, 1));
  Ask();
  v1::StateEvent event;
  v1::UploadFlightRecordRequest& upload = *event.mutable_upload_flight_record();
  upload.mutable_fence()->set_job_id(id_);
  upload.mutable_fence()->set_generation(1);
  upload.set_request(AskedOf(first)->request());
  EXPECT_EQ(h.answer(h.Call(std::move(event))).status.code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
