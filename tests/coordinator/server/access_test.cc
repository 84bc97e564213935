// Who may call what of a coordinator with TLS: every method of its services, with each kind of
// certificate that must not do.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "coordinator/server.h"
#include "core/clock.h"
#include "core/env_entries.h"
#include "core/proto_time.h"
#include "core/rpc/channel.h"
#include "core/rpc/renewed_channel.h"
#include "core/rpc/roles.h"
#include "core/rpc/status_conversion.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "meshrun/v1/session.grpc.pb.h"
#include "meshrun/v1/store_service.grpc.pb.h"
#include "tests/coordinator/support/grpc_worker.h"
#include "tests/core/support/certificates.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator::testing {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;
using meshrun::testing::CertificateAuthority;
using meshrun::testing::kPatience;
using meshrun::testing::TemporaryDirectory;
using ::testing::HasSubstr;

std::string PathOf(const MethodDescriptor& method) {
  return "/" + method.service()->full_name() + "/" + method.name();
}

// What the coordinator serves, from the descriptors that are linked here.
std::vector<const MethodDescriptor*> Served() {
  std::vector<const MethodDescriptor*> out;
  for (const char* name : {"JobService", "ClusterService", "SessionService", "StoreService"}) {
    const auto* const service =
        DescriptorPool::generated_pool()->FindServiceByName(std::string("meshrun.v1.") + name);
    for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
      out.push_back(service->method(i));
    }
  }
  return out;
}

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() {
    Server::Options options;
    options.listen = "127.0.0.1:0";
    options.security.tls = ours_.Sign("coordinator");
    options.lease = std::chrono::seconds(120);
    auto server = Server::Start(std::move(options));
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) server_ = *std::move(server);
  }

  void Restart(const std::function<void(Server::Options&)>& change) {
    Server::Options options;
    options.listen = "127.0.0.1:0";
    options.security.tls = ours_.Sign("coordinator-2");
    options.lease = std::chrono::seconds(120);
    change(options);
    server_ = *Server::Start(std::move(options));
  }

  // A certificate that ends soon: on a busy host a call takes a good part of its time.
  static constexpr std::chrono::seconds kShort{4};

  std::shared_ptr<grpc::Channel> ChannelOf(const rpc::TlsFiles& files) {
    return *rpc::MakeChannel("test", server_->address(), {.tls = files});
  }
  std::shared_ptr<grpc::Channel> Worker(const std::string& node) {
    return ChannelOf(ours_.Sign("worker-" + node, {.roles = {"worker"}, .nodes = {node}}));
  }

  // As a unary call, whatever the method is: a refusal comes before anything else.
  grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const MethodDescriptor& method,
                    const Message& request) {
    const std::string path = PathOf(method);
    grpc::ClientContext context;
    rpc::SetTimeout(context, std::chrono::seconds(5));
    const grpc::Slice slice(request.SerializeAsString());
    const grpc::ByteBuffer bytes(&slice, 1);
    grpc::ByteBuffer answer;
    return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
        channel.get(),
        grpc::internal::RpcMethod(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC, channel),
        &context, bytes, &answer);
  }

  // A request that a worker of node1 would send for its job: what has a fence names it, what has a
  // job_id too.
  std::unique_ptr<Message> RequestFor(const MethodDescriptor& method, const std::string& job_id,
                                      const std::string& node_id) {
    std::unique_ptr<Message> request(
        MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
    const auto& reflection = *request->GetReflection();
    if (const auto* field = method.input_type()->FindFieldByName("fence")) {
      auto& fence = dynamic_cast<v1::Fence&>(*reflection.MutableMessage(request.get(), field));
      fence.set_job_id(job_id);
      fence.set_generation(1);
      fence.set_node_id(node_id);
      fence.set_incarnation(1);
    }
    if (const auto* field = method.input_type()->FindFieldByName("job_id")) {
      reflection.SetString(request.get(), field, job_id);
    }
    return request;
  }
  // Status with which a session that begins with this message ends.
  grpc::Status EndOfSession(const std::shared_ptr<grpc::Channel>& channel,
                            const v1::OpenSessionRequest& first) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, kPatience);
    const auto stream = v1::SessionService::NewStub(channel)->OpenSession(&context);
    stream->Write(first);
    v1::OpenSessionResponse response;
    EXPECT_FALSE(stream->Read(&response)) << response.ShortDebugString();
    return stream->Finish();
  }

  v1::Job Submit(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, kPatience);
    v1::SubmitJobRequest request;
    request.mutable_spec()->set_name("train");
    request.mutable_spec()->add_command("./train");
    SetEnv(*request.mutable_spec()->mutable_env(), "TOKEN", "of-ada");
    v1::SubmitJobResponse response;
    const grpc::Status status =
        v1::JobService::NewStub(channel)->SubmitJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }
  v1::Job Get(const std::shared_ptr<grpc::Channel>& channel, const std::string& id) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, kPatience);
    v1::GetJobRequest request;
    request.set_job_id(id);
    v1::GetJobResponse response;
    EXPECT_TRUE(v1::JobService::NewStub(channel)->GetJob(&context, request, &response).ok());
    return response.job();
  }

  TemporaryDirectory directory_;
  const CertificateAuthority ours_{"ours", directory_.path()};
  const CertificateAuthority other_{"other", directory_.path()};
  std::unique_ptr<Server> server_;
};

