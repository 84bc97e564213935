// The HTTP API of a coordinator with TLS: what each role gets, and how a wrong call is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>

#include "coordinator/server.h"
#include "core/rpc/channel.h"
#include "core/rpc/renewed_channel.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "tests/coordinator/support/grpc_worker.h"
#include "tests/core/support/certificates.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator::testing {
namespace {

using meshrun::testing::CertificateAuthority;
using meshrun::testing::Eventually;
using meshrun::testing::kPatience;
using meshrun::testing::TemporaryDirectory;
using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ApiTest : public ::testing::Test {
 protected:
  ApiTest() {
    Server::Options options;
    options.listen = "127.0.0.1:0";
    options.http = "127.0.0.1:0";
    options.security.tls = ours_.Sign("coordinator");
    options.lease = std::chrono::seconds(120);
    auto server = Server::Start(std::move(options));
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) server_ = *std::move(server);
  }

  // An HTTP client with a certificate of this role, in the name of `user`.
  std::unique_ptr<httplib::SSLClient> As(const std::string& user, const std::string& role) {
    const rpc::TlsFiles files = FilesOf(user, role);
    const std::string& address = server_->http_address();
    auto client = std::make_unique<httplib::SSLClient>(
        "127.0.0.1", std::stoi(address.substr(address.rfind(':') + 1)), files.cert, files.key);
    client->set_ca_cert_path(ours_.ca_file().c_str());
    client->enable_server_certificate_verification(false);
    client->set_read_timeout(kPatience);
    return client;
  }
  rpc::TlsFiles FilesOf(const std::string& user, const std::string& role) {
    return ours_.Sign(user, {.roles = {role}, .nodes = {"node1"}});
  }
  std::shared_ptr<grpc::Channel> ChannelOf(const std::string& user, const std::string& role) {
    return *rpc::MakeChannel("test", server_->address(), {.tls = FilesOf(user, role)});
  }

  std::string Submit(const std::string& user, bool is_private = false) {
    v1::SubmitJobRequest request;
    request.mutable_spec()->set_name("train");
    request.mutable_spec()->add_command("./secret-program");
    request.mutable_spec()->set_private_(is_private);
    grpc::ClientContext context;
    rpc::SetTimeout(context, kPatience);
    v1::SubmitJobResponse response;
    const grpc::Status status =
        v1::JobService::NewStub(ChannelOf(user, "submit"))->SubmitJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().job_id();
  }

  static json Get(httplib::SSLClient& client, const std::string& path, int status = 200) {
    return Checked(client.Get(path.c_str()), path, status);
  }
  static json Post(httplib::SSLClient& client, const std::string& path, const std::string& body,
                   int status = 200) {
    return Checked(client.Post(path.c_str(), body, "application/json"), path, status);
  }
  static json Checked(const httplib::Result& answer, const std::string& path, int status) {
    if (!answer) {
      ADD_FAILURE() << path << ": " << httplib::to_string(answer.error());
      return nullptr;
    }
    EXPECT_EQ(answer->status, status) << path << ": " << answer->body;
    EXPECT_EQ(answer->get_header_value("Content-Type"), "application/json") << path;
    return json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  }

  // Text of the stream until it has `wanted`, or has ended.
  static std::string ReadStream(httplib::SSLClient& client, const std::string& path,
                                const std::string& wanted) {
    std::string text;
    client.Get(path.c_str(), [&](const char* data, size_t size) {
      text.append(data, size);
      return text.find(wanted) == std::string::npos;
    });
    return text;
  }

  TemporaryDirectory directory_;
  const CertificateAuthority ours_{"ours", directory_.path()};
  std::unique_ptr<Server> server_;
};

TEST_F(ApiTest, AReaderLooksAndMayNotCancel) {
  const std::string job = Submit("ada");
  const auto reader = As("bob", "read");
  EXPECT_EQ(Get(*reader, "/api/v1/jobs")["jobs"][0]["jobId"], job);
  EXPECT_EQ(Get(*reader, "/api/v1/jobs/" + job)["job"]["state"], "JOB_STATE_QUEUED");
  const json refused = Post(*reader, "/api/v1/jobs/" + job + "/cancel", "{}", 403);
  EXPECT_EQ(refused["code"], "PERMISSION_DENIED");
  EXPECT_THAT(refused["message"].get<std::string>(),
              StartsWith("/meshrun.v1.JobService/CancelJob is for the roles submit, operate, and "
                         "the certificate of 'bob' has read"));
  EXPECT_EQ(Get(*reader, "/api/v1/jobs/" + job)["job"]["state"], "JOB_STATE_QUEUED");
}

