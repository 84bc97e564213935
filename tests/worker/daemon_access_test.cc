// What the agent's socket answers to callers without a token, or with another job's: every method
// of both of its services.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include "core/os/files.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "meshrun/v1/store_service.grpc.pb.h"
#include "tests/worker/support/daemon_fixture.h"

namespace meshrun::worker {
namespace {

using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;
using testing::DaemonTest;
using testing::Eventually;
using testing::kJob;

constexpr char kOther[] = "other-m4y8z3";

class DaemonAccessTest : public DaemonTest {
 protected:
  // A rank of the job, which says its token and where the agent is.
  void RunRank(const std::string& job) {
    v1::OpenSessionResponse message;
    *message.mutable_prepare() =
        PrepareFor("echo $MESHRUN_TOKEN; echo $MESHRUN_AGENT; exec sleep 600");
    coordinator_->Send(message, job, 1);
    ASSERT_TRUE(coordinator_->AwaitKind(Request::kPrepareResult));
    message.mutable_start()->set_master_addr("127.0.0.1");
    coordinator_->Send(message, job, 1);
    ASSERT_TRUE(coordinator_->AwaitKind(Request::kRanksStarted));
  }
  std::pair<std::string, std::string> TokenAndAddress(const std::string& job) {
    std::pair<std::string, std::string> out;
    EXPECT_TRUE(Eventually([&] {
      const auto output = os::ReadFile(State("/logs/" + job + "/1/0.stdout.log"));
      if (!output.ok()) return false;
      std::istringstream lines(*output);
      return std::getline(lines, out.first) && std::getline(lines, out.second) &&
             output->ends_with('\n');
    })) << job;
    return out;
  }

  // As a unary call: a refusal comes before anything else.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel,
                           const MethodDescriptor& method, const std::string& token) {
    const std::unique_ptr<Message> request(
        MessageFactory::generated_factory()->GetPrototype(method.input_type())->New());
    const auto* const fence = method.input_type()->FindFieldByName("fence");
    auto& named =
        dynamic_cast<v1::Fence&>(*request->GetReflection()->MutableMessage(request.get(), fence));
    named.set_job_id(kJob);
    named.set_generation(1);
    if (const auto* field = method.input_type()->FindFieldByName("token")) {
      request->GetReflection()->SetString(request.get(), field, token);
    }
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    if (!token.empty()) context.AddMetadata("meshrun-token", token);
    const grpc::Slice slice(request->SerializeAsString());
    const grpc::ByteBuffer bytes(&slice, 1);
    grpc::ByteBuffer answer;
    const std::string path = "/" + method.service()->full_name() + "/" + method.name();
    return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
        channel.get(),
        grpc::internal::RpcMethod(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC, channel),
        &context, bytes, &answer);
  }
};

TEST_F(DaemonAccessTest, EveryMethodRefusesWhoHasNotThisJobsToken) {
  StartDaemon();
  AwaitHello();
  RunRank(kJob);
  RunRank(kOther);
  const auto [token, address] = TokenAndAddress(kJob);
  const auto [other_token, other_address] = TokenAndAddress(kOther);
  ASSERT_NE(token, other_token);
  ASSERT_NE(address, other_address);
  int checked = 0;
  // A token is a generation's own, at whichever socket it is shown.
  for (const std::string& where : {address, other_address, "unix:" + State("/agent.sock")}) {
    const auto channel = grpc::CreateChannel(where, grpc::InsecureChannelCredentials());
    for (const auto* const service :
         {v1::RegisterRankRequest::descriptor()->file()->FindServiceByName("AgentService"),
          v1::SetValuesRequest::descriptor()->file()->FindServiceByName("StoreService")}) {
      ASSERT_NE(service, nullptr);
      for (int i = 0; i < service->method_count(); ++i) {
        for (const std::string& shown : {std::string(), std::string("guessed"), other_token}) {
          const grpc::Status status = Call(channel, *service->method(i), shown);
          EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED)
              << service->method(i)->full_name() << ": " << status.error_message();
          ++checked;
        }
      }
    }
  }
  EXPECT_GE(checked, 19 * 9);
  EXPECT_EQ(coordinator_->store_calls(), 0);
}

}  // namespace
}  // namespace meshrun::worker
