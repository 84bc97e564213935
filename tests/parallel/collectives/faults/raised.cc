#include "tests/parallel/collectives/faults/raised.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "c10/util/Exception.h"
#include "parallel/base/collective_errors.h"
#include "spdlog/fmt/fmt.h"

namespace meshrun {
namespace {

using Clock = std::chrono::steady_clock;

// The text comes last: it may have separators of its own.
constexpr char kSeparator = '|';
constexpr std::string_view kMark = "@raised";

std::string text_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  std::string text = ours != nullptr ? ours->what_without_backtrace() : error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// In one write(2): lines of several threads, and of a process that is killed, stay whole.
void write_line(const Raised& raised) {
  const std::string line =
      fmt::format("{0}{1}{2}{1}{3}{1}{4}{1}{5}{1}{6}\n", kMark, kSeparator, raised.name,
                  raised.kind, raised.at.count(), raised.took.count(), raised.text);
  std::fflush(stdout);
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, line.data(), line.size());
}

}  // namespace

std::string kind_of(const std::exception& error) {
  const auto is = [&]<typename Type>() { return dynamic_cast<const Type*>(&error) != nullptr; };
  if (is.operator()<CollectiveArgumentError>()) return "argument";
  if (is.operator()<CollectiveMismatchError>()) return "mismatch";
  if (is.operator()<CollectiveDeadlockError>()) return "deadlock";
  if (is.operator()<PeerLeftError>()) return "peer left";
  if (is.operator()<PeerLostError>()) return "peer lost";
  if (is.operator()<CollectiveTimeoutError>()) return "timeout";
  if (is.operator()<GroupAbortedError>()) return "aborted";
  if (is.operator()<TransportError>()) return "transport";
  return "another type";
}

bool note_raised(const std::string& name, const std::function<void()>& call) {
  const Clock::time_point start = Clock::now();
  Raised raised{.name = name, .kind = "nothing"};
  try {
    call();
  } catch (const std::exception& error) {
    raised.kind = kind_of(error);
    raised.text = text_of(error);
  }
  const Clock::time_point end = Clock::now();
  raised.at = end.time_since_epoch();
  raised.took = std::chrono::duration_cast<std::chrono::milliseconds>(end - start);
  write_line(raised);
  return raised.kind != "nothing";
}

void note_time(const char* name) {
  write_line({.name = name, .kind = "time", .at = Clock::now().time_since_epoch()});
}

std::vector<Raised> raised_in(const std::string& output) {
  std::vector<Raised> found;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    // A launcher may put the rank before it.
    const size_t begin = line.find(kMark);
    if (begin == std::string::npos) continue;
    std::istringstream rest(line.substr(begin));
    std::vector<std::string> fields(6);
    for (size_t i = 0; i < fields.size(); ++i) {
      std::getline(rest, fields[i], i + 1 < fields.size() ? kSeparator : '\n');
    }
    if (fields[4].empty()) continue;
    found.push_back({.name = fields[1],
                     .kind = fields[2],
                     .text = fields[5],
                     .at = std::chrono::nanoseconds(std::stoll(fields[3])),
                     .took = std::chrono::milliseconds(std::stoll(fields[4]))});
  }
  return found;
}

}  // namespace meshrun
