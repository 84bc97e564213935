// meshrun completion: prints the completion script of a shell.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "client/cli/completion_scripts.h"
#include "client/cli/context.h"
#include "core/exit_codes.h"
#include "core/os/process.h"
#include "core/text.h"

namespace meshrun::client {

namespace {

namespace fs = std::filesystem;

// Where the worker looks: beside its room in a build tree, else where programs are installed.
std::vector<fs::path> JobDirectories(const std::string& worker) {
  const fs::path room = fs::path(worker).parent_path();
  return {room.parent_path() / "jobs", room / "jobs",
          room.parent_path() / "libexec" / "meshrun" / "jobs"};
}

bool IsProgram(const fs::path& path) {
  std::error_code error;
  return ::access(path.c_str(), X_OK) == 0 && fs::is_regular_file(path, error);
}

}  // namespace

std::vector<std::string> ShippedJobs(const std::string& worker) {
  std::vector<std::string> jobs;
  for (const fs::path& directory : JobDirectories(worker)) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(directory, error)) {
      if (entry.is_directory(error) && IsProgram(entry.path() / entry.path().filename())) {
        jobs.push_back(entry.path().filename());
      }
    }
  }
  std::sort(jobs.begin(), jobs.end(), NaturalLess);
  return jobs;
}

std::string ShippedJobProgram(const std::string& worker, const std::string& job, bool gpus) {
  for (const fs::path& directory : JobDirectories(worker)) {
    const std::string program = directory / job / job;
    if (gpus && IsProgram(program + "_cuda")) return program + "_cuda";
    if (IsProgram(program)) return program;
  }
  return "";
}

void AddCompletion(FlagSet& root, Commands* commands) {
  auto shell = std::make_shared<std::string>("bash");
  FlagSet flags = root.Command("completion", "Prints the completion script for bash, zsh or fish");
  flags.Examples(
      "  source <(meshrun completion bash)\n"
      "  meshrun completion bash > /etc/bash_completion.d/meshrun\n"
      "  meshrun completion zsh > ~/.zfunc/_meshrun      a directory of $fpath\n"
      "  meshrun completion fish | source");
  flags.ListUnder("Set up");
  flags.Argument("SHELL", shell.get(), /*required=*/false, "bash, zsh or fish");
  commands->push_back({flags.app(), [app = root.app(), shell] {
                         // What the scripts themselves ask, for --job.
                         if (*shell == "shipped-jobs") {
                           const auto worker = os::FindOwnProgram("meshrun-worker");
                           if (!worker.ok()) return Fail(worker.status());
                           for (const std::string& job : ShippedJobs(*worker)) {
                             fmt::print("{}\n", job);
                           }
                           return static_cast<int>(kExitOk);
                         }
                         const auto script = CompletionScript(*app, *shell);
                         if (!script.ok()) return Fail(script.status());
                         fmt::print("{}", *script);
                         return static_cast<int>(kExitOk);
                       }});
}

}  // namespace meshrun::client
