// Command-line flags of LoopHealth, the same for every daemon.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "core/rpc/loop_health.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::rpc {

struct HealthFlags {
  std::string ready_timeout = "5s";
  std::string live_timeout = "10m";
};

inline void AddHealthFlags(CLI::App& app, HealthFlags* flags) {
  app.add_option("--ready-timeout", flags->ready_timeout,
                 "Health service meshrun.ready: NOT_SERVING when this process has stalled for so "
                 "long (2s at least)")
      ->capture_default_str();
  app.add_option("--live-timeout", flags->live_timeout,
                 "Health service \"\": NOT_SERVING when this process has stalled for so long")
      ->capture_default_str();
}

// INVALID_ARGUMENT names the flag.
inline absl::StatusOr<LoopHealth::Options> ParseHealthFlags(const HealthFlags& flags) {
  const auto ready = ParseDuration(flags.ready_timeout);
  if (!ready.ok()) return Annotate(ready.status(), "--ready-timeout");
  const auto live = ParseDuration(flags.live_timeout);
  if (!live.ok()) return Annotate(live.status(), "--live-timeout");
  const LoopHealth::Options options = {*ready, *live};
  MESHRUN_RETURN_IF_ERROR(LoopHealth::Check(options));
  return options;
}

}  // namespace meshrun::rpc