TEST_F(ApiTest, WhoIsRefusedLearnsNothingOfTheRequest) {
  const auto reader = As("bob", "read");
  for (const char* body : {"{}", "not JSON", "{\"unknown\": 1}"}) {
    Post(*reader, "/api/v1/jobs/none/cancel", body, 403);
  }
}

TEST_F(ApiTest, ARefusedCallIsInTheAudit) {
  const auto reader = As("bob", "read");
  Post(*reader, "/api/v1/nodes/node1/drain", "{}", 403);
  const auto stub = v1::ClusterService::NewStub(ChannelOf("op", "operate"));
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    rpc::SetTimeout(context, kPatience);
    v1::ListAuditResponse response;
    EXPECT_TRUE(stub->ListAudit(&context, {}, &response).ok());
    return std::any_of(response.records().begin(), response.records().end(), [](const auto& one) {
      return one.actor() == "bob" && one.method().ends_with("DrainNode");
    });
  }));
}

TEST_F(ApiTest, ASubmitterChangesItsOwnJobsAlone) {
  const std::string job = Submit("ada");
  const json refused = Post(*As("bob", "submit"), "/api/v1/jobs/" + job + "/cancel", "{}", 403);
  EXPECT_THAT(refused["message"].get<std::string>(),
              HasSubstr("was submitted by 'ada', and the certificate of 'bob'"));
  const auto ada = As("ada", "submit");
  const std::string path = "/api/v1/jobs/" + job;
  EXPECT_EQ(Post(*ada, path + "/hold", "{}")["job"]["jobId"], job);
  EXPECT_THAT(Get(*ada, path)["job"]["reason"].get<std::string>(), HasSubstr("held"));
  EXPECT_EQ(Post(*ada, path + "/release", "{}")["job"]["jobId"], job);
  EXPECT_EQ(Get(*ada, path)["job"]["reason"].get<std::string>().find("held"), std::string::npos);
  const json priority = Post(*ada, "/api/v1/jobs/" + job + "/priority", R"({"priority": 7})", 403);
  EXPECT_THAT(priority["message"].get<std::string>(), HasSubstr("priority 7"));
  const json cancelled =
      Post(*ada, "/api/v1/jobs/" + job + "/cancel", R"({"reason": "wrong data"})");
  EXPECT_EQ(cancelled["job"]["state"], "JOB_STATE_CANCELLED");
  EXPECT_THAT(cancelled["job"]["reason"].get<std::string>(), HasSubstr("wrong data"));
}

TEST_F(ApiTest, AnOperatorDrainsANode) {
  GrpcWorker worker(ChannelOf("node1", "worker"), {.name = "node1"});
  ASSERT_TRUE(worker.Connect());
  const auto op = As("op", "operate");
  const json drained =
      Post(*op, "/api/v1/nodes/node1/drain", R"({"reason": "new memory", "deadline": "60s"})");
  EXPECT_EQ(drained["node"]["drained"], true);
  EXPECT_EQ(drained["node"]["drainedBecause"], "new memory");
  EXPECT_EQ(Get(*op, "/api/v1/nodes")["nodes"][0]["drained"], true);
  EXPECT_EQ(Post(*op, "/api/v1/nodes/node1/undrain", "{}")["node"]["drained"], false);
  EXPECT_EQ(Post(*op, "/api/v1/nodes/other/undrain", "{}", 404)["code"], "NOT_FOUND");
}

TEST_F(ApiTest, ADrainHasNoDeadlineInThePast) {
  GrpcWorker worker(ChannelOf("node1", "worker"), {.name = "node1"});
  ASSERT_TRUE(worker.Connect());
  const auto op = As("op", "operate");
  for (const char* body : {R"({"deadline": "-5s"})", R"({"deadline": "-3600s"})"}) {
    const json refused = Post(*op, "/api/v1/nodes/node1/drain", body, 400);
    EXPECT_EQ(refused["code"], "INVALID_ARGUMENT");
    EXPECT_THAT(refused["message"].get<std::string>(), StartsWith("deadline: write seconds"));
  }
  // Nor over gRPC, from whatever client.
  grpc::ClientContext context;
  rpc::SetTimeout(context, kPatience);
  v1::DrainNodeRequest request;
  request.set_node("node1");
  request.mutable_deadline()->set_seconds(-5);
  v1::DrainNodeResponse response;
  const grpc::Status status = v1::ClusterService::NewStub(ChannelOf("op", "operate"))
                                  ->DrainNode(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("deadline is -5 s"));
  EXPECT_EQ(Get(*op, "/api/v1/nodes")["nodes"][0]["drained"], false);
}

