// `meshrun page`: who may use the server on 127.0.0.1, and what is passed on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <functional>
#include <string>

#include "client/http/forwarded_call.h"
#include "client/http/http_address.h"
#include "client/http/http_client.h"
#include "client/http/page_proxy.h"
#include "core/http/server.h"
#include "tests/worker/support/processes.h"

namespace meshrun::client {
namespace {

using meshrun::testing::TemporaryDirectory;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kHost[] = "127.0.0.1:40001";
const PageKey& Key() {
  static const PageKey key(kHost, "c0ffee");
  return key;
}

http::Request Asked(const std::string& path, std::multimap<std::string, std::string> headers) {
  http::Request out{.method = "GET", .path = path};
  headers.emplace("host", kHost);
  out.headers = std::move(headers);
  return out;
}

TEST(PageKeyTest, TheAddressWithTheKeyGivesTheCookie) {
  EXPECT_EQ(Key().Url(), "http://127.0.0.1:40001/?key=c0ffee");
  http::Request request = Asked("/", {});
  request.query.emplace("key", "c0ffee");
  const auto answer = Key().Judge(request);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 303);
  std::map<std::string, std::string> headers(answer->headers.begin(), answer->headers.end());
  EXPECT_EQ(headers["Location"], "/");
  EXPECT_EQ(headers["Set-Cookie"], "meshrun-40001=c0ffee; Path=/; HttpOnly; SameSite=Strict");
}

TEST(PageKeyTest, OnlyTheCookieLetsACallThrough) {
  EXPECT_FALSE(Key().Judge(Asked("/api/v1/me", {{"cookie", "meshrun-40001=c0ffee"}})).has_value());
  EXPECT_FALSE(Key().Judge(Asked("/", {{"cookie", "a=b; meshrun-40001=c0ffee; c=d"}})).has_value());
  for (const char* cookie : {"", "meshrun-40001=", "meshrun-40001=c0ffef", "meshrun-40001=c0ffee0",
                             "meshrun-40002=c0ffee", "xmeshrun-40001=c0ffee", ";;;"}) {
    const auto answer = Key().Judge(Asked("/api/v1/me", {{"cookie", cookie}}));
    ASSERT_TRUE(answer.has_value()) << cookie;
    EXPECT_EQ(answer->status, 403) << cookie;
  }
}

TEST(PageKeyTest, AWrongKeyGivesNoCookie) {
  http::Request request = Asked("/", {});
  request.query.emplace("key", "guess");
  EXPECT_EQ(Key().Judge(request)->status, 403);
}

TEST(PageKeyTest, AnotherNameForThisAddressIsRefused) {
  http::Request request = Asked("/api/v1/me", {{"cookie", "meshrun-40001=c0ffee"}});
  for (const char* host : {"evil.example:40001", "127.0.0.1:40002", "localhost:40001", ""}) {
    request.headers.erase("host");
    request.headers.emplace("host", host);
    EXPECT_EQ(Key().Judge(request)->status, 403) << host;
  }
}

TEST(PageKeyTest, APageOfAnotherSiteIsRefused) {
  const auto ask = [](const char* origin) {
    return Key().Judge(
        Asked("/api/v1/me", {{"cookie", "meshrun-40001=c0ffee"}, {"origin", origin}}));
  };
  EXPECT_FALSE(ask("http://127.0.0.1:40001").has_value());
  for (const char* origin : {"http://evil.example", "null", "https://127.0.0.1:40001"}) {
    EXPECT_EQ(ask(origin)->status, 403) << origin;
  }
}

TEST(HttpAddressTest, APortOnAllAddressesIsAtTheCoordinatorsHost) {
  EXPECT_EQ(*HttpAddressFrom("0.0.0.0:7481", "head.example:7480"), "head.example:7481");
  EXPECT_EQ(*HttpAddressFrom("[::]:7481", "[fd00::1]:7480"), "[fd00::1]:7481");
  EXPECT_EQ(*HttpAddressFrom("10.0.0.7:7481", "head.example:7480"), "10.0.0.7:7481");
  EXPECT_EQ(*HttpAddressFrom("unix:/run/h.sock", "unix:/run/c.sock"), "unix:/run/h.sock");
}

TEST(HttpAddressTest, TheLeaderIsTheOneThatHasAnswered) {
  v1::DescribeClusterResponse cluster;
  EXPECT_EQ(AddressOfLeader(cluster, "a:7480"), "a:7480");
  EXPECT_EQ(AddressOfLeader(cluster, "a:7480,b:7480"), "a:7480");
  cluster.add_coordinators()->set_address("a:7480");
  v1::Coordinator& leader = *cluster.add_coordinators();
  leader.set_address("b:7480");
  leader.set_leads(true);
  EXPECT_EQ(AddressOfLeader(cluster, "a:7480,b:7480"), "b:7480");
}

TEST(HttpAddressTest, SaysWhatToDoWhereThereIsNone) {
  EXPECT_THAT(std::string(HttpAddressFrom("", "head:7480").status().message()),
              HasSubstr("start it with --http"));
  EXPECT_THAT(std::string(HttpAddressFrom("unix:/run/h.sock", "head:7480").status().message()),
              StartsWith("the HTTP port of the coordinator at head:7480 is unix:/run/h.sock on its "
                         "own host"));
}

TEST(EncodeUrlTest, LeavesWhatAPathMayHave) {
  EXPECT_EQ(EncodeUrl("geoid-k3x9w2.0_~"), "geoid-k3x9w2.0_~");
  EXPECT_EQ(EncodeUrl("a b/c?&=%\xc3\xa9"), "a%20b%2Fc%3F%26%3D%25%C3%A9");
}

TEST(BodyOfTest, AnErrorKeepsItsCodeAndText) {
  const auto error =
      BodyOf({.head = {.status = 404}, .body = R"({"code": "NOT_FOUND", "message": "no"})"});
  EXPECT_TRUE(absl::IsNotFound(error.status()));
  EXPECT_EQ(error.status().message(), "no");
  EXPECT_TRUE(absl::IsInternal(BodyOf({.head = {.status = 502}, .body = "<html>"}).status()));
}

// A coordinator's HTTP port that answers with what it was asked.
class ProxyTest : public ::testing::Test {
 protected:
  ProxyTest() {
    auto upstream = http::Server::Start(
        {.listen = "unix:" + (directory_ / "http.sock"),
         .handler = [this](const http::Request& request) { return Answer(request); }});
    EXPECT_TRUE(upstream.ok()) << upstream.status();
    upstream_ = *std::move(upstream);
    auto proxy = PageProxy::Start(0, Target(), [this] { return Target(); });
    EXPECT_TRUE(proxy.ok()) << proxy.status();
    proxy_ = *std::move(proxy);
    const std::string url = proxy_->url();
    const size_t key = url.find("/?key=");
    host_ = url.substr(7, key - 7);
    cookie_ = "meshrun-" + host_.substr(host_.rfind(':') + 1) + "=" + url.substr(key + 6);
  }
  HttpTarget Target() { return {.address = "unix:" + (directory_ / "http.sock"), .security = {}}; }
  http::Answer Answer(const http::Request& request) {
    if (answer_ != nullptr) answer_();
    if (request.path == "/stream") {
      return http::Streaming{.content_type = "text/event-stream",
                             .next = [](std::chrono::milliseconds) { return "data: 1\n\n"; },
                             .closed = [this] { ++closed_; },
                             .headers = {{"Cache-Control", "no-store"}}};
    }
    std::string text = request.method + " " + request.path;
    for (const auto& [name, value] : request.query) text += " " + name + "=" + value;
    text += " " + std::string(request.header("content-type")) + " " + request.body;
    EXPECT_EQ(request.header("cookie"), "");
    return http::Response{.status = request.path == "/teapot" ? 418 : 200,
                          .content_type = "application/json",
                          .body = text,
                          .headers = {{"ETag", "\"7\""}}};
  }
  httplib::Client Browser() {
    httplib::Client client(("http://" + host_).c_str());
    client.set_default_headers({{"Cookie", cookie_}});
    return client;
  }

