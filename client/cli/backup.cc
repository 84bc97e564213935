// meshrun backup: the coordinator's state as a file.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "client/cli/context.h"
#include "core/exit_codes.h"
#include "core/os/files.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

struct BackupFlags {
  CoordinatorFlags coordinator;
  std::string file;
  std::string output;
};

// A backup replaces the file as a whole. A mistyped name must not cost the user another file.
absl::Status CheckTarget(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return absl::OkStatus();
  if (status.type() != std::filesystem::file_type::regular)
    return absl::InvalidArgumentError(fmt::format("{} is not a file: name a file", path));
  const auto begin = os::ReadFile(path);
  if (!begin.ok()) return begin.status();
  if (begin->empty() || begin->starts_with("SQLite format 3")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} is there, and is no backup: name another file, or remove it", path));
}

int Run(const BackupFlags& flags) {
  if (flags.file.empty()) return Fail(absl::InvalidArgumentError("FILE is empty: name a file"));
  if (const absl::Status status = CheckTarget(flags.file); !status.ok()) return Fail(status);
  const auto client = ConnectTo(flags.coordinator);
  if (!client.ok()) return Fail(client.status());
  uint64_t term = 0;
  const auto state = (*client)->Backup(&term);
  if (!state.ok()) return Fail(state.status());
  // Whole, or not at all: what was there before stays until then.
  std::error_code error;
  const auto target = std::filesystem::weakly_canonical(flags.file, error);
  if (const absl::Status status =
          os::WriteFileAtomically(error ? flags.file : target.string(), *state, 0600);
      !status.ok())
    return Fail(status);
  if (flags.output == "json") {
    Print(nlohmann::json({{"file", flags.file}, {"bytes", state->size()}, {"term", term}}).dump() +
          "\n");
  } else {
    Print(fmt::format("{}  {}, term {}\n", flags.file, FormatBytes(state->size()), term));
  }
  return kExitOk;
}

}  // namespace

void AddBackup(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<BackupFlags>();
  FlagSet flags = root.Command(
      "backup",
      "Writes the coordinator's state into a file, while it runs\n\n"
      "With TLS it takes the role operate: the file holds what users hide from each other, the "
      "values of their\nenvironments among it. A coordinator that is started with --restored on it "
      "finds out what runs, and lets\nthat go on (docs/operations.md, \"Backup and repair\").");
  flags.Examples(
      "  meshrun backup /backups/meshrun-$(date +%F).sqlite\n"
      "\n"
      "  mkdir -m 700 state && cp meshrun-2026-11-01.sqlite state/state.sqlite\n"
      "  meshrun-coordinator --restored --state-dir state");
  flags.ListUnder("Hosts");
  flags.Argument("FILE", &values->file, /*required=*/true,
                 "Where to write it; replaced as a whole");
  AddOutputFlag(flags, &values->output);
  AddCoordinatorFlags(flags, &values->coordinator);
  commands->push_back({flags.app(), [values] { return Run(*values); }});
}

}  // namespace meshrun::client