TEST_F(AccessTest, EveryMethodRefusesWhoHasNoCertificateOfThisCluster) {
  grpc::SslCredentialsOptions no_certificate;
  no_certificate.pem_root_certs = ours_.pair().cert_pem;
  const std::pair<const char*, std::shared_ptr<grpc::Channel>> kStrangers[] = {
      {"plaintext", *rpc::MakeChannel("test", server_->address(), {.insecure_loopback = true})},
      {"no certificate",
       grpc::CreateChannel(server_->address(), grpc::SslCredentials(no_certificate))},
      {"one that has ended",
       ChannelOf(ours_.Sign("late", {.roles = {"operate"}, .lasts = std::chrono::minutes(-5)}))},
      {"another cluster's", ChannelOf(other_.Trusting(other_.Sign("operator"), ours_))},
  };
  const auto served = Served();
  ASSERT_GE(served.size(), 25u);
  for (const auto& [who, channel] : kStrangers) {
    for (const MethodDescriptor* method : served) {
      const grpc::Status status = Call(channel, *method, *RequestFor(*method, "job", "id-node1"));
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE)
          << who << " " << PathOf(*method) << ": " << status.error_message();
    }
  }
}

TEST_F(AccessTest, TheEndOfACertificateIsAnEvent) {
  Restart([&](Server::Options& options) {
    options.security.tls = ours_.Sign("coordinator", {.age = std::chrono::hours(24 * 300)});
  });
  const auto reads = ChannelOf(ours_.Sign("reader", {.roles = {"read"}}));
  const auto stub = v1::ClusterService::NewStub(reads);
  EXPECT_TRUE(meshrun::testing::Eventually([&] {
    grpc::ClientContext context;
    rpc::SetTimeout(context, kPatience);
    v1::DescribeClusterResponse response;
    EXPECT_TRUE(stub->DescribeCluster(&context, {}, &response).ok());
    return std::any_of(response.events().begin(), response.events().end(),
                       [](const v1::ClusterEvent& event) {
                         return event.kind() == "CertificateEnding" &&
                                event.message().find("'coordinator'") != std::string::npos;
                       });
  }));
}

