#include "coordinator/api/routes.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "core/rpc/roles.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator {
namespace {

const google::protobuf::MethodDescriptor* Find(std::string_view method) {
  std::string name(method.substr(1));
  std::replace(name.begin(), name.end(), '/', '.');
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
}

TEST(RoutesTest, EachStandsForAMethodThatTheTableOfRolesKnows) {
  for (const Route& route : Routes()) {
    EXPECT_NE(rpc::FindRule(route.method), nullptr) << route.path;
    if (route.method.starts_with("http:")) continue;
    EXPECT_NE(Find(route.method), nullptr) << route.path;
  }
}

TEST(RoutesTest, EachParameterFillsAFieldOfTheRequest) {
  for (const Route& route : Routes()) {
    if (route.method.starts_with("http:")) continue;
    const auto& request = *Find(route.method)->input_type();
    const auto has = [&](std::string_view field) {
      return request.FindFieldByName(std::string(field)) != nullptr;
    };
    for (const Parameter& one : route.path_parameters) EXPECT_TRUE(has(one.field)) << route.path;
    for (const Parameter& one : route.query) {
      EXPECT_TRUE(one.field.empty() || has(one.field)) << route.path << one.name;
    }
    for (const std::string_view one : route.body) EXPECT_TRUE(has(one)) << route.path << one;
    for (const std::string_view one : route.required) {
      EXPECT_NE(std::find(route.body.begin(), route.body.end(), one), route.body.end()) << one;
      EXPECT_TRUE(request.FindFieldByName(std::string(one))->has_presence()) << one;
    }
    for (const auto& [one, value] : route.fixed) EXPECT_TRUE(has(one)) << route.path << one;
  }
}

TEST(RoutesTest, OnlyAPostChangesAnything) {
  const std::set<std::string_view> changes = {
      "/meshrun.v1.JobService/CancelJob",     "/meshrun.v1.JobService/UpdateJob",
      "/meshrun.v1.JobService/GetStacks",     "/meshrun.v1.JobService/GetFlightRecords",
      "/meshrun.v1.ClusterService/DrainNode", "/meshrun.v1.ClusterService/UndrainNode"};
  for (const Route& route : Routes()) {
    EXPECT_EQ(route.http == "POST", changes.contains(route.method)) << route.path;
    EXPECT_TRUE(route.http == "POST" || route.body.empty()) << route.path;
  }
}

TEST(RoutesTest, APartOfThePathIsAValue) {
  const Match match = FindRoute("GET", "/api/v1/jobs/geoid-k3x9w2/logs/follow");
  ASSERT_NE(match.route, nullptr);
  EXPECT_EQ(match.route->path, "/jobs/{job}/logs/follow");
  EXPECT_EQ(match.path_values.at("job"), "geoid-k3x9w2");
}

TEST(RoutesTest, HeadIsGet) {
  ASSERT_NE(FindRoute("HEAD", "/api/v1/jobs").route, nullptr);
  EXPECT_EQ(FindRoute("HEAD", "/api/v1/jobs").route->path, "/jobs");
}

TEST(RoutesTest, AnotherMethodIsToldWhatIsAllowed) {
  EXPECT_EQ(FindRoute("GET", "/api/v1/jobs/geoid/cancel").route, nullptr);
  EXPECT_EQ(FindRoute("GET", "/api/v1/jobs/geoid/cancel").allowed, "POST");
  EXPECT_EQ(FindRoute("POST", "/api/v1/jobs").allowed, "GET");
}

TEST(RoutesTest, OtherPathsAreNone) {
  for (const char* path :
       {"/api/v1", "/api/v1/", "/api/v1/job", "/api/v1/jobs/", "/api/v1/jobs//watch",
        "/api/v1/jobs/a/b/c", "/api/v2/jobs", "/jobs", "", "/api/v1jobs"}) {
    const Match match = FindRoute("GET", path);
    EXPECT_EQ(match.route, nullptr) << path;
    EXPECT_EQ(match.allowed, "") << path;
  }
}

}  // namespace
}  // namespace meshrun::coordinator
