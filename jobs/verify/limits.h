// When a figure of a site is wrong, and why there: docs/verify.md has the same numbers.
//
// Pure, without LibTorch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "jobs/verify/report.h"

namespace meshrun::verify {

struct Verdict {
  Result result = Result::kOk;
  // What the figures are, and where they are wrong what that usually means.
  std::string found;
};

// 100 Mbit/s: no server network is so slow. An interface that is has fallen back to an older
// speed, by a cable or a port, or traffic is shaped.
inline constexpr double kSlowestLink = 12.5e6;  // bytes per second
// A tenth of what the interface says is a warning: several hosts may share its way.
inline constexpr double kLeastShareOfInterface = 0.1;
// `interface_rate`: bytes per second of the fastest interface that both hosts have.
Verdict judge_link(double bytes_per_second, double round_trip_seconds,
                   std::optional<double> interface_rate);

// Hosts that run NTP are within milliseconds of each other. Beyond a second, lines of two hosts'
// logs stand in the wrong order and files come from the future.
inline constexpr double kMostClockOffset = 1.0;  // seconds
inline constexpr double kClockWarning = 0.1;     // seconds
// `offset`: how far the other host's clock is ahead. `host`: its number.
Verdict judge_clock(double offset, double round_trip_seconds, int host);

// A disk of the slowest kind reads and writes faster.
inline constexpr double kSlowestFiles = 10e6;  // bytes per second
Verdict judge_files(double bytes, double write_seconds, double read_seconds);

// Values of alike devices: less than half of the best one is a warning, since they share work
// evenly. `names` is what each value is of.
Verdict judge_alike(const std::vector<double>& rates, const std::vector<std::string>& names);

// "12.5 MB/s", "1.21 GB/s"; "35.1 us", "1.20 ms", "3.00 s"; "4 KiB", "16 MiB".
std::string rate_text(double bytes_per_second);
std::string time_text(double seconds);
std::string size_text(double bytes);

}  // namespace meshrun::verify
