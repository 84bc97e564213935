#include "parallel/fft/local_transforms.h"

#include <cmath>
#include <vector>

#include "ATen/ops/_fft_c2c.h"
#include "ATen/ops/_fft_c2r.h"
#include "ATen/ops/_fft_r2c.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/empty.h"
#include "c10/util/complex.h"
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

// to[n, i, j] = conj(from[n, last - i, -j mod width]), on the CPU, without a pass for each of the
// three.
template <typename T>
void mirror(const at::Tensor& to, const at::Tensor& from) {
  const int64_t rows = to.size(1);
  const int64_t columns = to.size(2);
  const int64_t width = from.size(2);
  for (int64_t plane = 0; plane < to.size(0); ++plane) {
    for (int64_t row = 0; row < rows; ++row) {
      T* const out = to.data_ptr<T>() + plane * to.stride(0) + row * to.stride(1);
      const T* const in =
          from.const_data_ptr<T>() + plane * from.stride(0) + (rows - 1 - row) * from.stride(1);
      out[0] = std::conj(in[0]);
      for (int64_t j = 1; j < columns; ++j) out[j] = std::conj(in[width - j]);
    }
  }
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
  if (to.is_cpu() && to.stride(2) == 1 && mirrored.stride(2) == 1 && !mirrored.is_conj()) {
    to.scalar_type() == at::kComplexFloat ? mirror<c10::complex<float>>(to, mirrored)
                                          : mirror<c10::complex<double>>(to, mirrored);
    return;
  }
  const at::Tensor from = mirrored.conj();
  to.narrow(2, 0, 1).copy_(from.narrow(2, 0, 1).flip(1));
  const int64_t others = columns - 1;
  if (others > 0)
    to.narrow(2, 1, others).copy_(from.narrow(2, width - others, others).flip({1, 2}));
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
  if (others > 0) {
    to.narrow(2, columns, others).copy_(from.narrow(2, 1, others).conj().flip({1, 2}));
  }
  for (const int64_t column : own_mirror_columns(width)) {
    to.narrow(2, column, 1).add_(from.narrow(2, column, 1).conj().flip(1), 0.5);
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
    if (others > 0) one.narrow(2, columns, others).copy_(one.narrow(2, 1, others).conj().flip(2));
  }
}

}  // namespace meshrun::fft
