#include "jobs/pressure/options.h"

#include <CLI/CLI.hpp>

namespace meshrun::pressure {

void add_flags(CLI::App& app, Options& options) {
  darcy::add_data_flags(app, options);
  app.add_option("--batch", options.batch, "Samples per step, all ranks together")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--weight-decay", options.weight_decay, "AdamW's")->check(CLI::Range(0.0, 1.0));
  app.add_option("--domain", options.domain,
                 "Ranks that share a sample, if the launcher gave no mesh")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_flag("--recompute", options.recompute,
               "Compute activations again in the backward pass instead of keeping them");
}

}  // namespace meshrun::pressure
