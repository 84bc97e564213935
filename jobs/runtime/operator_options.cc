#include "jobs/runtime/operator_options.h"

#include <CLI/CLI.hpp>

namespace meshrun::jobs {

void add_operator_flags(CLI::App& app, OperatorOptions& options, const std::string& sample) {
  app.add_option("--batch", options.batch, "Samples per step, all ranks together")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--weight-decay", options.weight_decay, "AdamW's")->check(CLI::Range(0.0, 1.0));
  app.add_option("--width", options.width, "Channels of the operator's layers")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  app.add_option("--modes", options.modes, "Wave numbers kept along each side")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  app.add_option("--layers", options.layers, "Fourier layers")
      ->check(CLI::Range(int64_t{1}, int64_t{64}));
  app.add_option("--spatial", options.spatial,
                 "Ranks that share a " + sample + ", if the launcher gave no mesh")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
}

std::map<std::string, std::string> identity_of(const OperatorOptions& options) {
  return {{"--batch", std::to_string(options.batch)},
          {"--weight-decay", std::to_string(options.weight_decay)},
          {"--width", std::to_string(options.width)},
          {"--modes", std::to_string(options.modes)},
          {"--layers", std::to_string(options.layers)}};
}

}  // namespace meshrun::jobs
