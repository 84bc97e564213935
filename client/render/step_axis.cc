#include "client/render/step_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>

namespace meshrun::client {
namespace {

// Sums of the epochs that a record can hold stay within 64 bits.
constexpr int64_t kMostSteps = int64_t{1} << 52;

// Reports whose steps rise.
std::vector<StepAxis::Reports> EpochsOf(const StepAxis::Reports& reports) {
  std::vector<StepAxis::Reports> epochs;
  for (const auto& report : reports) {
    if (epochs.empty() || report.first < epochs.back().back().first) epochs.emplace_back();
    epochs.back().push_back(report);
  }
  return epochs;
}

bool IsTooLong(const StepAxis::Reports& reports) {
  return std::any_of(reports.begin(), reports.end(),
                     [](const auto& report) { return report.first > kMostSteps; });
}

// Programs may report each k-th step of an epoch: k; 1 where nothing says so. Then the report that
// begins an epoch is k steps after the one before it.
int64_t StepsBetween(const std::vector<std::vector<StepAxis::Reports>>& ranks) {
  int64_t between = 0;
  bool has_rising = false;
  std::optional<int64_t> known;
  for (const std::vector<StepAxis::Reports>& epochs : ranks) {
    for (const StepAxis::Reports& epoch : epochs) {
      has_rising |= epoch.back().first > epoch.front().first;
      for (const auto& [step, at] : epoch) {
        between = std::gcd(between, step - known.value_or(step));
        known = step;
      }
    }
  }
  return has_rising ? std::max<int64_t>(between, 1) : 1;
}

int64_t BeginOf(const StepAxis::Reports& epoch) { return epoch.front().second; }

// Number of the last epoch of a rank, where the last one of `reference` has number 0. Ranks take
// their steps together, so that the same epoch begins at about the same time on all; a rank may not
// have begun the last one yet.
int LastEpoch(const std::vector<StepAxis::Reports>& epochs,
              const std::vector<StepAxis::Reports>& reference) {
  if (epochs.size() == 1) {
    // Its first report may be any of the epoch: a record keeps the last ones.
    const int64_t end = epochs.back().back().second;
    const auto later = std::find_if(reference.begin() + 1, reference.end(),
                                    [&](const auto& epoch) { return BeginOf(epoch) > end; });
    return static_cast<int>(later - reference.end());
  }
  const int64_t begin = BeginOf(epochs.back());
  const auto nearest =
      std::min_element(reference.begin(), reference.end(), [&](const auto& a, const auto& b) {
        return std::abs(BeginOf(a) - begin) < std::abs(BeginOf(b) - begin);
      });
  return static_cast<int>(nearest - reference.end()) + 1;
}

}  // namespace

StepAxis::StepAxis(const std::vector<Reports>& ranks) {
  std::vector<std::vector<Reports>> epochs;
  const std::vector<Reports>* reference = nullptr;
  for (const Reports& reports : ranks) epochs.push_back(EpochsOf(reports));
  if (std::any_of(ranks.begin(), ranks.end(), IsTooLong)) {
    for (std::vector<Reports>& rank : epochs) {
      if (rank.size() > 1) rank.erase(rank.begin(), rank.end() - 1);
    }
  }
  for (const std::vector<Reports>& rank : epochs) {
    if (rank.size() < 2) continue;
    if (reference == nullptr || BeginOf(rank.back()) > BeginOf(reference->back())) {
      reference = &rank;
    }
  }
  struct Limits {
    int64_t first = std::numeric_limits<int64_t>::max();
    int64_t last = std::numeric_limits<int64_t>::min();
  };
  // By an epoch's number: its steps on all ranks.
  std::map<int, Limits> limits;
  std::vector<int> firsts;
  for (const std::vector<Reports>& rank : epochs) {
    const int last = rank.empty() || reference == nullptr ? 0 : LastEpoch(rank, *reference);
    firsts.push_back(last + 1 - static_cast<int>(rank.size()));
    for (size_t i = 0; i < rank.size(); ++i) {
      Limits& of = limits[firsts.back() + static_cast<int>(i)];
      of.first = std::min(of.first, rank[i].front().first);
      of.last = std::max(of.last, rank[i].back().first);
    }
  }
  const int64_t between = StepsBetween(epochs);
  std::map<int, int64_t> offsets;
  for (const auto& [number, steps] : limits) {
    if (epochs_.empty()) {
      offsets[number] = 0;
      epochs_.push_back({steps.first, 0});
      continue;
    }
    const int64_t end = limits[number - 1].last + offsets[number - 1];
    const int64_t offset = end + between - steps.first;
    offsets[number] = offset;
    // Its first steps are before its first report: numbers of steps begin with 0 or 1.
    epochs_.push_back({std::max(end + 1, std::min(offset, end + between)), offset});
  }
  if (epochs_.empty()) epochs_.push_back({0, 0});
  for (size_t i = 0; i < epochs.size(); ++i) {
    std::map<int64_t, int64_t>& places = places_.emplace_back();
    for (size_t k = 0; k < epochs[i].size(); ++k) {
      const int64_t offset = offsets[firsts[i] + static_cast<int>(k)];
      for (const auto& [step, at] : epochs[i][k]) places[step + offset] = at;
    }
  }
}

const StepAxis::Epoch& StepAxis::EpochAt(int64_t place) const {
  const auto after =
      std::upper_bound(epochs_.begin() + 1, epochs_.end(), place,
                       [](int64_t value, const Epoch& epoch) { return value < epoch.first_place; });
  return *std::prev(after);
}

std::string StepAxis::Range(int64_t first, int64_t last) const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < epochs_.size(); ++i) {
    const int64_t begin = i == 0 ? first : std::max(first, epochs_[i].first_place);
    const int64_t end =
        i + 1 == epochs_.size() ? last : std::min(last, epochs_[i + 1].first_place - 1);
    if (begin > end) continue;
    const int64_t offset = epochs_[i].offset;
    parts.push_back(begin == end ? fmt::format("{}", begin - offset)
                                 : fmt::format("{} to {}", begin - offset, end - offset));
  }
  std::string text = first < last ? "steps " : "step ";
  for (size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  }
  return text;
}

}  // namespace meshrun::client
