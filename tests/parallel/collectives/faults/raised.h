// What ranks say of an error that a collective raised, one line each, and how the test reads it.
//
//   on a rank     note_raised("sizes disagree", [&] { all_gather_v(x, sizes); });
//   in the test   for (const Raised& raised : raised_in(result.output)) ...
//
// Times are of CLOCK_MONOTONIC, which all processes of a host share.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun {

struct Raised {
  std::string name;  // of the case
  std::string kind;  // of the exception, "mismatch"; "nothing" where none was raised
  std::string text;  // without line breaks
  std::chrono::nanoseconds at{0};
  std::chrono::milliseconds took{0};
};

// Calls, writes the line, returns whether anything was raised.
bool note_raised(const std::string& name, const std::function<void()>& call);
// Writes the time alone; safe right before a kill.
void note_time(const char* name);

// "mismatch", "argument", "deadlock", "peer left", "peer lost", "timeout", "aborted", "transport",
// or "another type".
std::string kind_of(const std::exception& error);

// All lines of that kind in an output, in their order. Other lines, such as a log's, are passed
// over.
std::vector<Raised> raised_in(const std::string& output);

}  // namespace meshrun