TEST_F(ApiTest, AValueOfAnotherTypeChangesNothing) {
  const std::string job = Submit("ada");
  const auto op = As("op", "operate");
  const std::string path = "/api/v1/jobs/" + job;
  EXPECT_EQ(Post(*op, path + "/cancel", R"({"now": "yes"})", 400)["message"],
            "now: write true or false, without quotes");
  EXPECT_EQ(Post(*op, path + "/priority", "{}", 400)["message"],
            "the body has no 'priority', and POST /jobs/{job}/priority needs it");
  EXPECT_EQ(Get(*op, path + "/logs?tail=-1", 400)["message"],
            "tail=-1: write a whole number, 0 or more");
  EXPECT_EQ(Get(*op, path)["job"]["state"], "JOB_STATE_QUEUED");
}

TEST_F(ApiTest, AnotherMethodIsToldWhatMayBeAsked) {
  const auto op = As("op", "operate");
  const std::tuple<const char*, const char*> cases[] = {{"/api/v1/jobs", "GET, HEAD"},
                                                        {"/api/v1/jobs/none/cancel", "POST"},
                                                        {"/", "GET, HEAD"},
                                                        {"/metrics", "GET, HEAD"}};
  for (const auto& [path, allowed] : cases) {
    for (const char* method : {"PUT", "DELETE", "PATCH", "OPTIONS", "POST", "GET"}) {
      if (std::string_view(allowed).find(method) != std::string_view::npos) continue;
      httplib::Request request;
      request.method = method;
      request.path = path;
      request.headers = {{"Content-Type", "application/json"}};
      if (request.method != "GET") request.body = "{}";
      const auto answer = op->send(request);
      ASSERT_TRUE(answer) << method << " " << path << httplib::to_string(answer.error());
      EXPECT_EQ(answer->get_header_value("Allow"), allowed) << method << " " << path;
      EXPECT_EQ(Checked(answer, path, 405)["code"], "UNIMPLEMENTED") << method << " " << path;
    }
  }
  EXPECT_EQ(
      Checked(op->Put("/api/v1/nothing", "{}", "application/json"), "/api/v1/nothing", 404)["code"],
      "NOT_FOUND");
}

TEST_F(ApiTest, APrivateJobIsSeenByItsOwnerAndOperators) {
  const std::string job = Submit("ada", /*is_private=*/true);
  const std::string path = "/api/v1/jobs/" + job;
  EXPECT_EQ(Get(*As("ada", "submit"), path)["job"]["spec"]["command"][0], "./secret-program");
  EXPECT_EQ(Get(*As("op", "operate"), path)["job"]["spec"]["command"][0], "./secret-program");
  const auto bob = As("bob", "read");
  EXPECT_EQ(Get(*bob, path).dump().find("secret-program"), std::string::npos);
  EXPECT_EQ(Get(*bob, path + "/logs", 403)["code"], "PERMISSION_DENIED");
  EXPECT_EQ(Get(*bob, path + "/logs/follow", 403)["code"], "PERMISSION_DENIED");
  EXPECT_EQ(Get(*bob, path + "/pictures", 403)["code"], "PERMISSION_DENIED");
  EXPECT_EQ(Get(*bob, path + "/pictures/0/map.png", 403)["code"], "PERMISSION_DENIED");
  const std::string watched = ReadStream(*bob, path + "/watch", "\n\n");
  EXPECT_THAT(watched, StartsWith("event: change\ndata: {\"job\":{\"jobId\":\"" + job));
  EXPECT_EQ(watched.find("secret-program"), std::string::npos);
}

TEST_F(ApiTest, AWorkerLooksAtNothing) {
  const auto worker = As("node1", "worker");
  for (const char* path : {"/api/v1/jobs", "/api/v1/me", "/api/v1/openapi.json", "/"}) {
    EXPECT_EQ(Get(*worker, path, 403)["code"], "PERMISSION_DENIED") << path;
  }
}

