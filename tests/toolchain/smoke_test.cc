// The libraries that one process of meshrun may hold together: gRPC with protobuf, spdlog with fmt,
// LibTorch with c10d, UCX. LibTorch carries protobuf and fmt of its own; the test fails to link, or
// crashes, where the copies meet.

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <ucp/api/ucp.h>

#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "tests/toolchain/echo.grpc.pb.h"

namespace meshrun {
namespace {

class EchoServiceImpl : public toolchain_test::EchoService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const toolchain_test::EchoRequest* request,
                                 toolchain_test::EchoResponse* response) override {
    response->set_text(request->text());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

TEST(ToolchainTest, GrpcAnswersBesideLibTorch) {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  EchoServiceImpl service;
  int port = 0;
  std::unique_ptr<grpc::Server> server =
      grpc::ServerBuilder()
          .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port)
          .RegisterService(&service)
          .BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto stub = toolchain_test::EchoService::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  toolchain_test::EchoRequest request;
  request.set_text(at::arange(3).toString());
  toolchain_test::EchoResponse response;
  const grpc::Status status = stub->Echo(&context, request, &response);

  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.text(), request.text());
}

TEST(ToolchainTest, SpdlogFormatsWithItsOwnFmt) {
  std::ostringstream lines;
  spdlog::logger logger("toolchain", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines));
  logger.set_pattern("%l %v");
  logger.info("sum={}", at::arange(4).sum().item<int64_t>());
  EXPECT_EQ(lines.str(), "info sum=6\n");
}

TEST(ToolchainTest, GlooReducesOverAWorldOfOne) {
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(
      c10d::ProcessGroupGloo::createDeviceForInterface("lo", /*lazyInit=*/false));
  c10d::ProcessGroupGloo group(c10::make_intrusive<c10d::HashStore>(), /*rank=*/0, /*size=*/1,
                               std::move(options));
  std::vector<at::Tensor> tensors = {at::arange(5)};
  ASSERT_TRUE(group.allreduce(tensors)->wait());
  EXPECT_TRUE(at::equal(tensors[0], at::arange(5)));
}

TEST(ToolchainTest, UcxReportsItsVersion) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  EXPECT_EQ(major, unsigned{UCP_API_MAJOR});
  EXPECT_GE(minor, unsigned{UCP_API_MINOR});
}

TEST(ToolchainTest, ExceptionsOfLibTorchAreCaught) {
  EXPECT_THAT(
      [] {
        at::arange(3).reshape({2, 2});
      },
      testing::ThrowsMessage<c10::Error>(testing::HasSubstr("invalid for input of size 3")));
}

}  // namespace
}  // namespace meshrun
