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
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kHost[] = "127.0.0.1:40001";
constexpr char kCookie[] = "meshrun-page=cafe";
const PageKey& Key() {
  static const PageKey key(kHost, {.key = "c0ffee", .place = "5eed", .cookie = "cafe"});
  return key;
}

http::Request Asked(const std::string& path, std::multimap<std::string, std::string> headers) {
  http::Request out{.method = "GET", .path = path};
  headers.emplace("host", kHost);
  out.headers = std::move(headers);
  return out;
}

http::Request AskedWithKey(const std::string& key,
                           std::multimap<std::string, std::string> headers = {}) {
  http::Request out = Asked("/", std::move(headers));
  out.query.emplace("key", key);
  return out;
}

// Whether the call is passed on; else it must be refused.
bool Passes(const http::Request& request) {
  const auto answer = Key().Judge(request);
  EXPECT_EQ(answer.has_value() ? answer->status : 403, 403);
  return !answer.has_value();
}

TEST(PageKeyTest, TheAddressWithTheKeyGivesTheCookieOfASecretPath) {
  EXPECT_EQ(Key().Url(), "http://127.0.0.1:40001/?key=c0ffee");
  // A browser comes from a file, which is another site to it.
  const auto answer = Key().Judge(AskedWithKey("c0ffee", {{"sec-fetch-site", "cross-site"}}));
  ASSERT_TRUE(answer.has_value());
  // Not a redirection: a browser that another site sent here would follow it without the cookie.
  EXPECT_EQ(answer->status, 200);
  std::map<std::string, std::string> headers(answer->headers.begin(), answer->headers.end());
  EXPECT_EQ(headers["Set-Cookie"], "meshrun-page=cafe; Path=/s/5eed/; HttpOnly; SameSite=Strict");
  EXPECT_EQ(headers["Cache-Control"], "no-store");
  EXPECT_EQ(headers["Referrer-Policy"], "no-referrer");
  EXPECT_THAT(headers["Content-Security-Policy"],
              AllOf(HasSubstr("default-src 'none'"), HasSubstr("script-src 'sha256-"),
                    HasSubstr("frame-ancestors 'none'")));
  EXPECT_THAT(answer->body, AllOf(HasSubstr("href=\"/s/5eed/\""), Not(HasSubstr("c0ffee")),
                                  Not(HasSubstr("cafe"))));
}

TEST(PageKeyTest, OnlyTheCookieAtTheSecretPathLetsACallThrough) {
  EXPECT_TRUE(Passes(Asked("/s/5eed/api/v1/me", {{"cookie", kCookie}})));
  EXPECT_TRUE(Passes(Asked("/s/5eed/", {{"cookie", "a=b; meshrun-page=cafe; c=d"}})));
  for (const char* cookie :
       {"", "meshrun-page=", "meshrun-page=c0ffef", "meshrun-page=cafe0", "meshrun-pag=cafe",
        "xmeshrun-page=cafe", "5eed", "meshrun-page=c0ffee", ";;;"}) {
    EXPECT_FALSE(Passes(Asked("/s/5eed/api/v1/me", {{"cookie", cookie}}))) << cookie;
  }
  // The key without the path opens nothing.
  for (const char* path : {"/", "/api/v1/me", "/s/5eed", "/s/5eee/api/v1/me", "/s//api/v1/me",
                           "/s/5eed0/api/v1/me", "/x/s/5eed/api/v1/me", "//s/5eed/"}) {
    EXPECT_FALSE(Passes(Asked(path, {{"cookie", kCookie}}))) << path;
  }
}

TEST(PageKeyTest, TheCoordinatorSeesThePathBelowTheSecretOne) {
  EXPECT_EQ(Key().PathAtCoordinator("/s/5eed/"), "/");
  EXPECT_EQ(Key().PathAtCoordinator("/s/5eed/api/v1/jobs/a b"), "/api/v1/jobs/a b");
}