TEST_F(ApiTest, APathThatThereIsNotIsNotFoundWhateverTheRole) {
  for (const char* role : {"worker", "coordinator", "read"}) {
    const auto caller = As("node1", role);
    for (const char* path :
         {"/api/v1/nothing", "/api/v1/jobs/j/nothing", "/api/v1", "/nothing.js"}) {
      EXPECT_EQ(Get(*caller, path, 404)["code"], "NOT_FOUND") << role << " " << path;
    }
    EXPECT_EQ(Post(*caller, "/api/v1/nothing", "{}", 404)["code"], "NOT_FOUND") << role;
  }
  // The path is there, and not for a worker.
  EXPECT_EQ(Get(*As("node1", "worker"), "/api/v1/jobs/j/cancel", 403)["code"], "PERMISSION_DENIED");
}

TEST_F(ApiTest, MeTellsWhatTheRolesAllow) {
  const json reader = Get(*As("bob", "read"), "/api/v1/me");
  EXPECT_EQ(reader["user"], "bob");
  EXPECT_EQ(reader["roles"], json::array({"read"}));
  EXPECT_THAT(reader["may"], Contains("GetJob"));
  EXPECT_THAT(reader["may"], ::testing::Not(Contains("CancelJob")));
  EXPECT_THAT(Get(*As("op", "operate"), "/api/v1/me")["may"], Contains("DrainNode"));
}

TEST_F(ApiTest, TheClusterTellsWhereItsApiIs) {
  EXPECT_EQ(Get(*As("bob", "read"), "/api/v1/cluster?events=1")["httpAddress"],
            server_->http_address());
}

TEST_F(ApiTest, AWrongCallIsToldWhatIsWrong) {
  const auto op = As("op", "operate");
  EXPECT_EQ(Get(*op, "/api/v1/jobs/none", 404)["code"], "NOT_FOUND");
  EXPECT_EQ(Get(*op, "/api/v1/jobs/none/watch", 404)["code"], "NOT_FOUND");
  EXPECT_EQ(Get(*op, "/api/v1/jobs/none/logs/follow", 404)["code"], "NOT_FOUND");
  EXPECT_EQ(Get(*op, "/api/v1/jobs?pageSize=many", 400)["message"],
            "pageSize=many: write a whole number, 0 or more");
  EXPECT_EQ(Get(*op, "/api/v1/jobs?pageToken=wrong", 400)["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(Get(*op, "/api/v1/nodes?x=1", 400)["message"],
            "there is no parameter 'x': GET /nodes takes pageSize, pageToken");
  EXPECT_EQ(Post(*op, "/api/v1/jobs/none/cancel", "now", 400)["message"],
            "the body is not JSON: byte 2 cannot be read");
  EXPECT_EQ(Post(*op, "/api/v1/jobs/none/cancel", R"({"noww": 1})", 400)["message"],
            "there is no field 'noww': this body has now, reason");
  EXPECT_EQ(Get(*op, "/api/v1/nothing", 404)["message"],
            "there is no /api/v1/nothing here: /api/v1/openapi.json describes the calls");
  EXPECT_EQ(Get(*op, "/nothing.js", 404)["code"], "NOT_FOUND");
  const auto wrong_method = op->Get("/api/v1/jobs/none/cancel");
  ASSERT_TRUE(wrong_method);
  EXPECT_EQ(wrong_method->status, 405);
  EXPECT_EQ(wrong_method->get_header_value("Allow"), "POST");
}

TEST_F(ApiTest, ACallThatCannotBeReadGivesItsPlaceBack) {
  const auto op = As("op", "operate");
  op->set_keep_alive(true);
  // A user has far fewer calls under way.
  for (int i = 0; i < 100; ++i) Post(*op, "/api/v1/jobs/none/cancel", "now", 400);
  EXPECT_EQ(Post(*op, "/api/v1/jobs/none/cancel", "{}", 404)["code"], "NOT_FOUND");
}

TEST_F(ApiTest, AFieldBeyondItsBoundsIsRefused) {
  const std::string body = json{{"reason", std::string(5000, 'x')}}.dump();
  EXPECT_EQ(Post(*As("op", "operate"), "/api/v1/jobs/none/cancel", body, 400)["message"],
            "reason has 5000 bytes, and at most 4096 are taken");
  const std::string huge = json{{"reason", std::string(2 << 20, 'x')}}.dump();
  const auto answer =
      As("op", "operate")->Post("/api/v1/jobs/none/cancel", huge, "application/json");
  // The server may close the connection before all of it has been sent.
  if (answer) {
    EXPECT_EQ(answer->status, 413);
  }
}

TEST_F(ApiTest, NoPageOfAnotherSiteCanChangeAnything) {
  const std::string job = Submit("ada");
  const std::string path = "/api/v1/jobs/" + job + "/cancel";
  const auto op = As("op", "operate");
  // What a form, or a script that asks no leave, can send.
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
                           "application/jsonp", ""}) {
    const auto answer = op->Post(path.c_str(), "{}", type);
    ASSERT_TRUE(answer) << type;
    EXPECT_EQ(answer->status, 415) << type << ": " << answer->body;
  }
  EXPECT_EQ(Get(*op, "/api/v1/jobs/" + job)["job"]["state"], "JOB_STATE_QUEUED");
  const auto answer = op->Post(path.c_str(), "{}", "Application/JSON; charset=utf-8");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200) << answer->body;
  EXPECT_FALSE(answer->has_header("Access-Control-Allow-Origin"));
}

