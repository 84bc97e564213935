// Which positions of a cut dimension each rank needs, and which messages bring them: pure
// arithmetic of what all ranks know, without LibTorch.
//
// A dimension is cut into pieces, one per rank, uneven or empty. An operator with windows (a
// convolution, a pooling, an interpolation) reads for each output position a range of input
// positions. From the sizes of the input's pieces follow the output's pieces, the range of inputs
// that each rank reads, and what each rank sends:
//
//   const WindowedDim windows = WindowedDim::sliding(outputs, kernel, stride, padding, dilation);
//   const auto sizes_out = windows.output_sizes(sizes);
//   const RangeTransfer mine = plan_ranges(sizes, windows.ranges(sizes), rank);
//
// A rank owns the outputs whose window has its centre in the rank's piece (centres beyond the ends
// count as the nearest end; the lower one of two). So a window reaches at most about half its
// extent beyond the piece, and a window that lies within one piece needs no neighbour.
//
// Threads: values. Errors: none; callers check extents.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/base/arguments.h"
#include "parallel/base/split.h"

namespace meshrun {

class WindowedDim {
 public:
  // What an output position reads. begin and end never decrease from one output to the next; both
  // may lie beyond the input.
  using Reads = std::function<SplitRange(int64_t output)>;
  WindowedDim(IntArgument outputs, Reads reads);

  // Output o reads positions[o] alone, in any order; its rank is the one of position o - low.
  static WindowedDim picking(std::vector<int64_t> positions, IntArgument low);
  // Output o reads o * stride - padding + j * dilation, 0 <= j < kernel.
  static WindowedDim sliding(IntArgument outputs, IntArgument kernel, IntArgument stride,
                             IntArgument padding, IntArgument dilation);
  // The adjoint: o reads every i with o = i * stride - padding + j * dilation for a j. Where no j
  // has one, o reads the last i before it, so that ranges have no gaps.
  static WindowedDim transposed(IntArgument outputs, IntArgument kernel, IntArgument stride,
                                IntArgument padding, IntArgument dilation);

  int64_t outputs() const { return outputs_; }
  SplitRange reads(IntArgument output) const { return reads_(output); }

  // The outputs that each rank owns, by the sizes of the input's pieces. Without any input rank 0
  // owns all.
  std::vector<SplitRange> owned(const std::vector<int64_t>& sizes) const;
  std::vector<int64_t> output_sizes(const std::vector<int64_t>& sizes) const;
  // The inputs that each rank reads for its outputs; where they lie beyond the ends, so does the
  // range. Empty for a rank without outputs.
  std::vector<SplitRange> ranges(const std::vector<int64_t>& sizes) const;

 private:
  int64_t outputs_;
  Reads reads_;
  Reads place_;  // absent: reads_, which then never decreases
};

// Output extents as LibTorch has them; 0 or less where the window does not fit. ceil_mode: of
// pooling.
int64_t sliding_outputs(IntArgument inputs, IntArgument kernel, IntArgument stride,
                        IntArgument padding_low, IntArgument padding_high, IntArgument dilation,
                        BoolArgument ceil_mode = false);
int64_t transposed_outputs(IntArgument inputs, IntArgument kernel, IntArgument stride,
                           IntArgument padding, IntArgument dilation, IntArgument output_padding);

// How one rank gets the range that it asks for.
struct RangeTransfer {
  // A run of the result: positions of this rank's own piece, or of what it has received.
  struct Part {
    bool own = true;
    int64_t begin = 0;
    int64_t count = 0;

    bool operator==(const Part&) const = default;
  };

  // Positions of the range before the first and after the last of the whole dimension.
  int64_t low_padding = 0;
  int64_t high_padding = 0;
  // Between them, in order. What is received is numbered in order of the sending ranks, and of one
  // rank in order of the result.
  std::vector<Part> parts;
  // Positions of this rank's piece in the order in which they are sent: by receiving rank.
  std::vector<SplitRange> given;
  // By rank; 0 for oneself.
  std::vector<int64_t> sent, received;
  // A position is given more than once.
  bool gives_twice = false;

  // The result's, with both paddings.
  int64_t extent() const;
  int64_t num_received() const;
};

// `ranges`: by rank, of the whole dimension. periodic: position p is position p modulo the extent,
// and there is no padding.
RangeTransfer plan_ranges(const std::vector<int64_t>& sizes, const std::vector<SplitRange>& ranges,
                          IntArgument rank, BoolArgument periodic = false);
// Whether any rank sends anything.
bool anything_travels(const std::vector<int64_t>& sizes, const std::vector<SplitRange>& ranges,
                      BoolArgument periodic = false);

}  // namespace meshrun
