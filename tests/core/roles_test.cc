#include "core/rpc/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>

namespace meshrun::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// "/meshrun.v1.JobService/SubmitJob" and so on, of every file of contracts.
std::set<std::string> MethodsOfTheContracts() {
  std::set<std::string> methods;
  const std::regex service(R"(^service (\w+) \{)"), method(R"(^  rpc (\w+)\()");
  for (const auto& entry : std::filesystem::directory_iterator("proto/meshrun/v1")) {
    std::ifstream file(entry.path());
    std::string name;
    std::smatch match;
    for (std::string line; std::getline(file, line);) {
      if (std::regex_search(line, match, service)) name = match[1];
      if (std::regex_search(line, match, method)) {
        methods.insert("/meshrun.v1." + name + "/" + std::string(match[1]));
      }
    }
  }
  return methods;
}

TEST(RolesTest, EveryMethodOfTheContractsHasARow) {
  const std::set<std::string> methods = MethodsOfTheContracts();
  EXPECT_GE(methods.size(), 31u);
  for (const std::string& method : methods) {
    EXPECT_NE(FindRule(method), nullptr) << method << ": write its row in core/rpc/roles.cc";
  }
}

TEST(RolesTest, EveryRowIsAMethod) {
  const std::set<std::string> methods = MethodsOfTheContracts();
  for (const MethodRule& rule : MethodRules()) {
    if (rule.method.starts_with("/meshrun.")) {
      EXPECT_TRUE(methods.contains(std::string(rule.method))) << rule.method;
    }
    EXPECT_NE(rule.roles, 0u) << rule.method;
  }
}

TEST(RolesTest, WhatTheTableDoesNotKnowIsRefusedToAll) {
  const Identity operates = MakeIdentity("root", {"urn:meshrun:role:operate"});
  for (const char* method : {"/meshrun.v1.JobService/Unknown", "", "/", "/meshrun.v1.JobService/",
                             "/grpc.health.v2.Health/Check"}) {
    EXPECT_EQ(CheckCall(operates, method).code(), absl::StatusCode::kPermissionDenied) << method;
  }
  EXPECT_TRUE(CheckCall(operates, "/grpc.health.v1.Health/Check").ok());
}

TEST(RolesTest, EachRoleMayWhatItIsFor) {
  const struct {
    const char* role;
    const char* method;
    bool may;
  } kTable[] = {
      {"read", "/meshrun.v1.JobService/ListJobs", true},
      {"read", "/meshrun.v1.JobService/SubmitJob", false},
      {"read", "/meshrun.v1.SessionService/OpenSession", false},
      {"submit", "/meshrun.v1.JobService/SubmitJob", true},
      {"submit", "/meshrun.v1.JobService/GetJob", true},
      {"submit", "/meshrun.v1.StoreService/SetValues", false},
      {"submit", "/meshrun.v1.JobService/UpdateJob", true},
      {"submit", "/meshrun.v1.ClusterService/DrainNode", false},
      {"read", "/meshrun.v1.ClusterService/ListEvents", true},
      {"read", "/meshrun.v1.JobService/UpdateJob", false},
      {"operate", "/meshrun.v1.ClusterService/DrainNode", true},
      {"operate", "/meshrun.v1.JobService/CancelJob", true},
      {"operate", "/meshrun.v1.StoreService/GetValues", false},
      {"worker", "/meshrun.v1.StoreService/GetValues", true},
      {"worker", "/meshrun.v1.JobService/GetJob", false},
      {"coordinator", "/meshrun.v1.JobService/GetJob", false},
      {"coordinator", "/meshrun.v1.SessionService/OpenSession", false},
  };
  for (const auto& row : kTable) {
    const Identity caller = MakeIdentity("x", {std::string(kRoleUri) + row.role});
    EXPECT_EQ(CheckCall(caller, row.method).ok(), row.may) << row.role << " " << row.method;
  }
}

TEST(RolesTest, ARefusalNamesTheCallerAndWhatItTakes) {
  const absl::Status status =
      CheckCall(MakeIdentity("ada", {"urn:meshrun:role:read"}), "/meshrun.v1.JobService/SubmitJob");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'ada'"), HasSubstr("submit, operate"), HasSubstr("has read"),
                    HasSubstr("meshrun ca issue")));
}

TEST(RolesTest, AWorkerSpeaksForItsOwnNodes) {
  const Identity worker = MakeIdentity("w", {"urn:meshrun:role:worker", "urn:meshrun:node:gpu1"});
  EXPECT_TRUE(worker.SpeaksFor("gpu1"));
  EXPECT_FALSE(worker.SpeaksFor("gpu2"));
  EXPECT_FALSE(worker.SpeaksFor("*"));
  EXPECT_TRUE(MakeIdentity("w", {"urn:meshrun:node:*"}).SpeaksFor("gpu2"));
}

TEST(RolesTest, CertificatesFromBeforeThereWereRolesGoOnWorking) {
  EXPECT_EQ(MakeIdentity("meshrun-client", {}).roles, kOperateRole);
  EXPECT_EQ(MakeIdentity("meshrun-worker", {}).roles, kWorkerRole);
  EXPECT_TRUE(MakeIdentity("meshrun-worker", {}).SpeaksFor("any"));
  EXPECT_EQ(MakeIdentity("somebody", {}).roles, 0u);
  // A name alone gives nothing to a certificate that has roles, or tries to.
  EXPECT_EQ(MakeIdentity("meshrun-client", {"urn:meshrun:role:king"}).roles, 0u);
  EXPECT_EQ(MakeIdentity("x", {"urn:meshrun:role:rank"}).roles, 0u);
}

}  // namespace
}  // namespace meshrun::rpc
