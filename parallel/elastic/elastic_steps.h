// The steps of a training loop, as a range: `for (const int64_t step : state.steps(first, last))`.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "parallel/base/arguments.h"

namespace meshrun {

// begin() begins the first step, each increment ends one and begins the next. One loop per range;
// iterators hold a pointer to it.
class ElasticSteps {
 public:
  // Called before each step; for the first one also where there is none to take.
  using Begin = std::function<void(int64_t step)>;
  using End = std::function<void(int64_t done)>;

  class Iterator {
   public:
    Iterator(IntArgument step, const ElasticSteps* steps) : step_(step), steps_(steps) {}
    int64_t operator*() const { return step_; }
    Iterator& operator++() {
      steps_->end_(++step_);
      if (step_ < steps_->last_) steps_->begin_(step_);
      return *this;
    }
    bool operator!=(const Iterator& other) const { return step_ < other.step_; }

   private:
    int64_t step_;
    const ElasticSteps* steps_;
  };

  ElasticSteps(IntArgument first, IntArgument last, Begin begin, End end)
      : first_(first), last_(last), begin_(std::move(begin)), end_(std::move(end)) {}
  Iterator begin() const {
    begin_(first_);
    return {first_, this};
  }
  Iterator end() const { return {last_, this}; }

 private:
  int64_t first_;
  int64_t last_;
  Begin begin_;
  End end_;
};

}  // namespace meshrun
