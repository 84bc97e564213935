// Command-line flags that the shipped jobs share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <string>

namespace meshrun::jobs {

inline constexpr int64_t kMany = 1'000'000'000;

// An output file can be written only where its directory exists; better said before training than
// after.
inline std::string check_directory(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (path.empty() || directory.empty() || std::filesystem::is_directory(directory)) return "";
  return "the directory " + directory.string() + " does not exist";
}

// Progress, checkpoints and what the job leaves behind: the members of `options` of these names.
template <typename Options>
void add_common_flags(CLI::App& app, Options& options) {
  app.add_option("--log-every", options.log_every, "Steps between lines of progress")
      ->check(CLI::Range(int64_t{1}, kMany));
  app.add_option("--checkpoint-dir", options.checkpoint_dir, "Where checkpoints are kept");
  app.add_option("--checkpoint-every", options.checkpoint_every, "Steps between checkpoints")
      ->check(CLI::Range(int64_t{1}, kMany));
  app.add_option("--keep-checkpoints", options.keep_checkpoints,
                 "Checkpoints that stay, the newest")
      ->check(CLI::Range(int64_t{1}, kMany));
  app.add_flag("--resume", options.resume, "Go on from the newest checkpoint, if there is one");
  app.add_option("--report", options.report, "Final report, JSON; empty: none")
      ->check(check_directory);
  app.add_option("--png", options.png, "Picture of truth, prediction and error; empty: none")
      ->check(check_directory);
  app.add_option("--dump-parameters", options.dump_parameters,
                 "Each rank r writes its final parameters to <PREFIX>-rank-<r>.safetensors")
      ->check(check_directory)
      ->type_name("PREFIX");
}

}  // namespace meshrun::jobs