// A server at another port may set cookies of this host, for all paths. They come before or after
// the right one, and lock nobody out.
TEST(PageKeyTest, AForeignCookieOfTheSameNameIsPassedOver) {
  for (const char* cookies : {"meshrun-page=evil; meshrun-page=cafe",
                              "meshrun-page=cafe; meshrun-page=evil", "=; meshrun-page=cafe"}) {
    EXPECT_TRUE(Passes(Asked("/s/5eed/api/v1/me", {{"cookie", cookies}}))) << cookies;
  }
}

TEST(PageKeyTest, AWrongKeyGivesNoCookie) {
  EXPECT_FALSE(Passes(AskedWithKey("guess")));
  // Neither the path nor the cookie is the key.
  EXPECT_FALSE(Passes(AskedWithKey("5eed")));
  EXPECT_FALSE(Passes(AskedWithKey("cafe")));
}

TEST(PageKeyTest, AKeyForOneUseIsAskedAboutOnlyWhereTheCallMayUseIt) {
  int asked = 0;
  const auto judge = [&](const http::Request& request) {
    return Key()
        .Judge(request, [&](std::string_view key) { return ++asked > 0 && key == "once"; })
        ->status;
  };
  EXPECT_EQ(judge(AskedWithKey("once")), 200);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(judge(AskedWithKey("guess")), 403);
  EXPECT_EQ(asked, 2);
  // These neither open the page nor use the key up.
  EXPECT_EQ(judge(AskedWithKey("once", {{"origin", "http://127.0.0.1:40002"}})), 403);
  http::Request request = AskedWithKey("once");
  request.headers.erase("host");
  request.headers.emplace("host", "evil.example:40001");
  EXPECT_EQ(judge(request), 403);
  for (const char* method : {"POST", "HEAD"}) {
    request = AskedWithKey("once");
    request.method = method;
    EXPECT_EQ(judge(request), 403) << method;
  }
  EXPECT_EQ(asked, 2);
}

TEST(PageKeyTest, AnotherNameForThisAddressIsRefused) {
  http::Request request = Asked("/s/5eed/api/v1/me", {{"cookie", kCookie}});
  for (const char* host : {"evil.example:40001", "127.0.0.1:40002", "localhost:40001", ""}) {
    request.headers.erase("host");
    request.headers.emplace("host", host);
    EXPECT_FALSE(Passes(request)) << host;
  }
}

