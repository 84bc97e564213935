#include "core/http/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun::http {
namespace {

class RoutesTest : public ::testing::Test {
 protected:
  RoutesTest() {
    const auto says = [](std::string text) {
      return [text](const Request&) -> Answer { return Response{.body = text}; };
    };
    routes_.Add("/metrics", "http:/metrics", says("metrics"));
    routes_.Add("/", "", says("page"));
    routes_.Add("/api/", "", says("api"), /*takes_post=*/true);
  }
  Response Ask(const Request& request) { return std::get<Response>(routes_.Handle(request)); }
  Response Get(const std::string& path) {
    return Ask({.method = "GET", .path = path, .trusted = true});
  }

  Routes routes_;
};

TEST_F(RoutesTest, TheLongestBeginningDecides) {
  EXPECT_EQ(Get("/metrics").body, "metrics");
  EXPECT_EQ(Get("/").body, "page");
  EXPECT_EQ(Get("/app.js").body, "page");
  EXPECT_EQ(Get("/metrics/x").body, "page");
  EXPECT_EQ(Get("/api/v1/jobs").body, "api");
  EXPECT_EQ(Get("/api").body, "page");
}

TEST_F(RoutesTest, WhatIsNotThereIs404) {
  EXPECT_EQ(std::get<Response>(Routes().Handle({.method = "GET", .path = "/x"})).status, 404);
}

TEST_F(RoutesTest, OtherMethodsAreForThoseThatTakeThem) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    const Response refused = Ask({.method = method, .path = "/metrics", .trusted = true});
    EXPECT_EQ(refused.status, 405) << method;
    EXPECT_EQ(refused.headers, (Headers{{"Allow", "GET, HEAD"}})) << method;
    EXPECT_THAT(refused.body, ::testing::HasSubstr(R"("code":"UNIMPLEMENTED")")) << method;
    EXPECT_THAT(refused.body, ::testing::HasSubstr(method));
    EXPECT_EQ(Ask({.method = method, .path = "/api/v1/x", .trusted = true}).status, 200) << method;
    EXPECT_EQ(std::get<Response>(Routes().Handle({.method = method, .path = "/x"})).status, 404);
  }
}

TEST_F(RoutesTest, ACallerWithACertificateNeedsTheRoleOfTheRow) {
  Request request{.method = "GET", .path = "/metrics"};
  request.caller = rpc::MakeIdentity("n1", {"urn:meshrun:role:worker", "urn:meshrun:node:n1"});
  EXPECT_EQ(Ask(request).status, 403);
  request.caller = rpc::MakeIdentity("prometheus", {"urn:meshrun:role:read"});
  EXPECT_EQ(Ask(request).body, "metrics");
}

}  // namespace
}  // namespace meshrun::http
