// What `meshrun top` asks of a coordinator's HTTP port, and how it ends.
#include "client/cli/top_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "core/http/server.h"
#include "tests/worker/support/processes.h"

namespace meshrun::client {
namespace {

using meshrun::testing::Eventually;
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
    return http::Response{.content_type = "application/json", .body = "{}"};
  }

  testing::TemporaryDirectory directory_;
  std::atomic<int> nodes_{0};
  std::atomic<int> jobs_{0};
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

TEST_F(TopFeedTest, NodesAreAskedForLessOftenThanJobs) {
  EXPECT_TRUE(Eventually([&] { return jobs_ >= 4; }));
  EXPECT_GE(nodes_, 1);
  EXPECT_LT(nodes_, jobs_);
}

}  // namespace
}  // namespace meshrun::client
