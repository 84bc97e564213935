// The two-dimensional discrete Fourier transform of a real field that the ranks of a group hold in
// pieces, of any size.
//
//   at::Tensor spectrum = distributed_rfft2(field);      // columns in, rows out
//   at::Tensor again = distributed_irfft2(spectrum, {.s = {height, width}});  // rows to columns
//
// Equals torch.fft.rfft2 and irfft2 of the unsharded tensor, for every size: odd, prime, smaller
// than the number of ranks, pieces uneven or empty.
//
// Shapes: with dim = {d0, d1}, the real side has all H rows along d0 and this rank's piece of the W
// columns along d1. The spectrum has a piece of its rows along d0 and all its columns along d1:
//
//   layout      rows                                   columns
//   canonical   s[0], split between the ranks          s[1] / 2 + 1
//   paired      s[0] / 2 + 1, split; row k stands      s[1]
//               for row s[0] - k too: that one is its
//               conjugate, columns mirrored
//   modes       modes[0] (the first ones), split       2 * modes[1]: the wave numbers
//   (paired)                                           0 .. m - 1, then -m .. -1
//
// Canonical is torch.fft.rfft2(x, dim = {d0, d1}); paired is torch.fft.rfft2(x, dim = {d1, d0}),
// which holds the same numbers once. Paired moves half the bytes, as the real transform runs along
// d0 before anything is sent; with modes only what a neural operator keeps is sent. All other
// dimensions are a batch, equal on all ranks.
//
// dtypes: float32 and float64, and the complex ones of the same width.
// Backward: the exact adjoint, of any order, for every norm, s and layout. A backward pass runs on
// all ranks of the group or on none: see collectives/tie.h.
//
// All ranks give the same options. Sizes that are absent cost one message per call, in which the
// ranks tell each other their extents; the class forms ask once.
//
// Threads: any; all ranks of a group make its calls in the same order. Errors: those of
// GroupArgument; all others (s or dim of a wrong length, a complex field, extents that do not fit)
// on every rank that called, as CollectiveArgumentError or CollectiveMismatchError
// (base/collective_errors.h).
//
// Corresponds to physicsnemo.distributed.fft.DistributedRFFT2 and DistributedIRFFT2, of which the
// first needs sizes that divide and the second raises.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/base/list_argument.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

namespace fft {
class FftPlan;
enum class Direction;
}  // namespace fft

enum class FftLayout { kCanonical, kPaired };

struct FftOptions {
  // Extents of the unsharded real field along dim: the input is cut or padded with zeros at its
  // end. Empty, or nullopt for one: the field's; for the inverse, of a spectrum [h, w], h and 2 *
  // (w
  // - 1) (paired: 2 * (h - 1) and w).
  ListArgument<std::optional<IntArgument>> s = {};
  ListArgument<IntArgument> dim = {-2, -1};
  // "backward" (the inverse divides by s[0] * s[1]), "ortho" (both by its root) or "forward".
  std::string norm = "ortho";
  GroupArgument group = "spatial_parallel";
  FftLayout layout = FftLayout::kCanonical;
  // Two numbers or none; only with layout kPaired. The inverse then needs s.
  ListArgument<IntArgument> modes = {};
  // Choice for the canonical layout on two ranks. True: exactly as many bytes as the rows need, and
  // twice the transforms along d1; false: 0.1 % more bytes. Absent: true if the group spans hosts,
  // as far as DistributedManager knows the group.
  std::optional<BoolArgument> fewest_bytes = std::nullopt;
  // By rank: the pieces of what comes in. Absent: the ranks ask.
  std::optional<std::vector<int64_t>> input_sizes = std::nullopt;
  // By rank: the pieces of what goes out. Absent: compute_split_shapes (collectives/split.h).
  std::optional<std::vector<int64_t>> output_sizes = std::nullopt;
};

at::Tensor distributed_rfft2(const at::Tensor& input, const FftOptions& options = {});
at::Tensor distributed_irfft2(const at::Tensor& input, const FftOptions& options = {});

namespace fft {

// What the class forms share: a plan that the first call makes. All other calls have its extents
// (batch dimensions may differ).
class PlannedTransform {
 public:
  at::Tensor operator()(const at::Tensor& input);
  // What a call costs: operations, bytes on the wire, bytes copied. After the first call.
  std::string describe() const;

 protected:
  PlannedTransform(FftOptions options, Direction direction);

 private:
  FftOptions options_;
  Direction direction_;
  std::shared_ptr<const FftPlan> plan_;
  int64_t planes_ = 0;
  int64_t element_size_ = 0;
  // Bytes copied of an input whose elements do not lie in the order of the transform.
  int64_t input_bytes_copied_ = 0;
};

}  // namespace fft

class DistributedRFFT2 : public fft::PlannedTransform {
 public:
  explicit DistributedRFFT2(FftOptions options = {});

  // The specification's form.
  static at::Tensor apply(const at::Tensor& input,
                          const ListArgument<std::optional<IntArgument>>& s = {},
                          const ListArgument<IntArgument>& dim = {-2, -1},
                          const std::string& norm = "ortho");
};

class DistributedIRFFT2 : public fft::PlannedTransform {
 public:
  explicit DistributedIRFFT2(FftOptions options = {});

  static at::Tensor apply(const at::Tensor& input,
                          const ListArgument<std::optional<IntArgument>>& s = {},
                          const ListArgument<IntArgument>& dim = {-2, -1},
                          const std::string& norm = "ortho");
};

}  // namespace meshrun
