#include "core/slurm.h"

#include <fmt/format.h>

namespace meshrun {

absl::StatusOr<std::string> FirstHost(const std::string& hostlist) {
  const size_t end = hostlist.find_first_of(",[");
  std::string host = hostlist.substr(0, end);
  size_t at = end;
  // "rack[1-2]n[03-07]" has several brackets; each gives its first number.
  while (at < hostlist.size() && hostlist[at] == '[') {
    const size_t close = hostlist.find(']', at);
    const size_t stop = hostlist.find_first_of("-,]", at);
    if (close == std::string::npos || stop == at + 1) {
      return absl::InvalidArgumentError(fmt::format("\"{}\" is not a Slurm hostlist", hostlist));
    }
    host += hostlist.substr(at + 1, stop - at - 1);
    at = hostlist.find_first_of(",[", close + 1);
    host += hostlist.substr(close + 1, at == std::string::npos ? at : at - close - 1);
  }
  if (host.empty()) {
    return absl::InvalidArgumentError(fmt::format("\"{}\" names no host", hostlist));
  }
  return host;
}

}  // namespace meshrun
