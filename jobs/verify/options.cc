#include "jobs/verify/options.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "jobs/runtime/job.h"
#include "jobs/runtime/words.h"

namespace meshrun::verify {
namespace {

constexpr char kDescription[] =
    "Verifies a site: what it is, whether the library's results are right on it, how fast its\n"
    "memory, links and file system are, and what becomes of a lost rank. Prints a row for each "
    "and\n"
    "writes them to one JSON file without names of hosts or users. Exit code 1 where one is wrong.";

constexpr char kExamples[] =
    "Examples:\n"
    "  meshrun verify                                             this host\n"
    "  meshrun submit --follow --nodes 2 --max-restarts 1 --job verify   two hosts of a cluster\n"
    "  mpirun -n 4 verify --dir /scratch                          as a rank of another launcher";

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, "verify");
  app.footer(kExamples);
  app.option_defaults()->always_capture_default();
  app.add_option("--dir", options.directory,
                 "Directory on the file system to verify; a checkpoint of 31 MB is written there")
      ->check(CLI::ExistingDirectory);
  // Its directory need not be on the hosts of other ranks: rank 0 looks for it.
  app.add_option("--report", options.report, "The JSON file, of rank 0; empty or /dev/null: none");
  app.add_option("--gpu-check", options.gpu_check, "What gpu-check ended with, for the report")
      ->check(CLI::IsMember({"passed", "failed", "no-gpu"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help() << std::flush;
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw jobs::UsageError(std::string(error.what()) + " (see verify --help)");
  }
  // A file that is written whole takes the place of what is there.
  if (options.report == "/dev/null") options.report.clear();
  options.directory = jobs::absolute(options.directory);
  options.report = jobs::absolute(options.report);
  return options;
}

}  // namespace meshrun::verify
