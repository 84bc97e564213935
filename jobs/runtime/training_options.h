// The options that every training job has, and how a job reads its command line.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace meshrun::jobs {

// A job's own options derive from these, and set defaults of their own.
struct TrainingOptions {
  // Report and picture are named after the job.
  explicit TrainingOptions(const std::string& job)
      : job(job), report(job + ".json"), png(job + ".png") {}

  std::string job;
  int64_t steps = 1000;
  uint64_t seed = 1;
  // The peak of the one-cycle schedule.
  double learning_rate = 1e-3;

  int64_t log_every = 50;
  // Empty: no checkpoints.
  std::string checkpoint_dir;
  int64_t checkpoint_every = 200;
  int64_t keep_checkpoints = 2;
  int64_t keep_checkpoints_for = 0;    // seconds; 0: age does not count
  int64_t keep_checkpoints_every = 0;  // steps; 0: none stays for ever
  double checkpoint_timeout = 0;       // seconds; 0: no limit
  std::string on_commit;
  bool resume = false;
  int64_t snapshot_every = 0;  // steps; 0: no snapshots in memory
  // Empty: not written.
  std::string report;
  std::string png;
  std::string dump_parameters;
  // Neither the errors on what training has not seen nor the picture.
  bool no_evaluation = false;
};

// What --help says.
struct CommandLine {
  std::string description;
  std::string examples;
  // What --seed determines.
  std::string seeded = "the initial network and the batches";
};

// Reads the flags that `add_flags` adds and those of TrainingOptions. Returns false where --help
// was asked for and has been printed. Raises UsageError, which says which flag is wrong and why.
bool read_command_line(const CommandLine& line, int argc, const char* const* argv,
                       TrainingOptions& options,
                       const std::function<void(CLI::App& app)>& add_flags);

// The same for a job's own options. `options` are the defaults; absent after --help.
template <typename Options>
std::optional<Options> read_options(const CommandLine& line, int argc, const char* const* argv,
                                    void (*add_flags)(CLI::App& app, Options& options),
                                    Options options = {}) {
  const auto add = [&](CLI::App& app) { add_flags(app, options); };
  if (!read_command_line(line, argc, argv, options, add)) return std::nullopt;
  return options;
}

// Counts that only memory and patience limit.
inline constexpr int64_t kMany = 1'000'000'000;

}  // namespace meshrun::jobs
