// How near the CUDA kernels come to the memory's rate: gather, sum and permutation of slices, each
// beside a plain copy of as many bytes and beside ATen's operator for it.
//
// bytes: each input, output and index read or written once. copy: the time of a large copy_ for as
// many bytes. bound: the same, but where rows lie at random places random_rows.h copies as many of
// them, and only the indices count at the copy's rate; the longer of the two. share: of the bound.
// baseline: index_select, index_add_, a copy_ per piece. All times are medians by events, after a
// warm-up.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "parallel/kernels/piece_kernels.h"
#include "parallel/kernels/row_kernels.h"
#include "parallel/manager/device_choice.h"
#include "tests/bench/cuda_kernels/random_rows.h"

namespace meshrun {
namespace {

using at::Tensor;

double milliseconds_of(const std::function<void()>& run, int repeats) {
  for (int i = 0; i < 3; ++i) run();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    run();
    end.record();
    end.synchronize();
    times.push_back(begin.elapsed_time(end));
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

struct Bench {
  int repeats;
  double copy_rate = 0;  // bytes/ms

  void measure_copy() {
    const Tensor from = at::ones({int64_t{1} << 28}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
    const Tensor to = at::empty_like(from);
    copy_rate = 2.0 * static_cast<double>(from.nbytes()) /
                milliseconds_of([&] { to.copy_(from); }, repeats);
    fmt::print("copy: {:.0f} GB/s\n{:<44} {:>13} {:>8} {:>8} {:>8} {:>7} {:>9} {:>7}\n",
               copy_rate / 1e6, "kernel", "", "MB", "us", "bound us", "share", "baseline", "times");
  }
  // Milliseconds; `scattered`: what the bytes that are not at the copy's rate take.
  void report(const std::string& name, double bytes, const std::function<void()>& kernel,
              const std::function<void()>& baseline, double scattered_bytes = 0,
              double scattered = 0) const {
    const double took = milliseconds_of(kernel, repeats);
    C10_CUDA_CHECK(cudaGetLastError());
    const double base = milliseconds_of(baseline, repeats);
    const double copy = bytes / copy_rate;
    const double bound = std::max(copy, scattered + (bytes - scattered_bytes) / copy_rate);
    fmt::print("{:<44} (copy {:>5.1f} us) {:>6.1f} {:>8.1f} {:>8.1f} {:>6.0f}% {:>9.1f} {:>7.2f}\n",
               name, copy * 1e3, bytes / 1e6, took * 1e3, bound * 1e3, 100 * bound / took,
               base * 1e3, base / took);
    std::fflush(stdout);
  }
};

double bytes_of(const Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }

// `rows` rows gathered out of as many, and added up by the inverse of the index.
void gathers_and_sums(const Bench& bench, at::ScalarType type, int64_t width, int64_t rows) {
  const RowKernels& kernels = row_kernels(c10::DeviceType::CUDA);
  const Tensor input = at::randn({rows, width}, at::kCUDA).to(type);
  const Tensor index = at::randint(0, rows, {rows}, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  const Tensor output = at::empty_like(input);
  const std::string shape = fmt::format("{} [{}, {}]", c10::toString(type), rows, width);
  // Rows of a multiple of 16 bytes, aligned to it: what rows at other places could at best be.
  const int64_t padded = (width * static_cast<int64_t>(input.element_size()) + 15) / 16 * 16;
  const bool is_narrow = width * static_cast<int64_t>(input.element_size()) < 16;
  const int64_t row_bytes = is_narrow ? width * static_cast<int64_t>(input.element_size()) : padded;
  const Tensor from = at::zeros({rows * row_bytes}, input.options().dtype(at::kByte));
  const Tensor to = at::empty_like(from);
  const auto random_rows = [&](int loads) {
    return milliseconds_of(
        [&] {
          copy_random_rows(to.data_ptr(), from.data_ptr(), rows, row_bytes, loads,
                           c10::cuda::getCurrentCUDAStream());
        },
        bench.repeats);
  };
  const double scattered = std::min(random_rows(4), random_rows(8));
  const double scattered_bytes = 2 * bytes_of(input);
  bench.report(
      "gather " + shape, bytes_of(input) + bytes_of(output) + bytes_of(index),
      [&] { kernels.gather_rows(output, input, index, 0); },
      [&] { at::index_select_out(const_cast<Tensor&>(output), input, 0, index); }, scattered_bytes,
      scattered);
  if (type != at::kFloat) {
    const Tensor wide = at::empty({rows, width}, at::kCUDA);
    bench.report(
        "gather to float of " + shape, bytes_of(input) + bytes_of(wide) + bytes_of(index),
        [&] { kernels.gather_rows(wide, input, index, 0); },
        [&] { wide.copy_(at::index_select(input, 0, index)); }, scattered_bytes, scattered);
  }
  // Contribution p belongs to row index[p].
  const Tensor positions = std::get<1>(at::sort(index, /*stable=*/true, 0, false));
  const Tensor offsets = at::zeros({rows + 1}, index.options());
  offsets.narrow(0, 1, rows).copy_(at::bincount(index, {}, rows).cumsum(0));
  const Tensor none = at::empty({0, width}, input.options());
  const Tensor sum = at::zeros_like(input);
  bench.report(
      "segmented sum " + shape,
      bytes_of(input) + bytes_of(sum) + bytes_of(positions) + bytes_of(offsets),
      [&] { kernels.segmented_sum(sum, input, none, offsets, positions, 0, true); },
      [&] { const_cast<Tensor&>(sum).zero_().index_add_(0, index, input); }, scattered_bytes,
      scattered);
}

void slices(const Bench& bench, at::ScalarType type, int64_t outer, int64_t extent, int64_t count) {
  const Tensor tensor = at::randn({outer, extent}, at::kCUDA).to(type);
  const Tensor blocks = at::empty({tensor.numel()}, tensor.options());
  // One after another.
  std::vector<PackedPiece> pieces;
  for (int64_t i = 0, begin = 0; i < count; ++i) {
    const int64_t size = i + 1 < count ? extent / count : extent - begin;
    pieces.push_back({begin, size, begin * outer});
    begin += size;
  }
  bench.report(
      fmt::format("{} pieces of {} [{}, {}]", count, c10::toString(type), outer, extent),
      2 * bytes_of(tensor), [&] { pack_pieces(blocks, tensor, 1, pieces); },
      [&] {
        for (const PackedPiece& piece : pieces) {
          blocks.narrow(0, piece.offset, piece.size * outer)
              .view({outer, piece.size})
              .copy_(tensor.narrow(1, piece.begin, piece.size));
        }
      });
}

void sums(const Bench& bench, at::ScalarType type, int64_t ranks, int64_t elements) {
  const Tensor parts = at::randn({ranks, elements}, at::kCUDA).to(type);
  const Tensor sum = at::empty({elements}, parts.options());
  bench.report(
      fmt::format("sum of {} x {} {}", ranks, elements, c10::toString(type)),
      bytes_of(parts) + bytes_of(sum), [&] { sum_in_order(sum, parts, true); },
      [&] { at::sum_out(const_cast<Tensor&>(sum), parts, 0); });
}

int run(int repeats) {
  if (gpu_count() == 0) {
    fmt::print(stderr, "this process sees no GPU (nvidia-smi -L lists them)\n");
    return 1;
  }
  Bench bench{repeats};
  bench.measure_copy();
  for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
    for (const int64_t width : {1, 16, 129, 1024}) {
      gathers_and_sums(bench, type, width, (int64_t{1} << 26) / std::max<int64_t>(width, 16));
    }
    slices(bench, type, 1 << 14, 4096, 8);
    slices(bench, type, 1 << 14, 4099, 7);
    sums(bench, type, 8, 1 << 23);
  }
  return 0;
}

}  // namespace
}  // namespace meshrun

int main(int argc, char** argv) {
  CLI::App app("Times the CUDA kernels of the collectives.");
  int repeats = 30;
  app.add_option("--repeats", repeats, "of each measurement")->check(CLI::Range(1, 10000));
  CLI11_PARSE(app, argc, argv);
  return meshrun::run(repeats);
}
