#include <algorithm>

#include "fmt/format.h"
#include "parallel/base/extents.h"
#include "parallel/fft/fft_plan.h"

namespace meshrun::fft {
namespace {

// Adds a copy of `elements` of `size` bytes in each plane.
void add(FftCost& cost, const char* what, int64_t planes, int64_t elements, int64_t size) {
  if (elements > 0) cost.copies.push_back({what, planes * elements * size});
}

}  // namespace

int64_t FftPlan::mirror_rows_sent(Direction direction) const {
  if (shape_.layout == Layout::kPaired) return 0;
  int64_t sent = 0;
  for (int other = 0; other < rows_.world(); ++other) {
    if (other == rank()) continue;
    sent += direction == Direction::kForward ? rows_.num_rows(rank(), other)
                                             : rows_.num_rows(other, rank());
  }
  return sent;
}

// The steps of compute_forward().
void FftPlan::add_forward_copies(FftCost& cost, int64_t planes, int64_t element_size) const {
  const int64_t complex_size = 2 * element_size;
  const int64_t columns = shape_.width / 2 + 1;
  const int64_t computed = rows_.num_computed()[static_cast<size_t>(rank())];
  const int64_t all_computed = total_extent(rows_.num_computed());
  if (shape_.field_height < shape_.height) {
    add(cost, "field padded to s[0]", planes, shape_.height * own_moved_columns_, element_size);
  } else if (own_moved_columns_ < own_columns() ||
             (shape_.height < shape_.field_height && planes > 1)) {
    add(cost, "field cut to s", planes, shape_.height * own_moved_columns_, element_size);
  }
  if (!rows_.is_ordered() || (all_computed < rows_.num_half_rows() && planes > 1)) {
    add(cost, "half rows into the send buffer", planes, all_computed * own_moved_columns_,
        complex_size);
  }
  add(cost, "own piece of the transposition", planes, computed * own_moved_columns_, complex_size);
  if (moved_columns_ < shape_.width) {
    add(cost, "rows padded to s[1]", planes, computed * shape_.width, complex_size);
  }
  if (shape_.layout == Layout::kCanonical) {
    int64_t stored = 0;
    for (int computer = 0; computer < rows_.world(); ++computer) {
      stored += rows_.num_rows(computer, rank());
    }
    add(cost, "rows and mirrors into the result and the send buffer", planes,
        (stored + mirror_rows_sent(Direction::kForward)) * columns, complex_size);
    if (shape_.spectrum_columns > columns) {
      add(cost, "columns padded", planes, own_rows() * shape_.spectrum_columns, complex_size);
    }
  } else {
    if (shape_.both_signs ? shape_.spectrum_columns != shape_.width
                          : shape_.spectrum_columns > shape_.width) {
      add(cost, shape_.both_signs ? "modes of both signs" : "columns padded", planes,
          computed * shape_.spectrum_columns, complex_size);
    }
    if (own_rows() > computed) {
      add(cost, "rows padded", planes, own_rows() * shape_.spectrum_columns, complex_size);
    }
  }
  if (chunks_of(planes, element_size) > 1) {
    add(cost, "chunks into the result", planes, own_rows() * shape_.spectrum_columns, complex_size);
  }
}

// The steps of compute_inverse().
void FftPlan::add_inverse_copies(FftCost& cost, int64_t planes, int64_t element_size) const {
  const int64_t complex_size = 2 * element_size;
  const int64_t columns = shape_.width / 2 + 1;
  const int64_t computed = rows_.num_computed()[static_cast<size_t>(rank())];
  const int64_t all_computed = total_extent(rows_.num_computed());
  if (shape_.layout == Layout::kCanonical) {
    if (shape_.spectrum_columns < columns) {
      add(cost, "spectrum padded to s[1]", planes, own_rows() * columns, complex_size);
    }
    add(cost, "rows into the send buffer", planes, mirror_rows_sent(Direction::kInverse) * columns,
        complex_size);
    const int64_t others = shape_.width - columns;
    int64_t loaded = static_cast<int64_t>(rows_.self_mirrored(rank()).size()) * others;
    for (int holder = 0; holder < rows_.world(); ++holder) {
      for (const RowRun& run : rows_.runs(rank(), holder)) {
        loaded += run.count * (run.mirrored ? others : columns);
      }
    }
    add(cost, "rows and mirrors into half rows", planes, loaded, complex_size);
  } else if (shape_.both_signs ? shape_.spectrum_columns != shape_.width
                               : shape_.spectrum_columns < shape_.width) {
    add(cost, shape_.both_signs ? "modes of both signs" : "spectrum padded to s[1]", planes,
        computed * shape_.width, complex_size);
  }
  add(cost, "own piece of the transposition", planes, computed * own_moved_columns_, complex_size);
  if (!rows_.is_ordered()) {
    add(cost, "half rows brought in order", planes, all_computed * own_moved_columns_,
        complex_size);
  } else if (all_computed < rows_.num_half_rows()) {
    add(cost, "half rows padded to s[0]", planes, rows_.num_half_rows() * own_moved_columns_,
        complex_size);
  }
  if (shape_.field_height > shape_.height) {
    add(cost, "rows of the field padded", planes, shape_.field_height * own_moved_columns_,
        element_size);
  }
  const int64_t field = shape_.field_height * own_columns();
  if (own_columns() > own_moved_columns_) {
    add(cost, "columns of the field padded", planes, field, element_size);
  } else if (shape_.field_height < shape_.height && planes > 1) {
    add(cost, "rows of the field cut", planes, field, element_size);
  }
  if (chunks_of(planes, element_size) > 1) {
    add(cost, "chunks into the result", planes, field, element_size);
  }
}

FftCost FftPlan::cost(IntArgument planes, IntArgument element_size, Direction direction) const {
  FftCost cost;
  const bool is_forward = direction == Direction::kForward;
  const int64_t complex_size = 2 * element_size;
  const int64_t computed = rows_.num_computed()[static_cast<size_t>(rank())];
  const int64_t others = is_forward
                             ? (total_extent(rows_.num_computed()) - computed) * own_moved_columns_
                             : computed * (moved_columns_ - own_moved_columns_);
  cost.flops = complex_flops(shape_.height, planes * own_moved_columns_) / 2 +
               complex_flops(shape_.width, planes * computed);
  cost.transpose_bytes = planes * others * complex_size;
  cost.mirror_bytes = planes * mirror_rows_sent(direction) * (shape_.width / 2 + 1) * complex_size;
  is_forward ? add_forward_copies(cost, planes, element_size)
             : add_inverse_copies(cost, planes, element_size);
  return cost;
}

std::string FftPlan::describe(IntArgument planes, IntArgument element_size,
                              Direction direction) const {
  const FftCost total = cost(planes, element_size, direction);
  std::string text = fmt::format(
      "rank {} of {}: {} {}transforms of {} x {}, {} layout, {} chunks\n"
      "  {:.3g} floating-point operations\n"
      "  {} bytes to other ranks ({} in the transposition, {} between rows and their mirrors)\n",
      rank(), rows_.world(), int64_t{planes}, direction == Direction::kForward ? "" : "inverse ",
      int64_t{shape_.height}, int64_t{shape_.width},
      shape_.layout == Layout::kCanonical ? "canonical" : "paired", chunks_of(planes, element_size),
      total.flops, total.wire_bytes(), total.transpose_bytes, total.mirror_bytes);
  for (const FftCost::Copy& copy : total.copies) {
    text += fmt::format("  {} bytes copied: {}\n", copy.bytes, copy.what);
  }
  return text;
}

}  // namespace meshrun::fft
