#include "jobs/runtime/training_options.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "jobs/runtime/job.h"
#include "jobs/runtime/words.h"

namespace meshrun::jobs {
namespace {

void add_schedule(CLI::App& app, const CommandLine& line, TrainingOptions& options) {
  app.add_option("--steps", options.steps, "Training steps")->check(CLI::Range(int64_t{1}, kMany));
  // Without the check a negative number would wrap around.
  app.add_option("--seed", options.seed, "Of " + line.seeded)->check(CLI::NonNegativeNumber);
  app.add_option("--lr", options.learning_rate, "Peak of the one-cycle learning rate")
      ->check(CLI::Range(1e-9, 10.0));
}

void add_outputs(CLI::App& app, TrainingOptions& options) {
  app.add_option("--log-every", options.log_every, "Steps between lines of progress")
      ->check(CLI::Range(int64_t{1}, kMany));
  app.add_option("--checkpoint-dir", options.checkpoint_dir, "Where checkpoints are kept");
  app.add_option("--checkpoint-every", options.checkpoint_every, "Steps between checkpoints")
      ->check(CLI::Range(int64_t{1}, kMany));
  app.add_option("--keep-checkpoints", options.keep_checkpoints,
                 "Checkpoints that stay, the newest")
      ->check(CLI::Range(int64_t{1}, kMany));
  app.add_option("--keep-checkpoints-for", options.keep_checkpoints_for,
                 "Those of the last so many seconds stay, too; 0: age does not count")
      ->check(CLI::Range(int64_t{0}, kMany));
  app.add_option("--keep-checkpoints-every", options.keep_checkpoints_every,
                 "Those whose step is a multiple of it stay for ever; 0: none does")
      ->check(CLI::Range(int64_t{0}, kMany));
  app.add_option("--checkpoint-timeout", options.checkpoint_timeout,
                 "Limit for writing a checkpoint, in seconds, such as 1.5; 0: none")
      ->check(CLI::Range(0.0, 1e9));
  app.add_option("--on-commit", options.on_commit,
                 "Called with the directory of each checkpoint once it is durable; empty: nothing")
      ->type_name("PROGRAM");
  app.add_option("--snapshot-every", options.snapshot_every,
                 "Steps between snapshots in memory of a state that ranks hold in pieces; 0: none")
      ->check(CLI::Range(int64_t{0}, kMany));
  app.add_flag("--resume", options.resume,
               "Go on from the newest checkpoint, of any job; after a restart a job goes on from "
               "its own without it");
  app.add_option("--report", options.report, "Final report, JSON; empty: none")
      ->check(check_directory);
  app.add_option("--png", options.png, "Picture of truth, prediction and error; empty: none")
      ->check(check_directory);
  app.add_option("--dump-parameters", options.dump_parameters,
                 "Each rank r writes its final parameters to <PREFIX>-rank-<r>.safetensors")
      ->check(check_directory)
      ->type_name("PREFIX");
  app.add_flag("--no-evaluation", options.no_evaluation,
               "End after training: no test error, no picture");
}

}  // namespace

bool read_command_line(const CommandLine& line, int argc, const char* const* argv,
                       TrainingOptions& options,
                       const std::function<void(CLI::App& app)>& add_flags) {
  CLI::App app(line.description, options.job);
  app.footer(line.examples);
  app.option_defaults()->always_capture_default();
  add_flags(app);
  add_schedule(app, line, options);
  add_outputs(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help() << std::flush;
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + " (see " + options.job + " --help)");
  }
  if (options.resume && options.checkpoint_dir.empty()) {
    throw UsageError("--resume needs --checkpoint-dir, the directory to resume from");
  }
  // Else a loss would take the job back behind a checkpoint that it has written.
  if (!options.checkpoint_dir.empty() && options.snapshot_every > options.checkpoint_every) {
    throw UsageError("--snapshot-every " + std::to_string(options.snapshot_every) +
                     " is more than --checkpoint-every " +
                     std::to_string(options.checkpoint_every) +
                     ": snapshots are for steps since a checkpoint");
  }
  return true;
}

}  // namespace meshrun::jobs
