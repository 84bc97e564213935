// How far a command is that reads many bytes, as a line. Pure: time is passed in.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace meshrun::client {

class ProgressLine {
 public:
  using Time = std::chrono::steady_clock::time_point;

  ProgressLine(std::string what, Time begin) : what_(std::move(what)), begin_(begin) {}

  // "verified 1.2 GiB of 4.0 GiB (30%), 650.0 MiB/s, 4s left". Absent during the first 2 s, and
  // within 200 ms of the line before.
  std::optional<std::string> Next(uint64_t done, uint64_t all, Time now);

 private:
  const std::string what_;
  const Time begin_;
  std::optional<Time> last_;
};

}  // namespace meshrun::client
