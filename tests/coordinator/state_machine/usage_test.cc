// What jobs have used: a record of each that has ended.
#include "coordinator/state_machine/usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

class UsageTest : public ::testing::Test {
 protected:
  v1::ListUsageResponse Ask(v1::ListUsageRequest request = {}) {
    v1::StateEvent event;
    *event.mutable_list_usage() = std::move(request);
    return h.answer(h.Call(std::move(event))).As<v1::ListUsageResponse>();
  }
  void End(const std::string& id, int code = 0) { h.Say(*node, node->ExitAll(id, code)); }

  Harness h;
  FakeWorker* node = &h.AddWorker("node1", 8);
};

TEST_F(UsageTest, AJobThatHasEndedIsARecord) {
  v1::JobSpec spec = MakeSpec(1, 3);
  spec.set_account("physics");
  spec.set_cpus_per_proc(2);
  const std::string id = h.SubmitAs("ada", spec);
  h.Advance(seconds(100));
  EXPECT_EQ(Ask().records_size(), 0) << "it runs";
  End(id, 3);
  const v1::ListUsageResponse usage = Ask();
  ASSERT_EQ(usage.records_size(), 1);
  const v1::UsageRecord& record = usage.records(0);
  EXPECT_EQ(record.job_id(), id);
  EXPECT_EQ(record.user(), "ada");
  EXPECT_EQ(record.account(), "physics");
  EXPECT_EQ(record.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(record.exit_code(), 3);
  EXPECT_EQ(record.ranks(), 3u);
  EXPECT_NEAR(record.cpu_seconds(), 600, 6);
  EXPECT_EQ(record.gpu_seconds(), 0);
  EXPECT_EQ(record.sequence(), 1u);
  EXPECT_EQ(usage.next(), 0u);
}

TEST_F(UsageTest, TimesMayBeAnyOfRfc3339) {
  End(h.Submit(MakeSpec(1, 1)));
  constexpr int64_t kYear = 31'556'952;
  for (const int64_t first : {-1969 * kYear, -370 * kYear, -1 * kYear}) {
    for (const int64_t last : {293 * kYear, 8029 * kYear}) {
      v1::ListUsageRequest request;
      request.mutable_since()->set_seconds(first);
      request.mutable_until()->set_seconds(last);
      EXPECT_EQ(Ask(request).records_size(), 1) << first << " " << last;
      std::swap(*request.mutable_since(), *request.mutable_until());
      EXPECT_EQ(Ask(request).records_size(), 0) << first << " " << last;
    }
  }
}

// The time in the queue is free, also between two generations.
TEST_F(UsageTest, OnlyWhatIsHeldCounts) {
  h.Submit(MakeSpec(1, 8));
  const std::string waits = h.Submit(MakeSpec(1, 8));
  h.Advance(seconds(50));
  h.Cancel(waits);
  ASSERT_EQ(Ask().records_size(), 1);
  EXPECT_EQ(Ask().records(0).cpu_seconds(), 0);
  EXPECT_FALSE(Ask().records(0).has_started_at());

  v1::JobSpec again = MakeSpec(1, 1);
  again.set_max_restarts(3);
  FakeWorker& other = h.AddWorker("node2", 2);
  const std::string id = h.Submit(again);
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.Advance(seconds(10));
  h.Say(other, other.ExitAll(id, 1));
  h.Advance(seconds(30));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).restarts(), 1u);
  const double before = h.machine()
                            .jobs()
                            .RecordWithoutView(h.machine().jobs().all().at(id))
                            .held_time()
                            .slot_seconds();
  h.Advance(seconds(10));
  h.Say(other, other.ExitAll(id, 0));
  const v1::UsageRecord record = Ask().records(1);
  EXPECT_EQ(record.state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(record.restarts(), 1u);
  EXPECT_LE(record.cpu_seconds(), 51);
  EXPECT_NEAR(record.cpu_seconds(), before + 10, 1);
}

TEST_F(UsageTest, GpusCount) {
  FakeWorker::Options options;
  options.name = "gpus";
  options.slots = 4;
  options.gpus = 2;
  FakeWorker& gpus = h.AddWorkerWith(options);
  v1::JobSpec spec = MakeSpec(1, 2);
  spec.set_gpus_per_proc(1);
  const std::string id = h.Submit(spec);
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.Advance(seconds(30));
  h.Say(gpus, gpus.ExitAll(id, 0));
  EXPECT_NEAR(Ask().records(0).gpu_seconds(), 60, 2);
  EXPECT_NEAR(Ask().records(0).cpu_seconds(), 60, 2);
}