TEST_F(AccessTest, EveryMethodAnswersTheRolesOfItsRowAlone) {
  for (const char* role : {"coordinator", "submit", "operate", "read", "worker"}) {
    const auto channel = ChannelOf(ours_.Sign(role, {.roles = {role}, .nodes = {"node1"}}));
    const rpc::Roles bit = *rpc::ParseRole(role);
    for (const MethodDescriptor* method : Served()) {
      const rpc::MethodRule* const rule = rpc::FindRule(PathOf(*method));
      ASSERT_NE(rule, nullptr) << PathOf(*method);
      if ((rule->roles & bit) != 0) continue;
      const grpc::Status status = Call(channel, *method, *RequestFor(*method, "job", "id-node1"));
      EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED)
          << role << " " << PathOf(*method) << ": " << status.error_message();
    }
  }
}

TEST_F(AccessTest, AWorkerSpeaksForItsOwnNodeAlone) {
  const auto operates = ChannelOf(ours_.Sign("operator", {.roles = {"operate"}}));
  GrpcWorker worker(Worker("node1"), {.name = "node1"});
  ASSERT_TRUE(worker.Connect());
  const std::string job = Submit(operates).job_id();
  const auto other = Worker("node2");
  int checked = 0;
  for (const MethodDescriptor* method : Served()) {
    const rpc::MethodRule* const rule = rpc::FindRule(PathOf(*method));
    // A session needs a stream, see below; the bytes of a log a reader, see the next test.
    if (rule->scope != rpc::Scope::kOwnNode || method->client_streaming()) continue;
    const auto request = RequestFor(*method, job, "id-node1");
    EXPECT_EQ(Call(other, *method, *request).error_code(), grpc::StatusCode::PERMISSION_DENIED)
        << PathOf(*method);
    ++checked;
  }
  EXPECT_GE(checked, 14);
  v1::OpenSessionRequest hello;
  hello.mutable_fence()->set_incarnation(2);
  hello.mutable_hello()->set_node_id("id-node1");
  hello.mutable_hello()->set_name("node1");
  hello.mutable_hello()->mutable_resources()->set_slots(8);
  EXPECT_EQ(EndOfSession(other, hello).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  // Nor does it take the place of a node under its own name.
  hello.mutable_hello()->set_name("node2");
  const grpc::Status status = EndOfSession(other, hello);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("'node1'"));
}

TEST_F(AccessTest, ANodeHasSoManySessionsAtOnce) {
  const auto channel = Worker("node1");
  const auto stub = v1::SessionService::NewStub(channel);
  using Stream =
      std::unique_ptr<grpc::ClientReaderWriter<v1::OpenSessionRequest, v1::OpenSessionResponse>>;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<Stream> streams;
  // The first 16 stay open. Others end at their first message, or are refused.
  absl::Status refused;
  for (int i = 0; i < 200 && !absl::IsResourceExhausted(refused); ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    rpc::SetTimeout(*contexts.back(), kPatience);
    streams.push_back(stub->OpenSession(contexts.back().get()));
    if (i < 16) continue;
    streams.back()->Write(v1::OpenSessionRequest());
    // Nothing comes but an end: no Hello was said.
    v1::OpenSessionResponse response;
    EXPECT_FALSE(streams.back()->Read(&response));
    refused = rpc::FromGrpc(streams.back()->Finish());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("node worker-node1 has 16 sessions open"));
  EXPECT_TRUE(rpc::WaitBeforeRepeating(refused).has_value());
  for (const auto& context : contexts) context->TryCancel();
}

