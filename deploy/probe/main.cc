// Asks a server for its health (grpc.health.v1) over mutual TLS or a Unix socket: what the probes
// of a pod and of monitoring run. The kubelet's own gRPC probe speaks plaintext only, which no
// meshrun process accepts over TCP.
//
// Exit codes: 0 serving; 1 not serving; 2 wrong call; 75 no answer within the timeout.
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <string>

#include "core/exit_codes.h"
#include "core/rpc/channel.h"
#include "core/rpc/security_flags.h"
#include "deploy/probe/health.grpc.pb.h"

namespace {

namespace health = grpc::health::v1;

using meshrun::ExitCode;
constexpr ExitCode kServing = meshrun::kExitOk;
constexpr ExitCode kNotServing = meshrun::kExitJobFailed;
constexpr ExitCode kUsage = meshrun::kExitUsage;
constexpr ExitCode kNoAnswer = meshrun::kExitTryAgain;

struct Options {
  std::string address;
  std::string service;
  double timeout_seconds = 2;
  meshrun::rpc::Security security;
};

int Probe(const Options& options) {
  const auto channel =
      meshrun::rpc::MakeChannel("meshrun-probe", options.address, options.security);
  if (!channel.ok()) {
    std::cerr << channel.status().message() << "\n";
    return absl::IsNotFound(channel.status()) ? kNoAnswer : kUsage;
  }
  const std::string warning = meshrun::rpc::InsecureWarning(options.address, options.security);
  if (!warning.empty()) std::cerr << "meshrun-probe: " << warning << "\n";
  const auto stub = health::Health::NewStub(*channel);
  grpc::ClientContext context;
  context.set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1000)));
  // A server that is still starting is worth the whole timeout.
  context.set_wait_for_ready(true);
  health::HealthCheckRequest request;
  request.set_service(options.service);
  health::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) {
    std::cerr << "meshrun-probe: " << options.address << ": " << status.error_message() << "\n";
    return status.error_code() == grpc::StatusCode::NOT_FOUND ? kNotServing : kNoAnswer;
  }
  std::cout << health::HealthCheckResponse::ServingStatus_Name(response.status()) << "\n";
  return response.status() == health::HealthCheckResponse::SERVING ? kServing : kNotServing;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Asks a gRPC server for its health.\n\n"
      "  meshrun-probe localhost:7480 --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt\n"
      "  meshrun-probe unix:/var/lib/meshrun/agent.sock\n"};
  app.add_option("address", options.address, "host:port or unix:PATH")->required();
  app.add_option("--service", options.service, "one service instead of the server as a whole");
  app.add_option("--timeout", options.timeout_seconds, "seconds")->check(CLI::Range(0.01, 3600.0));
  meshrun::rpc::AddSecurityFlags(app, &options.security);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kServing : kUsage;
  }
  return Probe(options);
}
