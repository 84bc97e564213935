// What `meshrun top` asks of a coordinator's HTTP port, and how it ends.
#include "client/cli/top_feed.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "core/clock.h"
#include "core/http/server.h"
#include "core/json/json.h"
#include "tests/worker/support/processes.h"

namespace meshrun::client {
namespace {

using meshrun::testing::Eventually;
using nlohmann::json;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::ElementsAre;

// A coordinator that answers nothing about stacks, and everything else at once.
class TopFeedTest : public ::testing::Test {
 protected:
  TopFeedTest() {
    const std::string address = "unix:" + (directory_ / "http.sock");
    auto server =
        http::Server::Start({.listen = address, .handler = [this](const http::Request& request) {
                               return Answer(request);
                             }});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    feed_ = std::make_unique<TopFeed>(
        HttpTarget{.address = address, .security = {}},
        [] { return absl::UnavailableError("it has not moved"); }, [] {});
    feed_->Start();
  }
  http::Answer Answer(const http::Request& request) {
    if (request.path == "/api/v1/nodes") ++nodes_;
    if (request.path == "/api/v1/jobs") ++jobs_;
    if (request.path.ends_with("/stacks")) {
      asked_ = true;
      Eventually([this] { return ends_.load(); });
    }
    json answer = json::object();
    if (request.path.ends_with("/big/logs")) {
      answer = {{"pieces", json::array({{{"rank", 0}, {"text", "step 7\n"}}})}, {"more", true}};
    }
    if (request.path == "/api/v1/cluster") answer["now"] = JsonTime(Now());
    if (request.path == "/api/v1/jobs/geoid" && has_job_) answer = JobPage(request);
    return http::Response{.content_type = "application/json", .body = answer.dump()};
  }
  WallNanos Now() const { return Clock::Real().WallNow() - behind_.load(); }

  // A job of 3000 ranks, 1000 in a page. The ranks of generation 1 change after its first page.
  json JobPage(const http::Request& request) {
    const auto found = request.query.find("firstRank");
    const int first = found == request.query.end() ? 0 : std::stoi(found->second);
    if (first == 0) ++wholes_;
    const auto most = request.query.find("maxRanks");
    EXPECT_EQ(most == request.query.end() ? "" : most->second, std::to_string(kRanksOfPage));
    const int generation = wholes_ == 1 && first == 0 ? 1 : 2;
    json ranks = json::array();
    for (int rank = first; rank < first + 1000; ++rank) {
      ranks.push_back({{"assignment", {{"rank", rank}}},
                       {"state", "RANK_STATE_RUNNING"},
                       {"nodeName", fmt::format("node-{}", generation)},
                       {"progress", {{"step", rank == 2500 ? 4500 : 5000}}}});
    }
    json answer = {{"job",
                    {{"jobId", "geoid"},
                     {"state", "JOB_STATE_RUNNING"},
                     {"generation", generation},
                     {"worldSize", 3000},
                     {"progress", {{"step", 5000}, {"totalSteps", 5100}}},
                     {"ranks", ranks}}},
                   {"nextRank", first < 2000 ? first + 1000 : 0}};
    if (first > 0) return answer;
    for (int second = 10; second > 0; --second) {
      answer["curve"].push_back(
          {{"at", JsonTime(Now() - seconds(second))}, {"step", 5000 - 10 * second}});
    }
    return answer;
  }
  // The job as the feed has it.
  TopJob Followed() const {
    for (const TopJob& job : feed_->model().jobs) {
      if (job.id == "geoid") return job;
    }
    return {};
  }