  TemporaryDirectory directory_;
  // Before each answer.
  std::function<void()> answer_;
  std::atomic<int> closed_{0};
  std::unique_ptr<http::Server> upstream_;
  std::unique_ptr<PageProxy> proxy_;
  std::string host_;
  std::string cookie_;
};

TEST_F(ProxyTest, PassesCallsOnAsTheyAre) {
  auto browser = Browser();
  const auto get = browser.Get("/api/v1/jobs/a%20b?user=x%26y&state=RUNNING");
  ASSERT_TRUE(get) << httplib::to_string(get.error());
  EXPECT_EQ(get->body, "GET /api/v1/jobs/a b state=RUNNING user=x&y  ");
  EXPECT_EQ(get->get_header_value("ETag"), "\"7\"");
  EXPECT_EQ(get->get_header_value("Content-Type"), "application/json");
  const auto post = browser.Post("/teapot", R"({"now": true})", "application/json");
  ASSERT_TRUE(post);
  EXPECT_EQ(post->status, 418);
  EXPECT_EQ(post->body, R"(POST /teapot application/json {"now": true})");
}

TEST_F(ProxyTest, WithoutTheKeyNothingIsPassedOn) {
  httplib::Client stranger(("http://" + host_).c_str());
  const auto answer = stranger.Get("/api/v1/jobs");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 403);
  EXPECT_THAT(answer->body, HasSubstr("meshrun page"));
}

