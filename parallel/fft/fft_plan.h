// A distributed two-dimensional real transform, planned once.
//
//   FftPlan plan(shape, "spatial_parallel");
//   at::Tensor spectrum = plan.forward(field, Scale::kNone);     // differentiable, to any order
//   at::Tensor field2 = plan.inverse(spectrum, Scale::kFull);
//   std::cout << plan.describe(64, 4, Direction::kForward);
//
// Steps of forward(): real transform of the columns that this rank has; transposition of the half
// rows; complex transform of the rows that it then has; canonical: rows and their mirrors go to
// their holders. inverse() has the same steps backwards. Planes are cut into chunks (num_chunks),
// so that one chunk travels while the next one is transformed.
//
// Shapes: field [N, field_height, own columns] real, spectrum [N, own rows, columns] complex.
// Backward: forward's is inverse() of the cotangent with the weight 1/2 on all elements that stand
// for two of the full spectrum; inverse's is forward() with the weight 2 there.
//
// Threads: any; all ranks of the group make a plan's calls in the same order. Errors: see
// distributed_fft.h; a plan's tensors are checked by its callers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/collectives/plans/transpose_plan.h"
#include "parallel/fft/fft_geometry.h"
#include "parallel/fft/local_transforms.h"

namespace meshrun::fft {

struct FftShape {
  // Rows of the field, and the columns of each rank.
  IntArgument field_height = 0;
  std::vector<int64_t> field_columns;
  // Lengths of the transforms; the field is cut or padded with zeros at its ends.
  IntArgument height = 0;
  IntArgument width = 0;
  Layout layout = Layout::kCanonical;
  // Rows of the spectrum on each rank (half rows if paired), and the columns of the spectrum.
  std::vector<int64_t> spectrum_rows;
  IntArgument spectrum_columns = 0;
  // Paired: the columns are the wave numbers 0 .. c/2 - 1 and -c/2 .. -1, not 0 .. c - 1.
  BoolArgument both_signs = false;
  // Canonical, two ranks: the fewest bytes rather than the least work (HalfRows).
  BoolArgument fewest_bytes = false;

  bool operator==(const FftShape&) const = default;
};

enum class Direction { kForward, kInverse };

// Cost of one call on this rank.
struct FftCost {
  double flops = 0;
  // Bytes that this rank sends to others: in the transposition, and between rows and mirrors.
  int64_t transpose_bytes = 0;
  int64_t mirror_bytes = 0;
  // Copies on this rank between the transforms and the sends; complete for CPU tensors if LibTorch
  // has MKL. Elsewhere LibTorch's real transforms copy too, and mirrors are copied twice.
  struct Copy {
    std::string what;
    int64_t bytes = 0;
  };
  std::vector<Copy> copies;

  int64_t wire_bytes() const { return transpose_bytes + mirror_bytes; }
};

class FftPlan : public std::enable_shared_from_this<FftPlan> {
 public:
  // `also_agreed`: as TransposePlan takes it.
  FftPlan(FftShape shape, const GroupArgument& group, const std::string& also_agreed = {});

  const FftShape& shape() const { return shape_; }
  const GroupArgument::Handle& group() const { return transpose_.group(); }
  int rank() const { return transpose_.rank(); }
  int64_t own_columns() const { return shape_.field_columns[static_cast<size_t>(rank())]; }
  int64_t own_rows() const { return shape_.spectrum_rows[static_cast<size_t>(rank())]; }

  at::Tensor forward(const at::Tensor& field, Scale scale) const;
  at::Tensor inverse(const at::Tensor& spectrum, Scale scale) const;
  // `factor` where an element of the spectrum stands for two, 1 elsewhere; broadcasts over it.
  at::Tensor weights(double factor, const at::Tensor& like) const;
  // In place of a call that this rank cannot make: raises `problem` on every rank.
  [[noreturn]] void refuse(const std::string& problem) const { transpose_.refuse(problem); }

  // Cost of a forward() or inverse() of `planes` planes with real elements of `element_size` bytes.
  FftCost cost(IntArgument planes, IntArgument element_size, Direction direction) const;
  std::string describe(IntArgument planes, IntArgument element_size, Direction direction) const;

 private:
  friend struct ForwardFunction;
  friend struct InverseFunction;
  using Start = std::function<AsyncTensor(const at::Tensor&)>;
  using Finish = std::function<at::Tensor(const at::Tensor&)>;

  at::Tensor compute_forward(const at::Tensor& field, Scale scale) const;
  at::Tensor compute_inverse(const at::Tensor& spectrum, Scale scale) const;
  at::Tensor in_chunks(const at::Tensor& planes, const Start& start, const Finish& finish) const;
  int64_t chunks_of(int64_t planes, int64_t element_size) const;

  at::Tensor send_order(const at::Tensor& half_rows) const;
  at::Tensor row_order(const at::Tensor& received) const;
  at::Tensor stored(const at::Tensor& half_rows) const;
  at::Tensor loaded(const at::Tensor& spectrum) const;
  at::Tensor selected_columns(const at::Tensor& rows) const;
  at::Tensor all_columns(const at::Tensor& rows) const;
  void add_forward_copies(FftCost& cost, int64_t planes, int64_t element_size) const;
  void add_inverse_copies(FftCost& cost, int64_t planes, int64_t element_size) const;
  // Rows that this rank sends to others between rows and mirrors.
  int64_t mirror_rows_sent(Direction direction) const;

  FftShape shape_;
  HalfRows rows_;
  // min(field width, width), and this rank's part of it.
  int64_t moved_columns_ = 0;
  int64_t own_moved_columns_ = 0;
  TransposePlan transpose_;
};

}  // namespace meshrun::fft
