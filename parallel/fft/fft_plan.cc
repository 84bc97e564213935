#include "parallel/fft/fft_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "fmt/format.h"
#include "parallel/base/extents.h"
#include "parallel/collectives/all_to_all_v.h"
#include "parallel/fft/wave_numbers.h"

namespace meshrun::fft {

FftPlan::FftPlan(FftShape shape, const GroupArgument& group, const std::string& also_agreed)
    : shape_(std::move(shape)),
      rows_(shape_.layout, shape_.height, shape_.spectrum_rows, shape_.fewest_bytes),
      moved_columns_(std::min<int64_t>(total_extent(shape_.field_columns), shape_.width)),
      transpose_(1, rows_.num_computed(), 2, sizes_within(shape_.field_columns, shape_.width),
                 group, also_agreed) {
  own_moved_columns_ =
      sizes_within(shape_.field_columns, shape_.width)[static_cast<size_t>(rank())];
}

// Half rows [N, K, w] -> those that are computed, by computing rank: one contiguous buffer.
at::Tensor FftPlan::send_order(const at::Tensor& half_rows) const {
  const int64_t computed = total_extent(rows_.num_computed());
  if (rows_.is_ordered()) return half_rows.narrow(1, 0, computed).contiguous();
  at::Tensor ordered =
      at::empty({half_rows.size(0), computed, half_rows.size(2)}, half_rows.options());
  int64_t next = 0;
  for (const SplitRange& block : rows_.in_rank_order()) {
    ordered.narrow(1, next, block.size()).copy_(half_rows.narrow(1, block.begin, block.size()));
    next += block.size();
  }
  return ordered;
}

// The reverse; half rows that nobody computes are zeros, those of several ranks are added up.
at::Tensor FftPlan::row_order(const at::Tensor& received) const {
  const int64_t computed = total_extent(rows_.num_computed());
  const bool is_shared = rows_.is_shared();
  if (rows_.is_ordered()) return resized(received, 1, rows_.num_half_rows());
  const std::vector<int64_t> shape = {received.size(0), rows_.num_half_rows(), received.size(2)};
  at::Tensor ordered = computed == rows_.num_half_rows() && !is_shared
                           ? at::empty(shape, received.options())
                           : at::zeros(shape, received.options());
  int64_t next = 0;
  for (const SplitRange& block : rows_.in_rank_order()) {
    const at::Tensor to = ordered.narrow(1, block.begin, block.size());
    const at::Tensor from = received.narrow(1, next, block.size());
    is_shared ? to.add_(from) : to.copy_(from);
    next += block.size();
  }
  return ordered;
}

at::Tensor FftPlan::selected_columns(const at::Tensor& rows) const {
  if (!shape_.both_signs) return resized(rows, 2, shape_.spectrum_columns);
  return low_waves(rows, 2, shape_.spectrum_columns / 2);
}

at::Tensor FftPlan::all_columns(const at::Tensor& rows) const {
  if (!shape_.both_signs) return resized(rows, 2, shape_.width);
  return all_waves(rows, 2, shape_.width);
}

// What this rank has computed -> what it holds.
at::Tensor FftPlan::stored(const at::Tensor& half_rows) const {
  if (shape_.layout == Layout::kPaired) {
    return resized(selected_columns(half_rows), 1, own_rows());
  }
  const int64_t columns = shape_.width / 2 + 1;
  const int world = rows_.world();
  std::vector<int64_t> sent(static_cast<size_t>(world), 0);
  std::vector<int64_t> received(sent);
  for (int other = 0; other < world; ++other) {
    if (other == rank()) continue;
    sent[static_cast<size_t>(other)] = rows_.num_rows(rank(), other);
    received[static_cast<size_t>(other)] = rows_.num_rows(other, rank());
  }
  const int64_t planes = half_rows.size(0);
  const bool is_whole = own_rows() == total_extent(received) + rows_.num_rows(rank(), rank());
  const std::vector<int64_t> shape = {planes, own_rows(), columns};
  at::Tensor held =
      is_whole ? at::empty(shape, half_rows.options()) : at::zeros(shape, half_rows.options());
  for (const RowRun& run : rows_.runs(rank(), rank())) store_rows(held, half_rows, run);
  if (world == 1 || rows_.is_shared()) return resized(held, 2, shape_.spectrum_columns);

  const at::Tensor outgoing = at::empty({planes, total_extent(sent), columns}, half_rows.options());
  int64_t next = 0;
  for (int holder = 0; holder < world; ++holder) {
    if (holder == rank()) continue;
    for (RowRun run : rows_.runs(rank(), holder)) {
      run.row_begin = next;
      store_rows(outgoing, half_rows, run);
      next += run.count;
    }
  }
  const at::Tensor incoming = all_to_all_v(outgoing, sent, received, 1, 1, transpose_.group());
  next = 0;
  for (int computer = 0; computer < world; ++computer) {
    if (computer == rank()) continue;
    for (const RowRun& run : rows_.runs(computer, rank())) {
      held.narrow(1, run.row_begin, run.count).copy_(incoming.narrow(1, next, run.count));
      next += run.count;
    }
  }
  return resized(held, 2, shape_.spectrum_columns);
}

// What this rank holds -> what it computes from.
at::Tensor FftPlan::loaded(const at::Tensor& spectrum) const {
  const int64_t computed = rows_.num_computed()[static_cast<size_t>(rank())];
  if (shape_.layout == Layout::kPaired) return all_columns(spectrum.narrow(1, 0, computed));
  const int64_t columns = shape_.width / 2 + 1;
  const at::Tensor held = resized(spectrum, 2, columns);
  const int world = rows_.world();
  const int64_t planes = held.size(0);
  at::Tensor incoming;
  if (world > 1 && !rows_.is_shared()) {
    std::vector<int64_t> sent(static_cast<size_t>(world), 0);
    std::vector<int64_t> received(sent);
    for (int other = 0; other < world; ++other) {
      if (other == rank()) continue;
      sent[static_cast<size_t>(other)] = rows_.num_rows(other, rank());
      received[static_cast<size_t>(other)] = rows_.num_rows(rank(), other);
    }
    const at::Tensor outgoing = at::empty({planes, total_extent(sent), columns}, held.options());
    int64_t next = 0;
    for (int computer = 0; computer < world; ++computer) {
      if (computer == rank()) continue;
      for (const RowRun& run : rows_.runs(computer, rank())) {
        outgoing.narrow(1, next, run.count).copy_(held.narrow(1, run.row_begin, run.count));
        next += run.count;
      }
    }
    incoming = all_to_all_v(outgoing, sent, received, 1, 1, transpose_.group());
  }
  const std::vector<int64_t> shape = {planes, computed, shape_.width};
  at::Tensor half_rows =
      rows_.is_complete() ? at::empty(shape, held.options()) : at::zeros(shape, held.options());
  const auto load = [&](bool mirrored) {
    int64_t next = 0;
    for (int holder = 0; holder < world; ++holder) {
      const bool own = holder == rank();
      for (RowRun run : rows_.runs(rank(), holder)) {
        if (!own) {
          run.row_begin = next;
          next += run.count;
        }
        if (run.mirrored == mirrored) load_rows(own ? held : incoming, half_rows, run);
      }
    }
  };
  load(/*mirrored=*/false);
  end_direct_rows(half_rows, rows_.self_mirrored(rank()));
  load(/*mirrored=*/true);
  return half_rows;
}

int64_t FftPlan::chunks_of(int64_t planes, int64_t element_size) const {
  // The same on all ranks: of the whole transposition, not of one rank's part.
  const int64_t bytes =
      planes * total_extent(rows_.num_computed()) * moved_columns_ * 2 * element_size;
  return num_chunks(planes, bytes / rows_.world(), rows_.world());
}

at::Tensor FftPlan::in_chunks(const at::Tensor& planes, const Start& start,
                              const Finish& finish) const {
  const int64_t count = planes.size(0);
  const int64_t chunks = chunks_of(
      count, static_cast<int64_t>(at::elementSize(c10::toRealValueType(planes.scalar_type()))));
  if (chunks == 1) return finish(start(planes).wait());
  at::Tensor result;
  const auto end_of = [&](int64_t chunk) { return count * (chunk + 1) / chunks; };
  const auto finish_into = [&](int64_t chunk, AsyncTensor& moving) {
    const at::Tensor done = finish(moving.wait());
    const int64_t begin = chunk == 0 ? 0 : end_of(chunk - 1);
    if (!result.defined()) {
      result = at::empty({count, done.size(1), done.size(2)}, done.options());
    }
    result.narrow(0, begin, done.size(0)).copy_(done);
  };
  AsyncTensor moving = start(planes.narrow(0, 0, end_of(0)));
  for (int64_t chunk = 1; chunk < chunks; ++chunk) {
    const int64_t begin = end_of(chunk - 1);
    AsyncTensor next = start(planes.narrow(0, begin, end_of(chunk) - begin));
    finish_into(chunk - 1, moving);
    moving = std::move(next);
  }
  finish_into(chunks - 1, moving);
  return result;
}

at::Tensor FftPlan::compute_forward(const at::Tensor& field, Scale scale) const {
  const at::Tensor moved = field.narrow(2, 0, own_moved_columns_);
  return in_chunks(
      moved,
      [&](const at::Tensor& planes) {
        return transpose_.to_dim0_async(
            send_order(real_rows_forward(planes, shape_.height, scale)));
      },
      [&](const at::Tensor& received) {
        return stored(complex_columns(received, shape_.width, scale, /*forward=*/true));
      });
}

at::Tensor FftPlan::compute_inverse(const at::Tensor& spectrum, Scale scale) const {
  return in_chunks(
      spectrum,
      [&](const at::Tensor& planes) {
        const at::Tensor columns =
            complex_columns(loaded(planes), shape_.width, scale, /*forward=*/false);
        return transpose_.to_dim1_async(columns.narrow(2, 0, moved_columns_));
      },
      [&](const at::Tensor& received) {
        const at::Tensor rows = real_rows_inverse(row_order(received), shape_.height, scale);
        return resized(resized(rows, 1, shape_.field_height), 2, own_columns()).contiguous();
      });
}

at::Tensor FftPlan::weights(double factor, const at::Tensor& like) const {
  const auto options =
      at::TensorOptions(like.device()).dtype(c10::toRealValueType(like.scalar_type()));
  if (shape_.layout == Layout::kCanonical) {
    at::Tensor columns = at::ones({int64_t{shape_.spectrum_columns}}, options);
    const int64_t interior = std::min<int64_t>((shape_.width + 1) / 2, shape_.spectrum_columns);
    if (interior > 1) columns.narrow(0, 1, interior - 1).fill_(factor);
    return columns;
  }
  at::Tensor rows = at::ones({own_rows(), 1}, options);
  const int64_t first = std::accumulate(shape_.spectrum_rows.begin(),
                                        shape_.spectrum_rows.begin() + rank(), int64_t{0});
  const int64_t begin = std::max<int64_t>(first, 1);
  const int64_t end = std::min((shape_.height + 1) / 2, first + own_rows());
  if (begin < end) rows.narrow(0, begin - first, end - begin).fill_(factor);
  return rows;
}

}  // namespace meshrun::fft
