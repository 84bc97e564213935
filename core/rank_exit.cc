#include "core/rank_exit.h"

#include <fmt/format.h>

#include "core/signal_name.h"

namespace meshrun {
namespace {

// With its verb: "was killed by ...".
std::string Predicate(const v1::RankExit& exit) {
  return (exit.signal() != 0 ? "was " : "") + DescribeEnd(exit);
}

std::string Where(std::string_view node_name) {
  return node_name.empty() ? "" : fmt::format(" on {}", node_name);
}

std::string Error(const v1::RankExit& exit) {
  const std::string& message = exit.error_message();
  return message.empty() ? "" : ": " + message.substr(0, message.find('\n'));
}

}  // namespace

bool ExitedCleanly(const v1::RankExit& exit) { return exit.exit_code() == 0 && exit.signal() == 0; }

std::string DescribeEnd(const v1::RankExit& exit) {
  if (exit.signal() == 0) return fmt::format("ended with exit code {}", exit.exit_code());
  const std::string name = SignalName(exit.signal());
  return name.starts_with("SIG") ? fmt::format("killed by signal {} ({})", exit.signal(), name)
                                 : "killed by " + name;
}

std::string RankEndSentence(const v1::RankExit& exit, std::string_view node_name) {
  return fmt::format("rank {}{} {}{}", exit.rank(), Where(node_name), Predicate(exit), Error(exit));
}

std::string PeerEndSentence(const v1::RankExit& exit, std::string_view node_name) {
  return fmt::format("it {}{}{}", Predicate(exit), Where(node_name), Error(exit));
}

}  // namespace meshrun
