// meshrun version.
#include "core/version.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "client/cli/context.h"
#include "core/exit_codes.h"

namespace meshrun::client {

void AddVersion(FlagSet& root, Commands* commands) {
  auto output = std::make_shared<std::string>();
  FlagSet flags = root.Command("version", "Says which version this is");
  flags.ListUnder("Set up");
  AddOutputFlag(flags, output.get());
  commands->push_back(
      {flags.app(), [output] {
         const std::string protobuf =
             google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
         if (*output == "json") {
           const nlohmann::ordered_json out = {
               {"version", kVersion}, {"grpc", grpc::Version()}, {"protobuf", protobuf}};
           fmt::print("{}\n", out.dump(2));
         } else {
           fmt::print("meshrun {} (gRPC {}, protobuf {})\n", kVersion, grpc::Version(), protobuf);
         }
         return static_cast<int>(kExitOk);
       }});
}

}  // namespace meshrun::client
