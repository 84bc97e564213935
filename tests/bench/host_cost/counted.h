// Runs a program of rows under callgrind: the counts do not depend on the machine's load.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace meshrun::bench {

struct Counted {
  std::string libtorch;     // the version, "2.15"
  double instructions = 0;  // of one call
  int64_t allocations = 0;
  int64_t peak_bytes = 0;
  int64_t copied_bytes = 0;
};

// By row. Fails the test where the program ends badly.
std::map<std::string, Counted> count_under_callgrind(const std::string& program);

// Expects the rows of the file to take the multiple of the reference row's instructions that is
// recorded of this LibTorch, within 5 percent. Skips the test where none is.
void expect_recorded_ratios(std::map<std::string, Counted>& counted, const std::string& reference,
                            const std::string& file);

}  // namespace meshrun::bench
