// Makes the calls that standard input lists, one per line: the method's name and its request as
// JSON. Prints a JSON object per call, in their order: code, message, seconds, how many responses
// came, and the last one. What no client of ours would send can be sent by it.
#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <deque>
#include <iostream>
#include <memory>
#include <string>

#include "core/mutex.h"
#include "core/rpc/channel.h"
#include "core/rpc/roles.h"
#include "core/rpc/security_flags.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/job_service.pb.h"
#include "meshrun/v1/session.pb.h"
#include "meshrun/v1/store_service.pb.h"

namespace meshrun {
namespace {

using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

// Null: no service has it.
const MethodDescriptor* FindMethod(const std::string& name) {
  // The services are linked.
  v1::ListJobsRequest::descriptor();
  v1::ListNodesRequest::descriptor();
  v1::OpenSessionRequest::descriptor();
  v1::SetValuesRequest::descriptor();
  const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
  for (const rpc::MethodRule& rule : rpc::MethodRules()) {
    std::string path(rule.method.substr(1));
    std::replace(path.begin(), path.end(), '/', '.');
    const MethodDescriptor* const method = pool->FindMethodByName(path);
    if (method != nullptr && method->name() == name) return method;
  }
  return nullptr;
}

std::unique_ptr<Message> NewMessage(const google::protobuf::Descriptor* type) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

std::string JsonOf(const Message& message) {
  std::string text;
  google::protobuf::util::MessageToJsonString(message, &text).ok();
  return text;
}

std::string Quoted(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  return JsonOf(value);
}

class Call : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Call(grpc::GenericStub& stub, const MethodDescriptor* method, const std::string& bytes)
      : method_(method), began_(std::chrono::steady_clock::now()) {
    const grpc::Slice slice(bytes);
    request_ = grpc::ByteBuffer(&slice, 1);
    rpc::SetTimeout(context_, std::chrono::seconds(120));
    stub.PrepareBidiStreamingCall(
        &context_, fmt::format("/{}/{}", method->service()->full_name(), method->name()), {}, this);
    StartWrite(&request_, grpc::WriteOptions().set_last_message());
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++responses_;
    last_ = response_;
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    MutexLock lock(mu_);
    status_ = status;
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    done_ = true;
    changed_.NotifyAll();
  }

  // Waits for the end.
  std::string Result() {
    MutexLock lock(mu_);
    while (!done_) changed_.Wait(mu_);
    std::string bytes;
    std::vector<grpc::Slice> slices;
    if (last_.Valid() && last_.Dump(&slices).ok()) {
      for (const grpc::Slice& slice : slices)
        bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    const std::unique_ptr<Message> response = NewMessage(method_->output_type());
    response->ParseFromString(bytes);
    return fmt::format(
        R"({{"code": {}, "message": {}, "seconds": {:.6f}, "responses": {}, "bytes": {}, )"
        R"("response": {}}})",
        status_.error_code(), Quoted(status_.error_message()), seconds_, responses_, bytes.size(),
        JsonOf(*response));
  }

 private:
  const MethodDescriptor* const method_;
  const std::chrono::steady_clock::time_point began_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_, response_, last_;
  uint64_t responses_ = 0;
  Mutex mu_;
  CondVar changed_;
  bool done_ MESHRUN_GUARDED_BY(mu_) = false;
  grpc::Status status_ MESHRUN_GUARDED_BY(mu_);
  double seconds_ MESHRUN_GUARDED_BY(mu_) = 0;
};

int Run(const std::string& address, const rpc::Security& security, size_t at_once) {
  const auto channel = rpc::MakeChannel("call", address, security);
  if (!channel.ok()) {
    fmt::print(stderr, "call: {}\n", std::string(channel.status().message()));
    return 2;
  }
  grpc::GenericStub stub(*channel);
  std::deque<std::unique_ptr<Call>> calls;
  const auto end_one = [&calls] {
    fmt::print("{}\n", calls.front()->Result());
    calls.pop_front();
  };
  for (std::string line; std::getline(std::cin, line);) {
    const size_t space = line.find(' ');
    const MethodDescriptor* const method = FindMethod(line.substr(0, space));
    if (method == nullptr) {
      fmt::print(stderr, "call: no method '{}'\n", line.substr(0, space));
      return 2;
    }
    const std::unique_ptr<Message> request = NewMessage(method->input_type());
    const auto parsed = google::protobuf::util::JsonStringToMessage(
        space == std::string::npos ? "{}" : line.substr(space + 1), request.get());
    if (!parsed.ok()) {
      fmt::print(stderr, "call: {}: {}\n", method->name(), parsed.ToString().substr(0, 300));
      return 2;
    }
    if (calls.size() == at_once) end_one();
    calls.push_back(std::make_unique<Call>(stub, method, request->SerializeAsString()));
  }
  while (!calls.empty()) end_one();
  return 0;
}

}  // namespace
}  // namespace meshrun

int main(int argc, char** argv) {
  std::string address;
  size_t at_once = 1;
  meshrun::rpc::Security security;
  CLI::App app("Makes the calls that standard input lists: `METHOD JSON` in each line.");
  app.add_option("--coordinator", address)->required();
  app.add_option("--at-once", at_once, "Calls that are under way together");
  meshrun::rpc::AddSecurityFlags(app, &security);
  CLI11_PARSE(app, argc, argv);
  return meshrun::Run(address, security, at_once);
}