  testing::TemporaryDirectory directory_;
  std::atomic<int> nodes_{0};
  std::atomic<int> jobs_{0};
  std::atomic<bool> has_job_{false};
  // First pages of the job.
  std::atomic<int> wholes_{0};
  // The coordinator's clock.
  std::atomic<std::chrono::nanoseconds> behind_{std::chrono::nanoseconds(0)};
  std::atomic<bool> asked_{false};
  std::atomic<bool> ends_{false};
  std::atomic<bool> cancelled_{false};
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<TopFeed> feed_;
};

TEST_F(TopFeedTest, StacksThatDoNotComeHoldBackNothing) {
  feed_->AskStacks("geoid", [](const auto&) {});
  ASSERT_TRUE(Eventually([&] { return asked_.load(); }));
  feed_->Cancel("geoid", [this](const std::vector<std::string>& lines) {
    EXPECT_THAT(lines, ElementsAre("geoid is being cancelled"));
    cancelled_ = true;
  });
  EXPECT_TRUE(Eventually([&] { return cancelled_.load(); }));
  const int before = jobs_;
  EXPECT_TRUE(Eventually([&] { return jobs_ > before; }));
  const auto began = steady_clock::now();
  EXPECT_TRUE(feed_->Stop(seconds(30)));
  EXPECT_LT(steady_clock::now() - began, seconds(10));
  ends_ = true;
}

TEST_F(TopFeedTest, ALogComesWhileStacksAreAwaited) {
  feed_->AskStacks("geoid", [](const auto&) {});
  ASSERT_TRUE(Eventually([&] { return asked_.load(); }));
  std::atomic<bool> has_log{false};
  feed_->AskLogs("geoid", [&](const std::vector<std::string>& lines) {
    EXPECT_THAT(lines, ElementsAre("its ranks have written nothing yet"));
    has_log = true;
  });
  EXPECT_TRUE(Eventually([&] { return has_log.load(); }));
  EXPECT_FALSE(ends_);
  EXPECT_TRUE(feed_->Stop(seconds(30)));
  ends_ = true;
}

TEST_F(TopFeedTest, ALogThatIsCutSaysSo) {
  std::atomic<bool> has_log{false};
  feed_->AskLogs("big", [&](const std::vector<std::string>& lines) {
    EXPECT_THAT(
        lines, ElementsAre("[0] step 7", "further output has no room here: meshrun logs shows it"));
    has_log = true;
  });
  EXPECT_TRUE(Eventually([&] { return has_log.load(); }));
}

TEST_F(TopFeedTest, AllRanksOfTheJobThatIsShownAreThere) {
  has_job_ = true;
  feed_->Follow("geoid");
  ASSERT_TRUE(Eventually([&] { return Followed().ranks.size() >= 3000; }));
  const TopJob job = Followed();
  ASSERT_EQ(job.ranks.size(), 3000u);
  for (size_t i = 0; i < job.ranks.size(); ++i) {
    ASSERT_EQ(job.ranks[i].rank, static_cast<int64_t>(i));
    ASSERT_EQ(job.ranks[i].node, "node-2") << "a rank of the generation before";
  }
  // So many are asked for each third second alone.
  const int before = jobs_;
  const int wholes = wholes_;
  ASSERT_TRUE(Eventually([&] { return jobs_ >= before + 4; }));
  EXPECT_LT(wholes_ - wholes, jobs_ - before);
  EXPECT_EQ(Followed().ranks.size(), 3000u) << "the list of jobs is without it";
}

// The times of the curve are the coordinator's.
TEST_F(TopFeedTest, ACoordinatorsClockThatIsBehindLeavesTheTimeLeft) {
  has_job_ = true;
  behind_ = std::chrono::hours(3);
  feed_->Follow("geoid");
  ASSERT_TRUE(Eventually([&] { return !Followed().ranks.empty(); }));
  const TopModel model = feed_->model();
  const auto rate = model.meters.at("geoid").Rate(model.now);
  ASSERT_TRUE(rate.has_value());
  EXPECT_NEAR(*rate, 10, 0.1);
}

TEST_F(TopFeedTest, NodesAreAskedForLessOftenThanJobs) {
  EXPECT_TRUE(Eventually([&] { return jobs_ >= 4; }));
  EXPECT_GE(nodes_, 1);
  EXPECT_LT(nodes_, jobs_);
}

}  // namespace
}  // namespace meshrun::client
