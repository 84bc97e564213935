// From the options of a call to a plan, or to what is wrong with them. Internal to parallel/fft.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/fft/distributed_fft.h"
#include "parallel/fft/fft_plan.h"

namespace meshrun::fft {

// A call's arguments, checked as far as this rank can by itself.
struct Arguments {
  std::string problem;  // empty: none; else nothing below holds
  Direction direction = Direction::kForward;
  int64_t dim0 = 0;  // not negative
  int64_t dim1 = 0;
  Scale scale = Scale::kNone;
};

Arguments read_arguments(const at::Tensor& input, const FftOptions& options, Direction direction);

// [..., dims] of a call's tensor as [N, dims], and back: for dims in their order behind all others.
class Planes {
 public:
  Planes(const at::Tensor& input, const std::vector<IntArgument>& dims);
  // Transformed planes, in the shape of the call's tensor; their extents along the dims may differ.
  at::Tensor restored(const at::Tensor& transformed) const;

  at::Tensor tensor;

 private:
  std::vector<int64_t> from_;
  std::vector<int64_t> to_;
  // With the dims at the end.
  std::vector<int64_t> shape_;
};

// The call in words, without its extents.
std::string call_words(const FftOptions& options, Direction direction, int64_t ndim);

// What is wrong with a call of a transform over `dims` dimensions, as far as this rank can tell,
// modes and layout aside; empty: nothing.
std::string check_call(const at::Tensor& input, const FftOptions& options, Direction direction,
                       size_t dims);
std::string check_input_sizes(const std::vector<int64_t>& sizes, int64_t own, int rank, int world);
// Scale for LibTorch's name of a norm; nullopt: no norm has that name.
std::optional<Scale> scale_of(const std::string& norm, Direction direction);
// How an extent is split at the end that goes out; where the options do not fit, by the rule and
// with a problem.
std::vector<int64_t> output_sizes(const FftOptions& options, int64_t extent, int world,
                                  std::string& problem);

// In place of a call that this rank cannot make: raises `problem` on every rank.
[[noreturn]] void refuse(const std::string& problem, const GroupArgument& group, int world);

// Asks the other ranks where sizes are absent. Raises what is wrong, on every rank.
std::shared_ptr<const FftPlan> make_plan(const at::Tensor& input, const FftOptions& options,
                                         const Arguments& arguments);

// What does not fit `plan` about `input`; empty: nothing.
std::string misfit(const at::Tensor& input, const Arguments& arguments, const FftPlan& plan);

}  // namespace meshrun::fft