TEST_F(ProxyTest, APackedBodyIsNotUnpacked) {
  httplib::Client stranger(("http://" + host_).c_str());
  const auto answer = stranger.Post("/api/v1/jobs/a/cancel", {{"Content-Encoding", "gzip"}},
                                    "\x1f\x8b", "application/json");
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->status, 415);
}

TEST_F(ProxyTest, TheAddressOnACommandLineIsGoodForOneUse) {
  const std::string path = proxy_->url_for_once().substr(7 + host_.size());
  httplib::Client browser(("http://" + host_).c_str());
  const auto first = browser.Get(path.c_str());
  ASSERT_TRUE(first);
  EXPECT_EQ(first->status, 303);
  EXPECT_THAT(first->get_header_value("Set-Cookie"), StartsWith(cookie_ + ";"));
  const auto second = browser.Get(path.c_str());
  ASSERT_TRUE(second);
  EXPECT_EQ(second->status, 403);
  EXPECT_EQ(browser.Get("/")->status, 403);
}

TEST_F(ProxyTest, AStreamIsPassedOnAndEndsWithItsReader) {
  auto browser = Browser();
  size_t bytes = 0;
  browser.Get("/stream", [&](const char*, size_t size) {
    bytes += size;
    return bytes < 10'000;
  });
  EXPECT_GE(bytes, 10'000u);
  EXPECT_TRUE(meshrun::testing::Eventually([&] { return closed_ == 1; }));
}

TEST_F(ProxyTest, ACoordinatorThatIsAwayIsAnError) {
  upstream_.reset();
  const auto answer = Browser().Get("/api/v1/jobs");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 503);
  EXPECT_THAT(answer->body, HasSubstr("does not answer"));
}

TEST_F(ProxyTest, GoesToTheCoordinatorThatLeadsNow) {
  auto standby = http::Server::Start(
      {.listen = "unix:" + (directory_ / "standby.sock"), .handler = [](const http::Request&) {
         return http::ErrorResponse(absl::UnavailableError("another coordinator leads"));
       }});
  ASSERT_TRUE(standby.ok()) << standby.status();
  const HttpTarget before{.address = (*standby)->address(), .security = {}};
  const auto proxy = PageProxy::Start(0, before, [this] { return Target(); });
  ASSERT_TRUE(proxy.ok()) << proxy.status();
  const std::string url = (*proxy)->url();
  const size_t key = url.find("/?key=");
  httplib::Client browser(url.substr(0, key).c_str());
  browser.set_default_headers(
      {{"Cookie", "meshrun-" + url.substr(17, key - 17) + "=" + url.substr(key + 6)}});
  const auto answer = browser.Get("/api/v1/me");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200) << answer->body;
}

TEST_F(ProxyTest, StopEndsCallsThatTheCoordinatorDoesNotAnswer) {
  std::atomic<bool> asked{false};
  std::atomic<bool> goes_on{false};
  answer_ = [&] {
    asked = true;
    meshrun::testing::Eventually([&] { return goes_on.load(); });
  };
  std::thread reader([&] { Browser().Get("/api/v1/jobs"); });
  EXPECT_TRUE(meshrun::testing::Eventually([&] { return asked.load(); }));
  const auto before = std::chrono::steady_clock::now();
  proxy_->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - before, meshrun::testing::kPatience / 2);
  goes_on = true;
  reader.join();
}

TEST_F(ProxyTest, StopEndsStreams) {
  auto browser = Browser();
  std::atomic<bool> begun{false};
  std::thread reader([&] {
    browser.Get("/stream", [&](const char*, size_t) {
      begun = true;
      return true;
    });
  });
  EXPECT_TRUE(meshrun::testing::Eventually([&] { return begun.load(); }));
  proxy_->Stop();
  reader.join();
}

}  // namespace
}  // namespace meshrun::client
