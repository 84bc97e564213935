// Reports of a rank as datagrams: docs/protocol.md, "Ranks". Never blocks; errors are dropped.
#pragma once

#include <string>

#include "agent/agent.h"
#include "core/os/fd.h"

namespace meshrun::agent {

// The datagram for `progress`: one JSON object. NaN and Infinity as Python's json writes them.
// Pure.
std::string FormatReport(const Progress& progress);

class ReportSocket {
 public:
  // An empty or unreachable path: reports go nowhere.
  explicit ReportSocket(const std::string& path);
  // The report is dropped when the supervisor's buffer is full or the supervisor is gone.
  // Thread-safe.
  void Send(const Progress& progress) const;

 private:
  os::UniqueFd fd_;
};

}  // namespace meshrun::agent
