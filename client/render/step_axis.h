// The steps of all ranks on one axis, where programs count them anew, as in each epoch: a step
// number alone then says neither which step was later nor which ones two ranks took together. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace meshrun::client {

// A place on the axis is the step's number where no rank counts anew; else places go on where the
// numbers begin again.
class StepAxis {
 public:
  // Steps as a rank has reported them, oldest first, and when, in nanoseconds of one clock.
  using Reports = std::vector<std::pair<int64_t, int64_t>>;
  explicit StepAxis(const std::vector<Reports>& ranks);

  // Times of the reports by their places; `rank`: its index among those given.
  const std::map<int64_t, int64_t>& PlacesOf(size_t rank) const { return places_[rank]; }
  int64_t StepAt(int64_t place) const { return place - EpochAt(place).offset; }
  // "step 7", "steps 41 to 60", "steps 95 to 99 and 0 to 50".
  std::string Range(int64_t first, int64_t last) const;

 private:
  struct Epoch {
    int64_t first_place;
    // Its places less its steps.
    int64_t offset;
  };
  const Epoch& EpochAt(int64_t place) const;

  // Oldest first. The first one has all places before it.
  std::vector<Epoch> epochs_;
  std::vector<std::map<int64_t, int64_t>> places_;
};

}  // namespace meshrun::client
