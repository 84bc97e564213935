#include "parallel/fft/local_transforms.h"

#include <cmath>
#include <type_traits>
#include <vector>

#include "ATen/ops/_fft_c2c.h"
#include "ATen/ops/_fft_c2r.h"
#include "ATen/ops/_fft_r2c.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/empty.h"
#include "ATen/record_function.h"
#include "c10/util/complex.h"
#include "parallel/base/traced_calls.h"
#include "parallel/fft/dfti.h"

namespace meshrun::fft {
namespace {

// The columns of a spectrum whose mirror is another row's same column: 0 and width / 2.
std::vector<int64_t> own_mirror_columns(int64_t width) {
  std::vector<int64_t> columns = {0};
  if (width % 2 == 0) columns.push_back(width / 2);
  return columns;
}

double factor_of(Scale scale, int64_t length) {
  const auto n = static_cast<double>(length);
  return scale == Scale::kNone ? 1 : scale == Scale::kRoot ? 1 / std::sqrt(n) : 1 / n;
}

// Calls visit(to's element, from's) where from's row and column count from the end.
template <typename T, typename Visit>
void for_each_mirror(const at::Tensor& to, const at::Tensor& from, const Visit& visit) {
  const int64_t rows = to.size(1);
  const int64_t columns = to.size(2);
  for (int64_t plane = 0; plane < to.size(0); ++plane) {
    for (int64_t row = 0; row < rows; ++row) {
      T* const out = to.data_ptr<T>() + plane * to.stride(0) + row * to.stride(1);
      const T* const in =
          from.const_data_ptr<T>() + plane * from.stride(0) + (rows - 1 - row) * from.stride(1);
      for (int64_t j = 0; j < columns; ++j) visit(out[j], in[columns - 1 - j]);
    }
  }
}

bool is_direct(const at::Tensor& to, const at::Tensor& from) {
  return to.is_cpu() && !is_traced(to) && to.stride(2) == 1 && from.stride(2) == 1 &&
         !to.is_conj() && !from.is_conj() && to.scalar_type() == from.scalar_type();
}

// to[n, i, j] = conj(from[n, last - i, last - j]); on the CPU in one pass.
void copy_mirrored(const at::Tensor& to, const at::Tensor& from) {
  if (!is_direct(to, from)) {
    to.copy_(from.conj().flip({1, 2}));
    return;
  }
  RECORD_FUNCTION("meshrun::copy_mirrored", c10::ArrayRef<const c10::IValue>({to}));
  const auto set = [](auto& out, const auto& in) { out = std::conj(in); };
  to.scalar_type() == at::kComplexFloat ? for_each_mirror<c10::complex<float>>(to, from, set)
                                        : for_each_mirror<c10::complex<double>>(to, from, set);
}

// to[n, i, j] += conj(from[n, last - i, last - j]) / 2.
void add_half_mirrored(const at::Tensor& to, const at::Tensor& from) {
  if (!is_direct(to, from)) {
    to.add_(from.conj().flip({1, 2}), 0.5);
    return;
  }
  const auto add = [](auto& out, const auto& in) {
    using Real = typename std::decay_t<decltype(in)>::value_type;
    out += static_cast<Real>(0.5) * std::conj(in);
  };
  to.scalar_type() == at::kComplexFloat ? for_each_mirror<c10::complex<float>>(to, from, add)
                                        : for_each_mirror<c10::complex<double>>(to, from, add);
}

}  // namespace

at::Tensor resized(const at::Tensor& tensor, int64_t dim, int64_t extent) {
  const int64_t had = tensor.size(dim);
  if (had == extent) return tensor;
  if (had > extent) return tensor.narrow(dim, 0, extent);
  std::vector<int64_t> padding(2 * static_cast<size_t>(tensor.dim() - dim), 0);
  padding.back() = extent - had;
  return at::constant_pad_nd(tensor, padding);
}

at::Tensor real_rows_forward(const at::Tensor& planes, int64_t height, Scale scale) {
  const at::Tensor rows = resized(planes, 1, height);
  if (rows.numel() == 0) {
    return at::empty({rows.size(0), height / 2 + 1, rows.size(2)},
                     rows.options().dtype(c10::toComplexType(rows.scalar_type())));
  }
  if (has_dfti(rows)) {
    const at::Tensor from = rows.contiguous();
    at::Tensor half_rows = at::empty({rows.size(0), height / 2 + 1, rows.size(2)},
                                     rows.options().dtype(c10::toComplexType(rows.scalar_type())));
    transform_real_rows(from, half_rows, height, factor_of(scale, height), /*forward=*/true);
    return half_rows;
  }
  return at::_fft_r2c(rows, {1}, static_cast<int64_t>(scale), /*onesided=*/true);
}

at::Tensor real_rows_inverse(const at::Tensor& half_rows, int64_t height, Scale scale) {
  if (half_rows.numel() == 0) {
    return at::empty({half_rows.size(0), height, half_rows.size(2)},
                     half_rows.options().dtype(c10::toRealValueType(half_rows.scalar_type())));
  }
  if (has_dfti(half_rows)) {
    at::Tensor rows =
        at::empty({half_rows.size(0), height, half_rows.size(2)},
                  half_rows.options().dtype(c10::toRealValueType(half_rows.scalar_type())));
    transform_real_rows(half_rows.contiguous(), rows, height, factor_of(scale, height),
                        /*forward=*/false);
    return rows;
  }
  return at::_fft_c2r(half_rows, {1}, static_cast<int64_t>(scale), height);
}

at::Tensor complex_columns(const at::Tensor& rows, int64_t width, Scale scale, bool forward) {
  const at::Tensor columns = resized(rows, 2, width);
  if (columns.numel() == 0) return at::empty(columns.sizes(), columns.options());
  return at::_fft_c2c(columns, {2}, static_cast<int64_t>(scale), forward);
}

void store_rows(const at::Tensor& stored, const at::Tensor& half_rows, const RowRun& run) {
  const at::Tensor to = stored.narrow(1, run.row_begin, run.count);
  const int64_t columns = stored.size(2);
  const int64_t width = half_rows.size(2);
  if (!run.mirrored) {
    to.copy_(half_rows.narrow(1, run.half_begin, run.count).narrow(2, 0, columns));
    return;
  }
  const at::Tensor mirrored = half_rows.narrow(1, run.half_begin - run.count + 1, run.count);
  copy_mirrored(to.narrow(2, 0, 1), mirrored.narrow(2, 0, 1));
  const int64_t others = columns - 1;
  copy_mirrored(to.narrow(2, 1, others), mirrored.narrow(2, width - others, others));
}

void load_rows(const at::Tensor& stored, const at::Tensor& half_rows, const RowRun& run) {
  const at::Tensor from = stored.narrow(1, run.row_begin, run.count);
  const int64_t columns = stored.size(2);
  const int64_t width = half_rows.size(2);
  if (!run.mirrored) {
    half_rows.narrow(1, run.half_begin, run.count).narrow(2, 0, columns).copy_(from);
    return;
  }
  const at::Tensor to = half_rows.narrow(1, run.half_begin - run.count + 1, run.count);
  const int64_t others = width - columns;
  copy_mirrored(to.narrow(2, columns, others), from.narrow(2, 1, others));
  for (const int64_t column : own_mirror_columns(width)) {
    add_half_mirrored(to.narrow(2, column, 1), from.narrow(2, column, 1));
  }
}

void end_direct_rows(const at::Tensor& half_rows, const std::vector<int64_t>& self) {
  const int64_t width = half_rows.size(2);
  const int64_t columns = width / 2 + 1;
  for (const int64_t column : own_mirror_columns(width)) half_rows.narrow(2, column, 1).mul_(0.5);
  for (const int64_t row : self) {
    const at::Tensor one = half_rows.narrow(1, row, 1);
    for (const int64_t column : own_mirror_columns(width)) one.narrow(2, column, 1).mul_(2);
    const int64_t others = width - columns;
    copy_mirrored(one.narrow(2, columns, others), one.narrow(2, 1, others));
  }
}

}  // namespace meshrun::fft
