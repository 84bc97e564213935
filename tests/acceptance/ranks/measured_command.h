// What a command of a rank took; for programs that tests/acceptance/checkpoints runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun {

// Bytes of a line of /proc/self/status.
inline int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// Collective. `call` is what the program waits for, `rest` what goes on behind it. Returns "call":
// seconds of the call, "whole": seconds of both, "peak": the growth of this process's peak in
// bytes, and "raised": the text of a CheckpointError.
inline nlohmann::json measured(const std::function<void()>& call,
                               const std::function<void()>& rest) {
  using std::chrono::steady_clock;
  DistributedManager::get().world()->barrier()->wait();
  std::ofstream("/proc/self/clear_refs") << "5";
  const int64_t before = status_bytes("VmRSS:");
  const auto begin = steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(steady_clock::now() - begin).count();
  };
  double called = 0;
  std::string raised;
  try {
    call();
    called = seconds();
    rest();
  } catch (const CheckpointError& error) {
    raised = error.what_without_backtrace();
  }
  return {{"call", called},
          {"whole", seconds()},
          {"peak", status_bytes("VmHWM:") - before},
          {"raised", raised}};
}

}  // namespace meshrun