TEST_F(ApiTest, AWatchEndsWithItsJob) {
  const std::string job = Submit("ada");
  const auto reader = As("bob", "read");
  std::string text;
  std::thread other;
  reader->Get(("/api/v1/jobs/" + job + "/watch").c_str(), [&](const char* data, size_t size) {
    text.append(data, size);
    if (!other.joinable()) {
      other =
          std::thread([&] { Post(*As("ada", "submit"), "/api/v1/jobs/" + job + "/cancel", "{}"); });
    }
    return true;
  });
  ASSERT_TRUE(other.joinable());
  other.join();
  EXPECT_THAT(text, StartsWith("event: change\ndata: {\"job\":{"));
  EXPECT_THAT(text, HasSubstr("JOB_STATE_CANCELLED"));
  EXPECT_TRUE(text.ends_with("\n\nevent: end\ndata: {}\n\n")) << text;
}

TEST_F(ApiTest, AServerThatStopsEndsItsStreams) {
  const std::string job = Submit("ada");
  const auto reader = As("bob", "read");
  std::thread stops;
  std::string text;
  reader->Get(("/api/v1/jobs/" + job + "/watch").c_str(), [&](const char* data, size_t size) {
    text.append(data, size);
    if (!stops.joinable()) stops = std::thread([&] { server_->Stop(); });
    return true;
  });
  ASSERT_TRUE(stops.joinable());
  stops.join();
  EXPECT_THAT(text, StartsWith("event: change\n"));
}

TEST_F(ApiTest, AReaderThatLeavesAStreamLeavesNothingBehind) {
  const std::string job = Submit("ada");
  for (int i = 0; i < 50; ++i) {
    ReadStream(*As("bob", "read"), "/api/v1/jobs/" + job + "/watch", "\n\n");
  }
  EXPECT_EQ(Get(*As("bob", "read"), "/api/v1/jobs/" + job)["job"]["state"], "JOB_STATE_QUEUED");
}

TEST_F(ApiTest, AnswersAreForThisPageAndForNoCache) {
  const auto reader = As("bob", "read");
  const auto api = reader->Get("/api/v1/jobs");
  const auto page = reader->Get("/");
  ASSERT_TRUE(api && page);
  EXPECT_EQ(api->get_header_value("Cache-Control"), "no-store");
  EXPECT_EQ(page->get_header_value("Cache-Control"), "no-cache");
  for (const auto& answer : {api->headers, page->headers}) {
    EXPECT_THAT(answer.find("Content-Security-Policy")->second, StartsWith("default-src 'self'"));
    EXPECT_EQ(answer.find("X-Content-Type-Options")->second, "nosniff");
  }
  const auto again =
      reader->Get("/", httplib::Headers{{"If-None-Match", page->get_header_value("ETag")}});
  ASSERT_TRUE(again);
  EXPECT_EQ(again->status, 304);
  EXPECT_EQ(again->body, "");
}

}  // namespace
}  // namespace meshrun::coordinator::testing
