#include "tests/fuzz/parsers.h"

#include "client/command_line.h"
#include "client/job_file.h"
#include "client/job_spec.h"
#include "core/certificates/authority.h"
#include "core/certificates/certificate.h"
#include "core/checkpoint/manifest.h"
#include "core/env_entries.h"
#include "core/framing.h"
#include "core/job_spec.h"
#include "core/mesh.h"
#include "core/rpc/roles.h"
#include "core/rpc/status_conversion.h"
#include "core/text.h"
#include "core/wait_bytes.h"
#include "meshrun/v1/supervisor.pb.h"
#include "tests/fuzz/messages.h"
#include "tests/fuzz/tensor_files.h"
#include "worker/supervisor/exit_report.h"
#include "worker/supervisor/report.h"

namespace meshrun::fuzz {
namespace {

constexpr size_t kLongestFrame = 1 << 16;

void ParseFrames(std::string_view bytes) {
  FrameBuffer buffer;
  // In two parts, as a socket delivers them.
  buffer.Append(bytes.substr(0, bytes.size() / 2));
  while (buffer.Next(kLongestFrame)) {
  }
  buffer.Append(bytes.substr(bytes.size() / 2));
  while (const auto frame = buffer.Next(kLongestFrame)) {
    v1::SupervisorRequest request;
    v1::SupervisorResponse response;
    (void)request.ParseFromString(*frame);
    (void)response.ParseFromString(*frame);
  }
}

std::string Framed(const std::string& message) {
  std::string out;
  AppendFrame(message, &out);
  return out + out;
}

std::string SupervisorStart() {
  v1::SupervisorRequest request;
  SetEnv(*request.mutable_start()->mutable_env(), "MASTER_PORT", "1");
  return Framed(request.SerializeAsString());
}

std::string CertificatePem() {
  const certificates::Validity validity = {.not_before = std::chrono::hours(1),
                                           .not_after = std::chrono::hours(1 << 19)};
  const auto authority = certificates::MakeAuthority("a", validity);
  const auto made = authority.ok() ? certificates::Issue(*authority,
                                                         {.common_name = "w",
                                                          .uris = {"urn:meshrun:node:w"},
                                                          .hosts = {"head", "10.0.0.1"},
                                                          .server = true},
                                                         validity)
                                   : authority.status();
  return made.ok() ? made->cert_pem : "";
}

std::string ManifestText() {
  Manifest manifest;
  manifest.identity = {{"job", "geoid"}};
  manifest.optimizer_options = {{{"lr", 0.1}}};
  Manifest::File& file = manifest.files["model.safetensors"];
  file.bytes = 3000;
  file.chunks = {{1024, {1, 2}}, {3000, {3, 4}}};
  file.pieces = {{"w.0", {"w", {8, 4}, {4, 0}}}};
  return EncodeManifest(manifest);
}

std::vector<Parser> MakeParsers() {
  const auto ignored = [](const auto&...) {};
  std::vector<Parser> parsers = {
      {"report",
       [](std::string_view bytes) {
         v1::Progress progress;
         worker::MergeReport(bytes, &progress);
       },
       {R"({"step": 12, "total_steps": 100, "loss": 0.5, "note": "x", "rate": 1e300})", "{}"}},
      {"error_file",
       [=](std::string_view bytes) { ignored(worker::ErrorFileMessage(bytes)); },
       {R"({"message": {"message": "E: text", "extraInfo": {"timestamp": 1}}})",
        R"({"message": "text", "timestamp": 1})"}},
      {"last_lines",
       [=](std::string_view bytes) {
         ignored(worker::LastLines(bytes, true), worker::LastLines(bytes, false));
       },
       {"one\ntwo\r three\r\n\xff\xfe\n\n"}},
      {"frames", ParseFrames, {SupervisorStart()}},
      {"certificate",
       [=](std::string_view bytes) { ignored(certificates::ReadCertificate(bytes)); },
       {CertificatePem()}},
      {"identity",
       [=](std::string_view bytes) {
         const std::string text(bytes);
         ignored(rpc::CheckCall(rpc::MakeIdentity(text, {text}), text));
       },
       {"urn:meshrun:role:submit", "urn:meshrun:node:a", "/meshrun.v1.JobService/GetJob"}},
      {"job_file",
       [=](std::string_view bytes) { ignored(client::ParseJobText(std::string(bytes), "f")); },
       {"name: a\ncommand: [./train, --x]\nnodes: 1:4\nenv: {A: b}\nmesh: dp=-1\n",
        ",command: ./train\n"}},
      {"words",
       [=](std::string_view bytes) {
         ignored(client::SplitCommandLine(bytes), client::ParseNodeRange(bytes),
                 client::ParseProcsPerNode(bytes, true), ParseMesh(bytes), ParseDuration(bytes),
                 ParseBytes(bytes), ParseRanks(bytes), CheckJobName(bytes),
                 JobNameFromCommand(bytes));
       },
       {"dp=-1,spatial=2", "1h30m", "64G", "0-3,7", "2:8", "a 'b c' \"d\"", "./Train_UNet.py"}},
      {"waits",
       [=](std::string_view bytes) { ignored(ParseWaitReport(bytes), ParseWaitVerdict(bytes)); },
       {WaitReportBytes()}},
      {"error_status",
       [=](std::string_view bytes) {
         ignored(rpc::FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "x", std::string(bytes))));
       },
       {ErrorStatusBytes()}},
      {"job_spec",
       [](std::string_view bytes) {
         v1::JobSpec spec;
         if (spec.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
           (void)NormalizeJobSpec(spec);
         }
       },
       {JobSpecBytes()}},
      {"coordinator_event", StepStateMachine, EventSeeds()},
      {"manifest",
       [=](std::string_view bytes) { ignored(DecodeManifest("m", std::string(bytes))); },
       {ManifestText()}},
  };
  for (Parser& parser : TensorFileParsers()) parsers.push_back(std::move(parser));
  return parsers;
}

}  // namespace

const std::vector<Parser>& Parsers() {
  static const auto* const parsers = new std::vector<Parser>(MakeParsers());
  return *parsers;
}

}  // namespace meshrun::fuzz
