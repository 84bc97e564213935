// meshrun version.
#include "core/version.h"

#include <fmt/format.h>
#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

#include "client/cli/context.h"
#include "core/exit_codes.h"

namespace meshrun::client {

void AddVersion(FlagSet& root, Commands* commands) {
  FlagSet flags = root.Command("version", "Says which version this is");
  flags.ListUnder("Set up");
  commands->push_back({flags.app(), [] {
                         fmt::print(
                             "meshrun {} (gRPC {}, protobuf {})\n", kVersion, grpc::Version(),
                             google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION));
                         return static_cast<int>(kExitOk);
                       }});
}

}  // namespace meshrun::client
