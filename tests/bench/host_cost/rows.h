// Rows of a program that says what calls cost on the host: a median of microseconds, or counts of
// one call: allocations, copied bytes and, under callgrind, instructions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace meshrun::bench {

struct Row {
  std::string name;
  std::function<void()> run;
};

// The median of batches, so that a clock's reading costs nothing; batches of the rows take turns,
// so that the machine's moods are theirs alike.
std::vector<double> microseconds(const std::vector<Row>& rows);

// Prints a line of JSON and, under callgrind, leaves a dump of the instructions of 100 calls.
// `copied_bytes`: what has been copied so far.
void count(const Row& row, const std::function<int64_t()>& copied_bytes);

}  // namespace meshrun::bench