TEST_F(AccessTest, WhatIsTurnedAwayBeforeItIsLookedAtIsInTheAudit) {
  const auto bob = ChannelOf(ours_.Sign("bob", {.roles = {"submit"}}));
  const auto method_of = [](const std::string& name) {
    return DescriptorPool::generated_pool()->FindMethodByName("meshrun.v1.JobService." + name);
  };
  v1::CancelJobRequest large;
  large.set_job_id("train");
  large.set_reason(std::string(1 << 20, 'x'));
  EXPECT_EQ(Call(bob, *method_of("CancelJob"), large).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  // More than may be done in a second.
  v1::GetJobRequest request;
  request.set_job_id("train");
  grpc::Status too_many;
  for (int i = 0; i < 50'000 && too_many.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED; ++i)
    too_many = Call(bob, *method_of("GetJob"), request);
  ASSERT_EQ(too_many.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(too_many.error_message(), HasSubstr("; try again in "));

  const auto operates = ChannelOf(ours_.Sign("operator", {.roles = {"operate"}}));
  const auto stub = v1::ClusterService::NewStub(operates);
  std::map<int, v1::AuditRecord> of_bob;
  EXPECT_TRUE(meshrun::testing::Eventually([&] {
    grpc::ClientContext context;
    rpc::SetTimeout(context, kPatience);
    v1::ListAuditResponse response;
    EXPECT_TRUE(stub->ListAudit(&context, {}, &response).ok());
    for (const v1::AuditRecord& record : response.records()) {
      if (record.actor() == "bob") of_bob.try_emplace(record.code(), record);
    }
    return of_bob.contains(3) && of_bob.contains(8);
  }));
  EXPECT_EQ(of_bob[3].method(), "CancelJob");
  EXPECT_THAT(of_bob[3].message(), HasSubstr("reason"));
  EXPECT_NE(of_bob[3].certificate(), "");
  EXPECT_NE(of_bob[3].peer(), "");
  EXPECT_EQ(of_bob[8].method(), "/meshrun.v1.JobService/GetJob");
  EXPECT_EQ(of_bob[8].certificate(), of_bob[3].certificate());
}

TEST_F(AccessTest, AWorkerHasNothingToSayOfJobsThatRunElsewhere) {
  const auto operates = ChannelOf(ours_.Sign("operator", {.roles = {"operate"}}));
  GrpcWorker first(Worker("node1"), {.name = "node1"});
  ASSERT_TRUE(first.Connect());
  const std::string job = Submit(operates).job_id();
  ASSERT_TRUE(meshrun::testing::Eventually(
      [&] { return Get(operates, job).state() == v1::JOB_STATE_RUNNING; }));
  GrpcWorker second(Worker("node2"), {.name = "node2"});
  ASSERT_TRUE(second.Connect());
  const auto* const set =
      DescriptorPool::generated_pool()->FindMethodByName("meshrun.v1.StoreService.SetValues");
  EXPECT_EQ(Call(Worker("node1"), *set, *RequestFor(*set, job, "id-node1")).error_code(),
            grpc::StatusCode::OK);
  EXPECT_EQ(Call(Worker("node2"), *set, *RequestFor(*set, job, "id-node2")).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);

  // The log of rank 0 is node1's to upload.
  grpc::ClientContext reading;
  rpc::SetTimeout(reading, kPatience);
  v1::ReadLogsRequest request;
  request.set_job_id(job);
  request.add_streams(v1::LOG_STREAM_STDOUT);
  std::string stream;
  const auto reader = v1::JobService::NewStub(operates)->ReadLogs(&reading, request);
  ASSERT_TRUE(meshrun::testing::Eventually([&] {
    first.Say([&](FakeWorker& fake) {
      for (const auto& message : fake.received) {
        if (message.has_open_log()) stream = message.open_log().stream_id();
      }
      return FakeWorker::Requests{};
    });
    return !stream.empty();
  }));
  v1::UploadLogRequest chunk;
  chunk.set_stream_id(stream);
  chunk.set_data("forged\n");
  const auto* const upload =
      DescriptorPool::generated_pool()->FindMethodByName("meshrun.v1.SessionService.UploadLog");
  EXPECT_EQ(Call(Worker("node2"), *upload, chunk).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  chunk.set_data("true\n");
  EXPECT_EQ(Call(Worker("node1"), *upload, chunk).error_code(), grpc::StatusCode::OK);
  v1::ReadLogsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.data(), "true\n");
}

TEST_F(AccessTest, ASubmitterEndsItsOwnJobsAndAnOperatorAny) {
  const auto ada = ChannelOf(ours_.Sign("ada", {.roles = {"submit"}}));
  const auto bob = ChannelOf(ours_.Sign("bob", {.roles = {"submit"}}));
  const auto operates = ChannelOf(ours_.Sign("operator", {.roles = {"operate"}}));
  const v1::Job first = Submit(ada), second = Submit(ada);
  EXPECT_EQ(first.submitter(), "ada");
  int checked = 0;
  for (const MethodDescriptor* method : Served()) {
    if (rpc::FindRule(PathOf(*method))->scope != rpc::Scope::kOwnJob) continue;
    const grpc::Status status = Call(bob, *method, *RequestFor(*method, first.job_id(), ""));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << PathOf(*method);
    EXPECT_THAT(status.error_message(), HasSubstr("'ada'"));
    ++checked;
  }
  EXPECT_GE(checked, 1);
  const auto* const cancel =
      DescriptorPool::generated_pool()->FindMethodByName("meshrun.v1.JobService.CancelJob");
  EXPECT_TRUE(Call(ada, *cancel, *RequestFor(*cancel, first.job_id(), "")).ok());
  EXPECT_TRUE(Call(operates, *cancel, *RequestFor(*cancel, second.job_id(), "")).ok());
  EXPECT_EQ(Get(bob, first.job_id()).state(), v1::JOB_STATE_CANCELLED);
}

TEST_F(AccessTest, OnlyAnOperatorRaisesAPriority) {
  const auto ada = ChannelOf(ours_.Sign("ada", {.roles = {"submit"}}));
  const auto operates = ChannelOf(ours_.Sign("operator", {.roles = {"operate"}}));
  const v1::Job job = Submit(ada);
  const auto update = [&](const std::shared_ptr<grpc::Channel>& channel, int priority) {
    const auto* const method =
        DescriptorPool::generated_pool()->FindMethodByName("meshrun.v1.JobService.UpdateJob");
    v1::UpdateJobRequest request;
    request.set_job_id(job.job_id());
    request.set_priority(priority);
    return Call(channel, *method, request);
  };
  const grpc::Status refused = update(ada, 1);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.error_message(), HasSubstr("a priority above 0 takes the role operate"));
  EXPECT_TRUE(update(ada, -1).ok());
  EXPECT_TRUE(update(operates, 1).ok());
}

// A connection may outlive its certificate: its streams do not, and its calls are refused.
TEST_F(AccessTest, StreamsAndCallsOfAUserEndWithTheCertificate) {
  const auto operates = ChannelOf(ours_.Sign("operator", {.roles = {"operate"}}));
  const v1::Job job = Submit(operates);
  grpc::ClientContext watching;
  rpc::SetTimeout(watching, kPatience);
  v1::WatchJobRequest request;
  request.set_job_id(job.job_id());
  const auto reads = ChannelOf(ours_.Sign("reader", {.roles = {"read"}, .lasts = kShort}));
  const auto watch = v1::JobService::NewStub(reads)->WatchJob(&watching, request);
  v1::WatchJobResponse item;
  ASSERT_TRUE(watch->Read(&item));
  while (watch->Read(&item)) {
  }
  const grpc::Status status = watch->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("renew it with 'meshrun ca renew'"));
  const auto* const get =
      DescriptorPool::generated_pool()->FindMethodByName("meshrun.v1.JobService.GetJob");
  EXPECT_EQ(Call(reads, *get, *RequestFor(*get, job.job_id(), "")).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

// A host of many jobs must not be lost in the night in which somebody forgot to renew.
TEST_F(AccessTest, AWorkersSessionOutlivesItsCertificateForAGraceAndASubmitterDoesNot) {
  constexpr std::chrono::seconds kGrace(2);
  Restart([&](Server::Options& options) { options.security.certificate_grace = kGrace; });
  const auto operates = ChannelOf(ours_.Sign("operator", {.roles = {"operate"}}));
  const auto began = std::chrono::steady_clock::now();
  // One that may submit, too: its grace is for what nodes call.
  const auto node = ChannelOf(
      ours_.Sign("node", {.roles = {"worker", "submit"}, .nodes = {"node1"}, .lasts = kShort}));
  grpc::ClientContext holding;
  rpc::SetTimeout(holding, kPatience);
  const auto session = v1::SessionService::NewStub(node)->OpenSession(&holding);
  FakeWorker worker({.name = "node1"});
  session->Write(worker.Hello());
  v1::OpenSessionResponse message;
  ASSERT_TRUE(session->Read(&message));
  const auto shown = [&] {
    grpc::ClientContext context;
    v1::ListNodesResponse nodes;
    EXPECT_TRUE(v1::ClusterService::NewStub(operates)->ListNodes(&context, {}, &nodes).ok());
    return nodes.nodes(0);
  };
  const auto ends = FromProto(shown().certificate_ends_at());
  EXPECT_EQ(FromProto(shown().session_ends_at()), ends + kGrace);
  const auto* const get =
      DescriptorPool::generated_pool()->FindMethodByName("meshrun.v1.JobService.GetJob");
  const auto* const values =
      DescriptorPool::generated_pool()->FindMethodByName("meshrun.v1.StoreService.GetValues");
  ASSERT_TRUE(meshrun::testing::Eventually([&] {
    return Call(node, *get, *RequestFor(*get, "x", "")).error_code() ==
           grpc::StatusCode::UNAUTHENTICATED;
  }));
  EXPECT_GE(Clock::Real().WallNow(), ends);
  const v1::Node within = shown();
  const grpc::Status stored = Call(node, *values, *RequestFor(*values, "x", within.node_id()));
  // Unless a busy machine has let the grace pass meanwhile.
  if (Clock::Real().WallNow() < ends + kGrace) {
    EXPECT_EQ(within.state(), v1::NODE_STATE_HEALTHY);
    // It comes to the store, which has no such generation.
    EXPECT_EQ(stored.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
  // A new connection does not come about.
  const auto anew = ChannelOf(ours_.Sign(
      "node", {.roles = {"worker"}, .nodes = {"node1"}, .lasts = std::chrono::seconds(-1)}));
  EXPECT_EQ(Call(anew, *values, *RequestFor(*values, "x", "")).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  while (session->Read(&message)) {
  }
  const grpc::Status status = session->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("renew it with 'meshrun ca renew'"));
  EXPECT_GE(std::chrono::steady_clock::now() - began, kGrace);
  EXPECT_TRUE(
      meshrun::testing::Eventually([&] { return shown().state() != v1::NODE_STATE_HEALTHY; }));
}

TEST_F(AccessTest, ACertificateOnTheDenyListIsRefusedWithinASecond) {
  const TemporaryDirectory directory;
  const std::string list = directory.path() + "/deny";
  std::ofstream(list) << "# nobody yet\n";
  Restart([&](Server::Options& options) { options.security.deny_file = list; });
  const auto ada = ChannelOf(ours_.Sign("ada", {.roles = {"submit"}}));
  const auto bob = ChannelOf(ours_.Sign("bob", {.roles = {"submit"}}));
  const v1::Job job = Submit(ada);
  grpc::ClientContext watching;
  rpc::SetTimeout(watching, kPatience);
  v1::WatchJobRequest request;
  request.set_job_id(job.job_id());
  const auto watch = v1::JobService::NewStub(ada)->WatchJob(&watching, request);
  v1::WatchJobResponse item;
  ASSERT_TRUE(watch->Read(&item));
  std::ofstream(list) << "name:ada\n";
  while (watch->Read(&item)) {
  }
  const grpc::Status status = watch->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("is on the deny list"));
  const auto* const get =
      DescriptorPool::generated_pool()->FindMethodByName("meshrun.v1.JobService.GetJob");
  EXPECT_EQ(Call(ada, *get, *RequestFor(*get, job.job_id(), "")).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Call(bob, *get, *RequestFor(*get, job.job_id(), "")).ok());
}

// The server still has the connection that showed the old certificate, and would keep it for two
// minutes.
TEST_F(AccessTest, AWorkerWhoseCertificateWasRenewedAndDeniedComesBackOverANewConnection) {
  const TemporaryDirectory directory;
  const std::string list = directory.path() + "/deny";
  std::ofstream(list) << "# nobody yet\n";
  Restart([&](Server::Options& options) { options.security.deny_file = list; });
  rpc::TlsFiles files = ours_.Sign("stolen", {.roles = {"worker"}, .nodes = {"node1"}});
  int made = 0;
  const auto channel =
      *rpc::RenewedChannel::Create({.choice = rpc::LeaderChoice::Of(server_->address()),
                                    .make =
                                        [&](const std::string& address) {
                                          ++made;
                                          return rpc::MakeChannel("test", address, {.tls = files});
                                        },
                                    .run = [](const std::function<void()>& work) { work(); }});
  rpc::StubOf<v1::SessionService> stub(channel);
  grpc::ClientContext context;
  rpc::SetTimeout(context, kPatience);
  const auto session = stub.Get()->OpenSession(&context);
  const v1::OpenSessionRequest hello = FakeWorker({.name = "node1"}).Hello();
  session->Write(hello);
  v1::OpenSessionResponse message;
  ASSERT_TRUE(session->Read(&message));
  std::ofstream(list) << "name:stolen\n";
  while (session->Read(&message)) {
  }
  const grpc::Status denied = session->Finish();
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::UNAUTHENTICATED) << denied.error_message();
  EXPECT_THAT(denied.error_message(), HasSubstr("is on the deny list"));
  const auto again = [&] {
    grpc::ClientContext retry;
    rpc::SetTimeout(retry, kPatience);
    const auto stream = stub.Get()->OpenSession(&retry);
    stream->Write(hello);
    const bool welcome = stream->Read(&message);
    if (welcome) retry.TryCancel();
    const grpc::Status end = stream->Finish();
    return welcome ? grpc::Status::OK : end;
  };
  files = ours_.Sign("renewed", {.roles = {"worker"}, .nodes = {"node1"}});
  EXPECT_EQ(again().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  const auto used = stub.Get();
  stub.OnEnd(absl::UnavailableError("this is about no certificate"), used);
  EXPECT_EQ(again().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  stub.OnEnd(rpc::FromGrpc(denied), used);
  // Many calls end at once.
  stub.OnEnd(rpc::FromGrpc(denied), used);
  EXPECT_TRUE(again().ok());
  EXPECT_EQ(made, 2);
}

TEST_F(AccessTest, ValuesOfTheEnvironmentAreShownToTheRanksAlone) {
  const auto ada = ChannelOf(ours_.Sign("ada", {.roles = {"submit"}}));
  std::string told;
  Mutex mu;
  GrpcWorker worker(Worker("node1"), {.name = "node1"},
                    [&](GrpcWorker&, const v1::OpenSessionResponse& message) {
                      if (!message.has_prepare()) return;
                      MutexLock lock(mu);
                      told = EnvMap(message.prepare().spec().env()).at("TOKEN");
                    });
  ASSERT_TRUE(worker.Connect());
  const v1::Job job = Submit(ada);
  ASSERT_TRUE(meshrun::testing::Eventually([&] {
    MutexLock lock(mu);
    return !told.empty();
  }));
  MutexLock lock(mu);
  EXPECT_EQ(told, "of-ada");
  for (const v1::Job& shown : {job, Get(ada, job.job_id())}) {
    EXPECT_TRUE(EnvMap(shown.spec().env()).contains("TOKEN"));
    EXPECT_EQ(shown.DebugString().find("of-ada"), std::string::npos) << shown.DebugString();
  }
}

}  // namespace
}  // namespace meshrun::coordinator::testing