TEST(PageKeyTest, APageOfAnotherSiteIsRefused) {
  const auto passes = [](const char* header, const char* value) {
    return Passes(Asked("/s/5eed/api/v1/me", {{"cookie", kCookie}, {header, value}}));
  };
  EXPECT_TRUE(passes("origin", "http://127.0.0.1:40001"));
  for (const char* origin :
       {"http://evil.example", "http://127.0.0.1:40002", "null", "https://127.0.0.1:40001"}) {
    EXPECT_FALSE(passes("origin", origin)) << origin;
  }
  EXPECT_TRUE(passes("sec-fetch-site", "same-origin"));
  EXPECT_TRUE(passes("sec-fetch-site", "none"));
  // Browsers count all ports of a host as one site.
  for (const char* site : {"same-site", "cross-site"}) {
    EXPECT_FALSE(passes("sec-fetch-site", site)) << site;
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
    door_ = Enter(*proxy_);
  }
  // What a browser knows once it has opened the address.
  struct Door {
    std::string host;
    std::string path;
    std::string cookie;
  };
  static Door Enter(const PageProxy& proxy) {
    const std::string url = proxy.url();
    const size_t key = url.find("/?key=");
    Door out{.host = url.substr(7, key - 7), .path = "", .cookie = ""};
    httplib::Client client(("http://" + out.host).c_str());
    const auto welcome = client.Get(url.substr(key).c_str());
    EXPECT_TRUE(welcome) << httplib::to_string(welcome.error());
    const std::string cookie = welcome->get_header_value("Set-Cookie");
    out.cookie = cookie.substr(0, cookie.find(';'));
    const size_t path = cookie.find("Path=") + 5;
    out.path = cookie.substr(path, cookie.find(';', path) - path - 1);
    return out;
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
  static httplib::Client BrowserAt(const Door& door) {
    httplib::Client client(("http://" + door.host).c_str());
    client.set_default_headers({{"Cookie", door.cookie}});
    return client;
  }
  httplib::Client Browser() { return BrowserAt(door_); }
  httplib::Client Stranger() { return httplib::Client(("http://" + door_.host).c_str()); }
  std::string At(const std::string& path) { return door_.path + path; }

  TemporaryDirectory directory_;
  // Before each answer.
  std::function<void()> answer_;
  std::atomic<int> closed_{0};
  std::unique_ptr<http::Server> upstream_;
  std::unique_ptr<PageProxy> proxy_;
  Door door_;
};

TEST_F(ProxyTest, PassesCallsOnAsTheyAre) {
  auto browser = Browser();
  const auto get = browser.Get(At("/api/v1/jobs/a%20b?user=x%26y&state=RUNNING"));
  ASSERT_TRUE(get) << httplib::to_string(get.error());
  EXPECT_EQ(get->body, "GET /api/v1/jobs/a b state=RUNNING user=x&y  ");
  EXPECT_EQ(get->get_header_value("ETag"), "\"7\"");
  EXPECT_EQ(get->get_header_value("Content-Type"), "application/json");
  const auto post = browser.Post(At("/teapot"), R"({"now": true})", "application/json");
  ASSERT_TRUE(post);
  EXPECT_EQ(post->status, 418);
  EXPECT_EQ(post->body, R"(POST /teapot application/json {"now": true})");
}

TEST_F(ProxyTest, AnotherMethodIsNotPassedOn) {
  answer_ = [] { ADD_FAILURE(); };
  const auto put = Browser().Put(At("/api/v1/jobs"), "{}", "application/json");
  ASSERT_TRUE(put) << httplib::to_string(put.error());
  EXPECT_EQ(put->status, 405);
  EXPECT_EQ(put->get_header_value("Allow"), "GET, HEAD, POST");
  EXPECT_THAT(put->body, HasSubstr(R"("code":"UNIMPLEMENTED")"));
  EXPECT_EQ(Stranger().Put("/api/v1/jobs", "{}", "application/json")->status, 403);
}

TEST_F(ProxyTest, WithoutTheKeyNothingIsPassedOn) {
  auto stranger = Stranger();
  const auto answer = stranger.Get("/api/v1/jobs");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 403);
  EXPECT_THAT(answer->body, HasSubstr("meshrun page"));
}

TEST_F(ProxyTest, APackedBodyIsNotUnpacked) {
  auto stranger = Stranger();
  const auto answer = stranger.Post("/api/v1/jobs/a/cancel", {{"Content-Encoding", "gzip"}},
                                    "\x1f\x8b", "application/json");
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->status, 415);
}

TEST_F(ProxyTest, AnswersTellNoOtherServerWhereThePageIs) {
  const auto answer = Browser().Get(At("/api/v1/me"));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->get_header_value("Referrer-Policy"), "no-referrer");
}

TEST_F(ProxyTest, KeysAndPathsAreOfOneProxyAlone) {
  const auto other = PageProxy::Start(0, Target(), [this] { return Target(); });
  ASSERT_TRUE(other.ok()) << other.status();
  const Door there = Enter(**other);
  EXPECT_EQ(there.path.size(), std::string("/s/").size() + 32);
  EXPECT_NE(there.path, door_.path);
  EXPECT_NE(there.cookie, door_.cookie);
  EXPECT_EQ(BrowserAt(there).Get(At("/api/v1/me"))->status, 403);
  EXPECT_EQ(Browser().Get(At("/api/v1/me"))->status, 200);
}

