// The steps of a training loop, as a range: `for (const int64_t step : state.steps(first, last))`.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "parallel/base/arguments.h"

namespace meshrun {

// Each increment ends a step.
class ElasticSteps {
 public:
  using End = std::function<void(int64_t done)>;

  class Iterator {
   public:
    Iterator(IntArgument step, const End* end) : step_(step), end_(end) {}
    int64_t operator*() const { return step_; }
    Iterator& operator++() {
      (*end_)(++step_);
      return *this;
    }
    bool operator!=(const Iterator& other) const { return step_ < other.step_; }

   private:
    int64_t step_;
    const End* end_;
  };

  ElasticSteps(IntArgument first, IntArgument last, End end)
      : first_(first), last_(last), end_(std::move(end)) {}
  Iterator begin() const { return {first_, &end_}; }
  Iterator end() const { return {last_, &end_}; }

 private:
  int64_t first_;
  int64_t last_;
  End end_;
};

}  // namespace meshrun