// Ranks go on while there is no coordinator.
TEST_F(UsageTest, ARestartOfTheCoordinatorLosesNoTime) {
  const std::string id = h.Submit(MakeSpec(1, 4));
  h.Advance(seconds(100));
  const std::string other =
      h.Submit(MakeSpec(1, 1));  // its row is written, that of the first is not
  h.clock.Advance(seconds(3));
  h.StartCoordinator();
  h.Connect(*node);
  h.Advance(seconds(20));
  End(id);
  End(other);
  ASSERT_EQ(Ask().records_size(), 2);
  EXPECT_NEAR(Ask().records(0).cpu_seconds(), 4 * 123, 8);
  EXPECT_NEAR(Ask().records(1).cpu_seconds(), 23, 2);
  h.StartCoordinator();
  ASSERT_EQ(Ask().records_size(), 2) << "each once";
  EXPECT_NEAR(Ask().records(0).cpu_seconds(), 4 * 123, 8);
}

TEST_F(UsageTest, TheNewestAreKeptAndTheAnswerSaysSo) {
  h.retention.set_usage_records(3);
  h.StartCoordinator();
  h.Connect(*node);
  for (int i = 0; i < 5; ++i) {
    End(h.Submit(MakeSpec(1, 1)));
    h.Advance(seconds(1));
  }
  for (int restart = 0; restart < 2; ++restart) {
    const v1::ListUsageResponse usage = Ask();
    ASSERT_EQ(usage.records_size(), 3);
    EXPECT_EQ(usage.records(0).sequence(), 3u);
    EXPECT_TRUE(usage.has_complete_since());
    h.StartCoordinator();
  }
  size_t rows = 0;
  for (const v1::StateRow& row : h.rows()) rows += row.table() == v1::STATE_TABLE_USAGE;
  EXPECT_EQ(rows, 3u);
}

TEST_F(UsageTest, QuestionsAreNarrowed) {
  for (const char* const user : {"ada", "bob", "ada"}) {
    v1::JobSpec spec = MakeSpec(1, 1);
    spec.set_account(std::string("of-") + user);
    const std::string id = h.SubmitAs(user, spec);
    h.Advance(seconds(10));
    End(id);
  }
  v1::ListUsageRequest request;
  request.set_user("ada");
  EXPECT_EQ(Ask(request).records_size(), 2);
  request.set_account("of-bob");
  EXPECT_EQ(Ask(request).records_size(), 0);
  v1::ListUsageRequest since;
  *since.mutable_since() = Ask().records(1).finished_at();
  EXPECT_EQ(Ask(since).records_size(), 2) << "with the one that ended then";
  v1::ListUsageRequest until;
  *until.mutable_until() = Ask().records(1).finished_at();
  EXPECT_EQ(Ask(until).records_size(), 1) << "without it";
  v1::ListUsageRequest after;
  after.set_after(2);
  EXPECT_EQ(Ask(after).records_size(), 1);
}

// A search of all takes several calls, and none is left out between two of them.
TEST_F(UsageTest, PagesFollowEachOther) {
  constexpr size_t kRecords = JobTable::UsageLog::kMostLookedAt + 500;
  h.retention.set_usage_records(kRecords);
  h.record = false;
  h.StartCoordinator();
  h.Connect(*node);
  for (size_t i = 0; i < kRecords + 7; ++i)
    h.Cancel(h.SubmitAs(i % 2 == 0 ? "ada" : "bob", MakeSpec(9, 1)));
  v1::ListUsageRequest request;
  request.set_user("bob");
  uint64_t last = 0;
  size_t count = 0;
  int pages = 0;
  do {
    const v1::ListUsageResponse page = Ask(request);
    for (const v1::UsageRecord& record : page.records()) {
      EXPECT_GT(record.sequence(), last);
      last = record.sequence();
      ++count;
    }
    request.set_after(page.next());
    ++pages;
  } while (request.after() != 0);
  EXPECT_EQ(count, kRecords / 2);
  EXPECT_EQ(pages, 2);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