TEST_F(ProxyTest, TheAddressForOneUseIsGoodForOneUse) {
  int used = 0;
  proxy_->OnUse([&] { ++used; });
  const std::string path = proxy_->url_for_once().substr(7 + door_.host.size());
  EXPECT_EQ(proxy_->url().find(path), std::string::npos);
  auto browser = Stranger();
  const auto first = browser.Get(path.c_str());
  ASSERT_TRUE(first);
  EXPECT_EQ(first->status, 200);
  EXPECT_THAT(first->get_header_value("Set-Cookie"), StartsWith(door_.cookie + "; "));
  EXPECT_EQ(used, 1);
  const auto second = browser.Get(path.c_str());
  ASSERT_TRUE(second);
  EXPECT_EQ(second->status, 403);
  EXPECT_EQ(second->get_header_value("Set-Cookie"), "");
  EXPECT_EQ(browser.Get("/")->status, 403);
  EXPECT_EQ(used, 1);
}

TEST_F(ProxyTest, AStreamIsPassedOnAndEndsWithItsReader) {
  auto browser = Browser();
  size_t bytes = 0;
  browser.Get(At("/stream"), [&](const char*, size_t size) {
    bytes += size;
    return bytes < 10'000;
  });
  EXPECT_GE(bytes, 10'000u);
  EXPECT_TRUE(meshrun::testing::Eventually([&] { return closed_ == 1; }));
}

TEST_F(ProxyTest, ACoordinatorThatIsAwayIsAnError) {
  upstream_.reset();
  const auto answer = Browser().Get(At("/api/v1/jobs"));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 503);
  EXPECT_THAT(answer->body, HasSubstr("does not answer"));
}

// A person who opens the page is told, and needs to do nothing.
TEST_F(ProxyTest, APageThatIsOpenedWhileNobodyAnswersSaysWhyAndAsksAgain) {
  const httplib::Headers opens = {{"Accept", "text/html,application/xhtml+xml,*/*;q=0.8"}};
  upstream_.reset();
  auto away = Browser().Get(At("/"), opens);
  ASSERT_TRUE(away);
  EXPECT_EQ(away->status, 503);
  EXPECT_THAT(away->get_header_value("Content-Type"), StartsWith("text/html"));
  EXPECT_THAT(away->body, AllOf(HasSubstr("No coordinator answers"), HasSubstr("location.reload"),
                                HasSubstr("http-equiv=\"refresh\""),
                                HasSubstr("http.sock does not answer: no connection")));
  EXPECT_THAT(away->body, AllOf(Not(HasSubstr(door_.path)), Not(HasSubstr("Connection\""))));
  EXPECT_THAT(away->get_header_value("Content-Security-Policy"), HasSubstr("script-src 'sha256-"));
  // Programs get JSON on, and so does what the page itself asks.
  for (const char* path : {"/", "/api/v1/jobs"}) {
    const auto call = Browser().Get(At(path), httplib::Headers{{"Accept", "application/json"}});
    ASSERT_TRUE(call);
    EXPECT_EQ(call->get_header_value("Content-Type"), "application/json") << path;
  }
  EXPECT_EQ(Browser().Get(At("/api/v1/jobs"), opens)->get_header_value("Content-Type"),
            "application/json");

  const auto standby = http::Server::Start(
      {.listen = "unix:" + (directory_ / "http.sock"), .handler = [](const http::Request&) {
         return http::ErrorResponse(
             absl::UnavailableError("b is a standby, and <nobody> leads now"));
       }});
  ASSERT_TRUE(standby.ok()) << standby.status();
  away = Browser().Get(At("/"), opens);
  ASSERT_TRUE(away);
  EXPECT_THAT(away->body, HasSubstr("b is a standby, and &lt;nobody&gt; leads now"));
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
  const Door door = Enter(**proxy);
  const auto answer = BrowserAt(door).Get(door.path + "/api/v1/me");
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
  std::thread reader([&] { Browser().Get(At("/api/v1/jobs")); });
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
    browser.Get(At("/stream"), [&](const char*, size_t) {
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
