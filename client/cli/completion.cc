// meshrun completion: prints the completion script of a shell.
#include <fmt/format.h>

#include <memory>

#include "client/cli/context.h"
#include "client/cli/help.h"
#include "core/exit_codes.h"

namespace meshrun::client {

void AddCompletion(FlagSet& root, Commands* commands) {
  auto shell = std::make_shared<std::string>("bash");
  FlagSet flags = root.Command("completion", "Prints the completion script for bash");
  flags.Examples(
      "  source <(meshrun completion bash)\n"
      "  meshrun completion bash > /etc/bash_completion.d/meshrun");
  flags.ListUnder("Set up");
  flags.Argument("SHELL", shell.get(), /*required=*/false, "bash");
  commands->push_back({flags.app(), [app = root.app(), shell] {
                         if (*shell != "bash") {
                           return Fail(absl::InvalidArgumentError(
                               fmt::format("there is no completion for '{}': write bash", *shell)));
                         }
                         fmt::print("{}", BashCompletion(*app));
                         return static_cast<int>(kExitOk);
                       }});
}

}  // namespace meshrun::client
