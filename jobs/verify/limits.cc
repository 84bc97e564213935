#include "jobs/verify/limits.h"

#include <algorithm>
#include <cmath>

#include "jobs/runtime/words.h"

namespace meshrun::verify {

using jobs::format;

std::string rate_text(double rate) {
  return rate < 1e9 ? format("%.3g MB/s", rate / 1e6) : format("%.3g GB/s", rate / 1e9);
}

std::string time_text(double seconds) {
  const double size = std::abs(seconds);
  if (size < 1e-3) return format("%.3g us", seconds * 1e6);
  return size < 1 ? format("%.3g ms", seconds * 1e3) : format("%.3g s", seconds);
}

std::string size_text(double bytes) {
  if (bytes < 1024) return format("%.0f B", bytes);
  return bytes < 1 << 20 ? format("%.4g KiB", bytes / 1024) : format("%.4g MiB", bytes / 1048576);
}

Verdict judge_link(double rate, double round_trip, std::optional<double> interface_rate) {
  const std::string figures = rate_text(rate) + format(" (%.3g Mbit/s)", rate * 8e-6) +
                              ", round trip " + time_text(round_trip);
  if (rate < kSlowestLink) {
    return {Result::kWrong,
            figures +
                ": slower than 100 Mbit/s, which no server network is: look at cable, port "
                "speed (ethtool) and traffic shaping (tc qdisc)"};
  }
  if (interface_rate && rate < kLeastShareOfInterface * *interface_rate) {
    return {Result::kWarning,
            figures + format(": less than a tenth of the interface's %.3g Gbit/s; "
                             "MESHRUN_NET_DEVICES names the interfaces to use",
                             *interface_rate * 8e-9)};
  }
  return {Result::kOk, figures};
}

Verdict judge_clock(double offset, double round_trip, int host) {
  // Nothing is known better than half a round trip.
  const double sure = std::max(0.0, std::abs(offset) - round_trip / 2);
  const std::string figures = "host " + std::to_string(host) + "'s clock is " +
                              time_text(std::abs(offset)) + (offset < 0 ? " behind" : " ahead of") +
                              " host 0's, known to within " + time_text(round_trip / 2);
  if (sure > kMostClockOffset) {
    return {Result::kWrong, figures + ": run NTP on both hosts (chronyc tracking, timedatectl)"};
  }
  if (sure > kClockWarning) return {Result::kWarning, figures + ": does NTP run on both hosts?"};
  return {Result::kOk, figures};
}

Verdict judge_files(double bytes, double write_seconds, double read_seconds) {
  const double written = bytes / std::max(write_seconds, 1e-9);
  const double read = bytes / std::max(read_seconds, 1e-9);
  const std::string figures = size_text(bytes) + ": written at " + rate_text(written) +
                              " and flushed, read at " + rate_text(read) + " (often from memory)";
  if (std::min(written, read) < kSlowestFiles) {
    return {Result::kWarning, figures +
                                  ": slower than any disk; is this file system a shared one "
                                  "under load?"};
  }
  return {Result::kOk, figures};
}

Verdict judge_alike(const std::vector<double>& rates, const std::vector<std::string>& names) {
  if (rates.empty()) return {Result::kNotRun, "nothing was measured"};
  const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
  const std::string& slowest = names.at(static_cast<size_t>(least - rates.begin()));
  std::string figures = rate_text(*least);
  if (rates.size() > 1) figures += " (" + slowest + ") to " + rate_text(*most);
  if (*least >= *most / 2) return {Result::kOk, figures};
  return {Result::kWarning, figures + ": " + slowest + " is less than half as fast as the fastest"};
}

}  // namespace meshrun::verify
